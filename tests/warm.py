"""Processes that begin with what takes seconds to import: forked from a server that has done so once a session."""

import io
import multiprocessing
import os
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext

IMPORTED = [
    "torch._dynamo",  # by every optimizer
    "safetensors.torch",
    "onnxruntime",
    "heterps_compile.cli.main",
    "heterps_compile.api",
    "heterps_compile.runtime.launch.local_ranks",
    "heterps_compile.runtime.pipeline.engine",
    "heterps_compile.backends.torch.backend",
    "heterps_compile.backends.jax.backend",
    "heterps_compile.backends.jax.stage",
]


def warm_processes() -> ForkServerContext:
    """Return what starts them. A fork of this process itself would copy its threads, and can end in a deadlock."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def be_in(environment: Mapping[str, str]) -> None:
    """Take an environment: that of the server is of the time when it started."""
    os.environ.clear()
    os.environ.update(environment)
    torch = sys.modules["torch"]
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", torch.get_num_threads())))


def open_standard_files() -> None:
    """Open the three files of a process anew, as the interpreter does."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), "utf-8")  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", closefd=False), "utf-8", "backslashreplace", line_buffering=True)  # noqa: SIM115
