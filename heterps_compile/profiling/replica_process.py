"""One replica that is measured: ``python -m heterps_compile.profiling.replica_process FOLDER COUNT``.

It reads the stage and its inputs, says ``ready``, waits for a line, and prints its times as JSON.

Left out: what is made of them (``replicas.py``).
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file

from heterps_compile.backends.find import find_backend
from heterps_compile.runtime.allocator import keep_freed_memory

from .chain import forget_gradients
from .replicas import ROUNDS

_ROUND_S = 0.4
_FEWEST = 3
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class _Cut:
    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def main() -> None:
    """Measure."""
    folder, count = Path(sys.argv[1]), sys.argv[2]
    task = json.loads((folder / "task.json").read_text("ascii"))
    keep_freed_memory()
    torch.set_num_threads(task["threads"])
    cut = _Cut(0, tuple(task["inputs"]), tuple(task["outputs"]))
    backend = find_backend(task["backend"])
    with backend.threads(task["threads"]):
        stage = backend.as_module(backend.read(folder, [task["files"]], [cut])[0], torch.device("cpu"))
    tensors = load_file(folder / f"inputs_{count}.safetensors")
    numbers = json.loads((folder / f"inputs_{count}.json").read_text("ascii"))
    inputs = [tensors[str(i)] if str(i) in tensors else numbers[str(i)] for i in range(len(cut.inputs))]

    def once() -> float:
        began = time.perf_counter()
        if not task["training"]:
            with torch.no_grad():
                stage(*inputs)
            return time.perf_counter() - began
        forget_gradients([stage])
        made = [value for value in stage(*inputs) if isinstance(value, torch.Tensor) and value.requires_grad]
        torch.autograd.backward(made, [torch.ones_like(value) for value in made])
        return time.perf_counter() - began

    once_s = min(once() for _ in range(_WARM_UP))
    print("ready", flush=True)
    sys.stdin.readline()
    repeats = max(_FEWEST, int(_ROUND_S / max(once_s, 1e-6)))
    print(json.dumps([median(once() for _ in range(repeats)) for _ in range(ROUNDS)]), flush=True)


if __name__ == "__main__":
    main()
