"""Measure how far replicas shorten a step: the model in k processes at once, each with a k-th of the batch.

The times fit Amdahl's law; what replicas divide is alpha of the cost model. Processes share caches and memory as
replicas on one machine do, and a k-th of a batch pays the fixed part of every operation in full: both are in alpha.

The model is written as one stage into a temporary folder, which every process reads.

Left out: replicas on machines of their own; GPUs.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Timer
from typing import Any

from heterps_compile.backends.contract import Backend
from heterps_compile.cost.profile import Fitted
from heterps_compile.errors import RunError
from heterps_compile.escape import one_line, shorten
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import cut_graph

from .fit import fit_parallel_fraction

_TIMEOUT_S = 240
_SHOWN = 500
ROUNDS = 5


def measure_replicas(
    read: Callable[[int | None], Graph], backend: Backend, batch: int, *, most: int, threads: int, training: bool
) -> Fitted | None:
    """Measure alpha; None where there is one core's worth of units, or no batch that they divide.

    Args:
        read: Gives the graph at a batch.
        backend: What runs it.
        batch: That replicas share.
        most: Replicas at once.
        threads: Of each.
        training: Forward and backward, else forward alone.

    Raises:
        RunError: where a process fails.
    """
    counts = [k for k in range(1, most + 1) if batch % k == 0]
    if len(counts) < 2:
        return None
    with tempfile.TemporaryDirectory(prefix="heterps-replicas-") as name:
        folder = Path(name)
        graph = read(batch)
        partition = cut_graph(graph, [range(len(graph.nodes))])
        files = backend.write(graph, backend.build(graph, partition), partition.stages, folder)[0]
        cut = partition.stages[0]
        for count in counts:
            _write_inputs(backend.example_inputs(read(batch // count), 0), cut.inputs, folder / f"inputs_{count}")
        task = {"backend": backend.name, "files": files, "inputs": cut.inputs, "outputs": cut.outputs}
        (folder / "task.json").write_text(json.dumps({**task, "training": training, "threads": threads}), "ascii")
        times_s = {count: _run(folder, count, threads) for count in counts}
    return fit_parallel_fraction(times_s)


def _run(folder: Path, count: int, threads: int) -> list[float]:
    """Run so many replicas at once; return the slowest one's time in every round."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "heterps_compile.profiling.replica_process", str(folder), str(count)]
    processes = [
        subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        for _ in range(count)
    ]

    def give_up() -> None:
        for process in processes:
            process.kill()

    watch = Timer(_TIMEOUT_S, give_up)
    watch.start()
    try:
        for process in processes:  # all have read the model before any is timed
            if process.stdout is not None and process.stdout.readline().strip() != b"ready":
                complaint = process.communicate()[1].decode("utf-8", "replace")
                raise RunError(
                    f"replicas were not measured: one ended with {shorten(one_line(complaint[-_SHOWN:]), _SHOWN)!r}; "
                    f"leave them out (--no-replicas)"
                )
        for process in processes:
            if process.stdin is not None:
                process.stdin.write(b"go\n")
                process.stdin.flush()
        answers = [json.loads(process.communicate()[0]) for process in processes]
    except (ValueError, OSError) as error:
        raise RunError("replicas were not measured: one gave no answer; leave them out (--no-replicas)") from error
    finally:
        watch.cancel()
        for process in processes:
            process.kill()
            process.wait()
    return [max(round_s) for round_s in zip(*answers, strict=True)]


def _write_inputs(values: Mapping[str, Any], names: tuple[str, ...], path: Path) -> None:
    """Write inputs by their place: tensors as safetensors, numbers as JSON."""
    import torch  # noqa: PLC0415 - safetensors' own format for it
    from safetensors.torch import save_file  # noqa: PLC0415

    from heterps_compile.backends.borders import as_tensor  # noqa: PLC0415

    numbers: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    for place, name in enumerate(names):
        value = values[name]
        if value is None or isinstance(value, (bool, int, float)):
            numbers[str(place)] = value
        else:
            tensors[str(place)] = as_tensor(value, name).contiguous()
    save_file(tensors, path.with_suffix(".safetensors"))
    path.with_suffix(".json").write_text(json.dumps(numbers), "ascii")
