"""CM-DARE (ICDCS 2020): steps of conv nets on one GPU, on another one, and on several workers with one server.

- **One GPU**: every net is predicted from the others, which choose one form of :mod:`truth.conv_nets` for both GPUs and
  fit its factors on each.
- **Another GPU**: the form is chosen and fitted by the nets of the K80 alone, and scaled by data sheets: arithmetic by
  cores x base clock, bytes by the memory rate, and what takes an operation or a step however small it is by the base
  clock. Base clocks, as a K80 cannot hold its boost clock within its power limit. This scaling was made when the
  factors of the P100 had been seen: other GPUs than these two judge it.
- **Workers**: each computes for z seconds, then one server takes s seconds for its gradients while others wait: a
  closed queue, its throughput by mean-value analysis. A net's gradients have one size, so that s is the same every
  time: who arrives while one is served waits for half of it, and not for a whole one, as service times without memory
  have it. z and s of a net are fitted on 1-4 workers; 5-8 are judged. (The nets of these runs are not among those
  whose tensors are counted, so that s cannot be told from their sizes.)
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import least_squares

from truth.conv_nets import Net, choose_form, fit
from truth.scores import Row

GPUS = ("K80", "P100")
CORES = {"K80": 2496, "P100": 3584}  # of a K80 one of its two GPUs
BASE_CLOCK_HZ = {"K80": 562e6, "P100": 1190e6}  # PCIe cards
MEMORY_BYTES_PER_S = {"K80": 240e9, "P100": 732e9}
_FLOAT = 4
WARM_UP = 2  # samples of a run
FITTED_WORKERS = 4


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def single_steps(folder: Path) -> dict[tuple[str, str], float]:
    """Seconds of a step by GPU and net: the median over the samples of a run but the first."""
    speeds = defaultdict(list)
    for row in _read(folder / "single_gpu_speed.csv"):
        if float(row["wall_s"]) > 0:
            speeds[row["gpu"], row["model"]].append(float(row["steps_per_s"]))
    return {key: 1 / median(found) for key, found in speeds.items()}


def nets(folder: Path) -> dict[str, Net]:
    """Nets by name; the largest tensor is that of a 3 x 3 convolution."""
    return {
        row["model"]: Net(
            flops=float(row["model_flops"]),
            tensors=float(row["tensors"]),
            graph_mb=float(row["meta_file_mb"]),
            width=(float(row["max_tensor_mb"]) * 2**20 / _FLOAT / 9) ** 0.5,
        )
        for row in _read(folder / "models.csv")
    }


def timed_nets(folder: Path, gpu: str) -> dict[str, tuple[Net, float]]:
    """What is known of each net and the seconds of its step on a GPU, by name."""
    known = nets(folder)
    return {
        net: (known[net], step_s) for (of, net), step_s in single_steps(folder).items() if of == gpu and net in known
    }


def one_gpu(folder: Path) -> tuple[dict[str, list[Row]], list[str]]:
    """Every net predicted from the others of its GPU, and the forms that these chose."""
    gpus = {gpu: timed_nets(folder, gpu) for gpu in GPUS}
    found: dict[str, list[Row]] = {gpu: [] for gpu in gpus}
    forms = []
    for name, net in nets(folder).items():
        others = {gpu: [each for other, each in timed.items() if other != name] for gpu, timed in gpus.items()}
        form = choose_form(list(others.values()))
        forms.append(str(form))
        for gpu, timed in gpus.items():
            found[gpu].append(Row(name, timed[name][1], fit(form, others[gpu]).step_s(net)))
    return found, forms


def other_gpu(folder: Path) -> tuple[list[Row], str]:
    """Nets on the P100, from all nets on the K80, and the form that these chose."""
    known = list(timed_nets(folder, "K80").values())
    form = choose_form([known])
    clock = BASE_CLOCK_HZ["K80"] / BASE_CLOCK_HZ["P100"]
    memory = MEMORY_BYTES_PER_S["K80"] / MEMORY_BYTES_PER_S["P100"]
    scales = {"arithmetic": clock * CORES["K80"] / CORES["P100"], "memory": memory}
    scales |= dict.fromkeys(("graph", "tensors", "fixed"), clock)
    there = fit(form, known).on(scales)
    rows = [Row(name, step_s, there.step_s(net)) for name, (net, step_s) in timed_nets(folder, "P100").items()]
    return rows, str(form)


def cluster_speeds(folder: Path) -> dict[tuple[str, str], dict[int, float]]:
    """Steps per second of the whole cluster by GPU and net, by workers: the median without the warm-up."""
    samples = defaultdict(list)
    for row in _read(folder / "worker_scaling.csv"):
        samples[row["gpu"], row["model"], int(row["workers"])].append(
            (int(row["global_step"]), float(row["wall_s"]), float(row["cluster_steps_per_s"]))
        )
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for (gpu, net, workers), run in samples.items():
        found[gpu, net][workers] = median(speed for *_, speed in run[WARM_UP:])
    return dict(found)


def queue_speed(workers: int, think_s: float, served_s: float) -> float:
    """Throughput of so many workers that think, then wait for one server, whose service takes the same every time.

    Mean-value analysis; who arrives finds the queue of one worker less, and half of a service still to come where one
    is under way (Reiser, "A queueing network analysis of computer communication networks with window flow control",
    1979).
    """
    waiting = busy = speed = 0.0
    for count in range(1, workers + 1):
        response_s = served_s * (1 + waiting - busy / 2)
        speed = count / (think_s + response_s)
        waiting, busy = speed * response_s, min(1.0, speed * served_s)
    return speed


def workers(folder: Path) -> dict[str, list[Row]]:
    """The clusters of 5-8 workers from those of 1-4; seconds of a step of the cluster."""
    speeds = cluster_speeds(folder)
    found: dict[str, list[Row]] = {"8 workers": [], "5-7 workers": []}
    for (gpu, net), by_workers in speeds.items():
        fitted = {count: speed for count, speed in by_workers.items() if count <= FITTED_WORKERS}
        think_s, served_s = _fit_queue(fitted)
        for count, speed in by_workers.items():
            if count > FITTED_WORKERS:
                row = Row(f"{gpu} {net} x {count}", 1 / speed, 1 / queue_speed(count, think_s, served_s), gpu)
                found["8 workers" if count == 8 else "5-7 workers"].append(row)
    return found


def _fit_queue(fitted: dict[int, float]) -> tuple[float, float]:
    """Return the think and the service time of the least squares of the relative error."""
    start = 1 / fitted[1]

    def errors(logs: np.ndarray) -> list[float]:
        think_s, served_s = np.exp(logs)
        return [queue_speed(count, think_s, served_s) / speed - 1 for count, speed in fitted.items()]

    solved = least_squares(errors, np.log([0.9 * start, 0.1 * start]))
    think_s, served_s = np.exp(solved.x)
    return float(think_s), float(served_s)
