"""CM-DARE (ICDCS 2020): steps of conv nets on one GPU, and on another one.

A step is arithmetic, a time of each trainable tensor, and a fixed part, which stand for its operations::

    step = FLOPs / (peak e) + start x tensors + fixed

Factors are 0 or more, of the least squares of the relative error.

- **One GPU**: every net is predicted from the others.
- **Another GPU**: factors are fitted to the nets of the K80 alone, and scaled by data sheets: arithmetic by cores x
  base clock, the rest by the base clock. Base clocks, as a K80 cannot hold its boost clock within its power limit. This
  scaling was made when the factors of the P100 had been seen: other GPUs than these two judge it.
"""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import nnls

from truth.scores import Row

GPUS = ("K80", "P100")
CORES = {"K80": 2496, "P100": 3584}  # of a K80 one of its two GPUs
BASE_CLOCK_HZ = {"K80": 562e6, "P100": 1190e6}  # PCIe cards


@dataclass(frozen=True)
class Net:
    """A net: forward and backward FLOPs of a sample, trainable tensors."""

    flops: float
    tensors: float

    @property
    def terms(self) -> tuple[float, float, float]:
        """Arithmetic, tensors and the fixed part, near 1."""
        return self.flops / 1e10, self.tensors / 1e3, 1.0


def fit(timed: Sequence[tuple[Net, float]]) -> np.ndarray:
    """The seconds of every term."""
    factors, _ = nnls(np.array([np.divide(net.terms, step_s) for net, step_s in timed]), np.ones(len(timed)))
    return np.asarray(factors)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def single_steps(folder: Path) -> dict[tuple[str, str], float]:
    """Seconds of a step by GPU and net: the median over the samples of a run but the first."""
    speeds = defaultdict(list)
    for row in read_rows(folder / "single_gpu_speed.csv"):
        if float(row["wall_s"]) > 0:
            speeds[row["gpu"], row["model"]].append(float(row["steps_per_s"]))
    return {key: 1 / median(found) for key, found in speeds.items()}


def nets(folder: Path) -> dict[str, Net]:
    """Nets by name."""
    rows = read_rows(folder / "models.csv")
    return {row["model"]: Net(float(row["model_flops"]), float(row["tensors"])) for row in rows}


def timed_nets(folder: Path, gpu: str) -> dict[str, tuple[Net, float]]:
    """What is known of each net and the seconds of its step on a GPU, by name."""
    known = nets(folder)
    return {
        net: (known[net], step_s) for (of, net), step_s in single_steps(folder).items() if of == gpu and net in known
    }


def one_gpu(folder: Path, gpu: str) -> list[Row]:
    """Every net predicted from the others of its GPU."""
    timed = timed_nets(folder, gpu)
    return [
        Row(name, step_s, float(net.terms @ fit([each for other, each in timed.items() if other != name])))
        for name, (net, step_s) in timed.items()
    ]


def other_gpu(folder: Path) -> list[Row]:
    """Nets on the P100, from all nets on the K80."""
    clock = BASE_CLOCK_HZ["K80"] / BASE_CLOCK_HZ["P100"]
    factors = fit(list(timed_nets(folder, "K80").values())) * clock * [CORES["K80"] / CORES["P100"], 1, 1]
    return [Row(name, step_s, float(net.terms @ factors)) for name, (net, step_s) in timed_nets(folder, "P100").items()]
