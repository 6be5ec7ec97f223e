"""One replica that is measured: ``python -m heterps_compile.profiling.replica_process FOLDER COUNT``.

It reads the model as one stage and as a stage for every layer, and their inputs, says ``ready``, waits for a line, and
prints its times as JSON: ``[rounds][layers + 1]``, medians in seconds, the whole model's last.

Left out: what is made of them (``replicas.py``).
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file

from heterps_compile.backends.contract import Backend
from heterps_compile.backends.find import find_backend
from heterps_compile.runtime.allocator import keep_freed_memory
from heterps_compile.runtime.pipeline.autocast import Autocast

from .clock import Now
from .layer_passes import Passes, forget_gradients
from .replicas import INPUTS, ROUNDS

_ROUND_S = 0.4
_FEWEST = 3
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class _Cut:
    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Cuts:
    """What a graph gives, and what enters and leaves its stages."""

    outputs: tuple[str, ...]
    stages: tuple[_Cut, ...]


def main() -> None:
    """Measure."""
    folder, count = Path(sys.argv[1]), sys.argv[2]
    task = json.loads((folder / "task.json").read_text("ascii"))
    keep_freed_memory()
    torch.set_num_threads(task["threads"])
    backend = find_backend(task["backend"])
    inputs = [read_inputs(folder / f"inputs_{count}_{place}", task["inputs"]) for place in range(INPUTS)]
    autocast = Autocast(task["precision"], torch.device("cpu"))
    chain, whole = (
        read_passes(folder / name, task[name], task, backend, autocast, now=time.perf_counter)
        for name in ("layers", "whole")
    )
    turns = ((chain, cycle(inputs)), (whole, cycle([*inputs[1:], inputs[0]])))[0 if task["layers"] else 1 :]

    def once() -> float:
        began = time.perf_counter()
        for passes, given in turns:
            if task["training"]:
                forget_gradients(passes.stages)
                passes.train(next(given), grads_at_hand=False)
            else:
                with torch.no_grad():
                    passes.infer(next(given))
        return time.perf_counter() - began

    once_s = min(once() for _ in range(_WARM_UP))
    print("ready", flush=True)
    sys.stdin.readline()
    repeats = max(_FEWEST, int(_ROUND_S / max(once_s, 1e-6)))
    rounds = []
    for _ in range(ROUNDS):
        chain.forget()
        whole.forget()
        for _ in range(repeats):
            once()
        rounds.append([*_times_s(chain), *_times_s(whole)])
    print(json.dumps(rounds), flush=True)


def read_passes(
    folder: Path,
    stages: Sequence[Mapping[str, Any]],
    task: Mapping[str, Any],
    backend: Backend,
    autocast: Autocast,
    *,
    now: Now,
) -> Passes:
    """Read stages of the model, to be timed by a clock; of none there are no passes."""
    cuts = tuple(_Cut(i, tuple(each["inputs"]), tuple(each["outputs"])) for i, each in enumerate(stages))
    with backend.threads(task["threads"]):
        read = backend.read(folder, [each["files"] for each in stages], cuts)
        modules = [backend.as_module(stage, torch.device("cpu")) for stage in read]
    known = _Cuts(tuple(task["outputs"]), cuts)
    return Passes(known, known, modules, now, autocast)


def read_inputs(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read the inputs of a pass: tensors, and numbers."""
    tensors = load_file(path.with_suffix(".safetensors"))
    numbers = json.loads(path.with_suffix(".json").read_text("ascii"))
    return {name: tensors[str(i)] if str(i) in tensors else numbers[str(i)] for i, name in enumerate(names)}


def _times_s(passes: Passes) -> list[float]:
    """Return what every stage took, forward and backward."""
    backwards = passes.backward_s if any(passes.backward_s) else [[0.0]] * len(passes.forward_s)
    return [median(forward) + median(backward) for forward, backward in zip(passes.forward_s, backwards, strict=True)]


if __name__ == "__main__":
    main()
