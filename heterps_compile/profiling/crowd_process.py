"""One of the processes that crowd: ``python -m heterps_compile.profiling.crowd_process FOLDER CLOCK``.

It reads the model as one stage and its inputs, says ``ready``, and runs a round for every line, ``SECONDS PASSES``: so
long, and so many times at least. It prints what a pass took in the median, in seconds.

Left out: what is made of them (``crowding.py``).
"""

import json
import sys
import time
from itertools import cycle
from pathlib import Path
from statistics import median

import torch

from heterps_compile.backends.find import find_backend
from heterps_compile.runtime.allocator import keep_freed_memory
from heterps_compile.runtime.pipeline.autocast import Autocast

from .clock import make_clock
from .layer_passes import forget_gradients
from .replica_process import read_inputs, read_passes
from .replicas import INPUTS

_WARM_UP = 3


def main() -> None:
    """Measure."""
    folder, clock = Path(sys.argv[1]), sys.argv[2]
    task = json.loads((folder / "task.json").read_text("ascii"))
    keep_freed_memory()
    torch.set_num_threads(task["threads"])
    backend = find_backend(task["backend"])
    now = make_clock(clock, "cpu", task["threads"], own_threads=backend.capabilities.own_threads)
    inputs = cycle([read_inputs(folder / f"inputs_1_{place}", task["inputs"]) for place in range(INPUTS)])
    autocast = Autocast(task["precision"], torch.device("cpu"))
    whole = read_passes(folder / "whole", task["whole"], task, backend, autocast, now=now)

    def once() -> None:
        if task["training"]:
            forget_gradients(whole.stages)
            whole.train(next(inputs), grads_at_hand=False)
        else:
            with torch.no_grad():
                whole.infer(next(inputs))

    for _ in range(_WARM_UP):
        once()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, passes = line.split()
        began_s, done = time.perf_counter(), 0
        whole.forget()
        while done < int(passes) or time.perf_counter() - began_s < float(seconds):
            once()
            done += 1
        backward_s = median(whole.backward_s[0]) if task["training"] else 0.0
        print(json.dumps(median(whole.forward_s[0]) + backward_s), flush=True)


if __name__ == "__main__":
    main()
