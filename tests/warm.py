"""Processes that begin with what takes seconds to import: forked from one that has done so.

A test forks ranks and commands from a server of its own, which imports once a session (:func:`warm_processes`). What
such a command starts of our own modules is forked from it in turn (:class:`WarmPopen`): a child with a process id, a
session, pipes, signals and an exit code of its own; what it shares is what was imported. Tests of the start itself use
:func:`commands.cold_heterps`.
"""

import atexit
import inspect
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from typing import Any, NoReturn

_IMPORTED = [
    "torch._dynamo",  # by every optimizer
    "safetensors.torch",
    "onnxruntime",
    "heterps_compile.cli.main",
    "heterps_compile.api",
    "heterps_compile.runtime.engines.local_machine",
    "heterps_compile.runtime.pipeline.engine",
    "heterps_compile.backends.torch.backend",
    "heterps_compile.backends.jax.backend",
    "heterps_compile.backends.jax.stage",
]
_OPTIONS = {"-P", "-B"}  # of the interpreter
_GIVEN = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]


def warm_processes() -> ForkServerContext:
    """Return what starts them. A fork of this process itself would copy its threads, and can end in a deadlock."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def be_in(environment: Mapping[str, str]) -> None:
    """Take an environment: that of the server is of the time when it started."""
    os.environ.clear()
    os.environ.update(environment)
    torch = sys.modules["torch"]
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", torch.get_num_threads())))


def open_standard_files() -> None:
    """Open the three files of a process anew, as the interpreter does in this environment."""
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), "utf-8", write_through=at_once, line_buffering=at_once)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", closefd=False), "utf-8", "backslashreplace", line_buffering=True)  # noqa: SIM115


class WarmPopen(subprocess.Popen):  # type: ignore[type-arg] # text or bytes, as the caller says
    """A process of one of our modules, forked; any other is started as ever."""

    def _execute_child(self, *arguments: Any) -> None:
        parent: Any = super()
        given = dict(zip(_GIVEN, arguments, strict=True))
        words = module_and_words(given["args"])
        if words is None:
            parent._execute_child(*arguments)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jax and Python tell of threads; the child uses none of them
            self.pid = os.fork()
        if self.pid == 0:
            _be_module(words, given)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        parent._close_pipe_fds(*(given[name] for name in pipes))


def module_and_words(command: Sequence[str]) -> list[str] | None:
    """Return a module of ours and its words where a command runs one; None where it runs something else."""
    if isinstance(command, str) or not command or command[0] != sys.executable:
        return None
    rest = list(command[1:])
    while rest and rest[0] in _OPTIONS:
        rest.pop(0)
    return rest[1:] if rest[:1] == ["-m"] and rest[1].partition(".")[0] == "heterps_compile" else None


def _be_module(words: Sequence[str], given: Mapping[str, Any]) -> NoReturn:
    """Do what the system and the interpreter do around a module; end with its exit code."""
    code = 1
    try:
        if given["start_new_session"]:
            os.setsid()
        _forget_parent(given)
        if given["cwd"] is not None:
            os.chdir(given["cwd"])
        if "-P" in given["args"]:
            sys.path[:] = [path for path in sys.path if path]
        sys.argv = list(words)
        sys.modules.pop(words[0], None)  # it was imported; now it is run
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter prints what nobody caught
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
        os._exit(code)


def _forget_parent(given: Mapping[str, Any]) -> None:
    """Leave behind the parent's files, signals, and what it does when it ends."""
    for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if given[name] != -1:
            os.dup2(given[name], number)
    kept, nothing = {0, 1, 2, *given["pass_fds"]}, os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            os.dup2(nothing, number)  # not closed: what held it here may close that number once more
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    be_in(os.environ.copy() if given["env"] is None else given["env"])
    open_standard_files()
