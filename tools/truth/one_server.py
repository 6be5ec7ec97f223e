"""Workers that share one server (CM-DARE, ICDCS 2020): the speed of 5 to 8 workers from that of 1 to 4.

Each worker computes for z seconds, then the server takes s seconds for its gradients while others wait: a closed queue,
its throughput by mean-value analysis. A net's gradients have one size, so that s is the same every time: who arrives
while one is served waits for half of it, and not for all of it, as service times without memory have it. z and s of a
net are fitted to 1-4 workers; 5-8 are judged. (The nets of these runs are not among those whose tensors are counted, so
that s cannot be told from their sizes.)
"""

from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import least_squares

from truth.cm_dare import read_rows
from truth.scores import Row

WARM_UP = 2  # samples of a run
FITTED_WORKERS = 4


def cluster_speeds(folder: Path) -> dict[tuple[str, str], dict[int, float]]:
    """Steps per second of the whole cluster by GPU and net, by workers: the median without the warm-up."""
    samples = defaultdict(list)
    for row in read_rows(folder / "worker_scaling.csv"):
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
