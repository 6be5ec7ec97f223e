"""How long a checkpoint takes, from what is in it, and how often one is worth its time.

The time of a checkpoint is ``start + bytes / rate + tensors x per_tensor``, fitted to measurements by relative least
squares. The interval is Young's or Daly's for machines that are lost at a constant rate, and the one that keeps most
of a machine's life for any other lifetime.

Left out: checkpoints that are written while the run goes on; storage that slows down under several writers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heterps_compile.errors import InputError

from .lifetime import HOUR_S, Lifetime

_MOST_STRETCHES = 20_000


@dataclass(frozen=True, slots=True)
class MeasuredCheckpoint:
    """A checkpoint that was timed.

    Raises:
        InputError: where a number is negative or no number, or the time is 0.
    """

    size_bytes: float
    tensors: float
    time_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.size_bytes < math.inf and 0 <= self.tensors < math.inf and 0 < self.time_s < math.inf):
            raise InputError(
                f"a checkpoint of {self.size_bytes:g} bytes and {self.tensors:g} tensors took {self.time_s:g} s; "
                "sizes must not be negative, and the time must be positive"
            )


@dataclass(frozen=True, slots=True)
class CheckpointTime:
    """The time of a checkpoint by its size and its number of tensors; each part may be 0.

    Attributes:
        start_s: Of a checkpoint with nothing in it.
        s_per_byte: Of each byte.
        s_per_tensor: Of each tensor.
        error: Root mean square error of the fit, in parts of the time.
    """

    start_s: float
    s_per_byte: float
    s_per_tensor: float
    error: float = 0.0

    def of(self, size_bytes: float, tensors: float) -> float:
        """Return the seconds of a checkpoint."""
        return self.start_s + self.s_per_byte * size_bytes + self.s_per_tensor * tensors


def fit_checkpoint_time(measured: Sequence[MeasuredCheckpoint]) -> CheckpointTime:
    """Fit the parts to measurements, none of them below 0, by least squares of relative errors.

    Raises:
        InputError: where nothing was measured.
    """
    if not measured:
        raise InputError("no checkpoints were measured; their time needs one at the least")
    times = np.array([one.time_s for one in measured])
    parts = np.array([[1.0, one.size_bytes, one.tensors] for one in measured]) / times[:, None]
    scales = np.maximum(np.abs(parts).max(axis=0), 1e-300)
    found = np.zeros(3)
    best = math.inf
    # eight subsets: the least squares that are not negative, exactly
    for chosen in range(1, 8):
        columns = [column for column in range(3) if chosen >> column & 1]
        solution = np.linalg.lstsq(parts[:, columns] / scales[columns], np.ones(len(times)), rcond=None)[0]
        error = float(np.mean((parts[:, columns] / scales[columns] @ solution - 1) ** 2))
        if (solution >= 0).all() and error < best - 1e-12:
            best = error
            found = np.zeros(3)
            found[columns] = solution / scales[columns]
    start_s, per_byte, per_tensor = found.tolist()
    return CheckpointTime(start_s, per_byte, per_tensor, math.sqrt(best))


def young_interval(checkpoint_s: float, mean_s: float) -> float:
    """Return Young's seconds of computing between checkpoints, ``sqrt(2 C M)`` (1974)."""
    _check_times(checkpoint_s, mean_s)
    return math.sqrt(2 * checkpoint_s * mean_s)


def daly_interval(checkpoint_s: float, mean_s: float) -> float:
    """Return Daly's seconds of computing between checkpoints, of higher order (2006, equation 37)."""
    _check_times(checkpoint_s, mean_s)
    if checkpoint_s >= 2 * mean_s:
        return mean_s
    part = math.sqrt(checkpoint_s / (2 * mean_s))
    return math.sqrt(2 * checkpoint_s * mean_s) * (1 + part / 3 + part**2 / 9) - checkpoint_s


def best_interval(checkpoint_s: float, lifetime: Lifetime, restart_s: float = 0.0) -> float:
    """Return the seconds of computing between checkpoints that keep the largest part of a machine's life.

    A life keeps ``T (S(T + C) + S(2 (T + C)) + ...)`` of its mean and the restart; that is greatest at the interval.
    """
    mean_s = lifetime.mean_hours * HOUR_S
    _check_times(checkpoint_s, mean_s)

    def kept(interval_s: float) -> float:
        stretch_h = (interval_s + checkpoint_s) / HOUR_S
        ends = stretch_h * np.arange(1, _MOST_STRETCHES + 1)
        sums = lifetime.survival(ends)
        rest_h = max(lifetime.mean_hours - lifetime.mean_within(float(ends[-1])), 0.0)
        return -interval_s * (float(sums.sum()) + rest_h / stretch_h) / (mean_s + restart_s)

    young_s = young_interval(checkpoint_s, mean_s)
    return least_of(kept, young_s / 100, young_s * 4)


def least_of(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function of one positive number with one valley is least, to a part in 10^7, by golden section."""
    golden = (math.sqrt(5) - 1) / 2
    low, high = math.log(low), math.log(high)
    inner = [high - golden * (high - low), low + golden * (high - low)]
    values = [function(math.exp(place)) for place in inner]
    while high - low > 1e-7:
        if values[0] <= values[1]:
            high = inner[1]
            inner = [high - golden * (high - low), inner[0]]
            values = [function(math.exp(inner[0])), values[0]]
        else:
            low = inner[0]
            inner = [inner[1], low + golden * (high - low)]
            values = [values[1], function(math.exp(inner[1]))]
    return math.exp((low + high) / 2)


def _check_times(checkpoint_s: float, mean_s: float) -> None:
    if not (0 < checkpoint_s < math.inf and 0 < mean_s < math.inf):
        raise InputError(
            f"a checkpoint of {checkpoint_s:g} s and machines that live {mean_s:g} s in the mean; both must be positive"
        )
