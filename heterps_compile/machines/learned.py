"""By how much kinds of GPUs are slower than predicted, learned from measurements, and how far runs lie from that.

The logarithm of measured over predicted is taken as normal, with mean and variance of a kind unknown, and the conjugate
prior of both (Gelman et al., Bayesian Data Analysis, 3.3)::

    x_i   of n measurements, their mean x, squares S = sum of (x_i - x)^2
    m     = n x / (1 + n)                          the factor is exp(m): one more measurement had said 1
    s^2   = (4 a^2 + S + x^2 n / (1 + n)) / (4 + n)
    error = exp(s / sqrt(1 + n)) - 1               one standard deviation of the factor
    late  = exp(t s sqrt(1 + 1 / (1 + n))) - 1     nine of ten runs are at most that much later; t: the 90 % quantile
                                                   of Student's law with 4 + n degrees of freedom

The a is such that without any measurement ``late`` is the 12.8 % that everything else is held to. Few measurements
far from 1 therefore widen it, and many that agree narrow it.

A factor is of whole steps: all that a unit does takes so much longer, what it sends included, so that a step on
machines of one kind is the predicted one times the factor.

Left out: the rows (``measured_runs.py``); that a kind may be right for one model and wrong for another, which is in
``late`` as far as the measurements show it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from heterps_compile.cluster.devices import DeviceType
from heterps_compile.offers.as_device import CPU
from heterps_compile.units import counted, format_percent

PREDICTION_ERROR = 0.128
"""By which part nine of ten trainings are at most longer than predicted (``docs/truth.md``)."""

_ROWS_BEFORE = 1  # measurements of 1 that the prior of the mean is worth
_FREEDOM = 4  # degrees of freedom of the prior of the variance
_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Correction:
    """What was learned of one kind.

    Attributes:
        gpu: The kind as offers spell it; "" for virtual CPUs.
        rows: How many measurements it is from.
        factor: Times the predicted step.
        error: One standard deviation of the factor, as a part of it.
        late: By which part nine of ten runs are at most longer than the corrected prediction.
    """

    gpu: str
    rows: int
    factor: float
    error: float
    late: float

    @property
    def words(self) -> str:
        """Return the correction in words: "v100 takes 1.31 (± 4 %) times as long, from 5 rows"."""
        return (
            f"{self.gpu or CPU} is taken to need {self.factor:.3g} times what is predicted (± "
            f"{format_percent(100 * self.error)}, from {counted(self.rows, 'row')}); nine of ten runs are at most "
            f"{format_percent(100 * self.late)} later"
        )


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned of all kinds.

    Attributes:
        corrections: Of the kinds that were measured, each once.
        source: The file, as messages call it; "" for none.
        notes: What of the file did not count, in sentences.
    """

    corrections: tuple[Correction, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()

    def of(self, gpu: str) -> Correction | None:
        """Return the correction of a kind; None where none was measured."""
        return next((each for each in self.corrections if each.gpu == gpu), None)

    def factor(self, gpu: str) -> float:
        """Return by what steps on a kind are multiplied; 1 where none was measured."""
        correction = self.of(gpu)
        return 1.0 if correction is None else correction.factor

    def late(self, gpus: Iterable[str]) -> float:
        """Return by which part nine of ten runs on these kinds are at most longer; the most of theirs."""
        found = (self.of(gpu) for gpu in gpus)
        return max(PREDICTION_ERROR if each is None else each.late for each in found)

    def corrected(self, device: DeviceType, gpu: str) -> DeviceType:
        """Return units of a kind for which everything takes as long as was learned."""
        correction = self.of(gpu)
        return device if correction is None else slowed(device, correction.factor)


NOTHING = Learned()
"""No measurements."""


def slowed(device: DeviceType, factor: float) -> DeviceType:
    """Return units on which everything takes ``factor`` times as long."""
    rates = {
        kind: replace(
            rate,
            start_s=rate.start_s * factor,
            flops_per_s=rate.flops_per_s / factor,
            bytes_per_s=rate.bytes_per_s / factor,
            gradient_bytes_per_s=rate.gradient_bytes_per_s / factor,
        )
        for kind, rate in device.rates.items()
    }
    return replace(
        device,
        peak_flops={dtype: flops / factor for dtype, flops in device.peak_flops.items()},
        memory_bytes_per_s=device.memory_bytes_per_s / factor,
        network_bytes_per_s=device.network_bytes_per_s / factor,
        network_latency_s=device.network_latency_s * factor,
        input_bytes_per_s=device.input_bytes_per_s / factor,
        shared_input_bytes_per_s=device.shared_input_bytes_per_s / factor,
        launch_s=device.launch_s * factor,
        inner_bytes_per_s=device.inner_bytes_per_s / factor,
        inner_latency_s=device.inner_latency_s * factor,
        rates=rates,
    )


def learn(ratios: Mapping[str, Sequence[float]], source: str = "", notes: Sequence[str] = ()) -> Learned:
    """Return the corrections of kinds from measured over predicted steps, all above 0."""
    found = (_correction(gpu, [math.log(ratio) for ratio in of]) for gpu, of in sorted(ratios.items()) if of)
    return Learned(tuple(found), source, tuple(notes))


def _correction(gpu: str, logs: Sequence[float]) -> Correction:
    count = len(logs)
    mean = math.fsum(logs) / count
    squares = math.fsum((each - mean) ** 2 for each in logs)
    all_rows = _ROWS_BEFORE + count
    variance = _FREEDOM * _deviation_before() ** 2 + squares + mean**2 * _ROWS_BEFORE * count / all_rows
    freedom = _FREEDOM + count
    deviation = math.sqrt(variance / freedom)
    late = student_quantile(_SHARE, freedom) * deviation * math.sqrt(1 + 1 / all_rows)
    return Correction(
        gpu, count, math.exp(count * mean / all_rows), math.expm1(deviation / math.sqrt(all_rows)), math.expm1(late)
    )


def _deviation_before() -> float:
    """Return the deviation that has nine of ten runs at most 12.8 % late where nothing was measured."""
    wide = student_quantile(_SHARE, _FREEDOM) * math.sqrt(1 + 1 / _ROWS_BEFORE)
    return math.log1p(PREDICTION_ERROR) / wide


def student_quantile(share: float, freedom: int) -> float:
    """Return the quantile of a share above a half of Student's law with whole degrees of freedom."""
    low, high = 0.0, 1.0
    while _student_within(high, freedom) < 2 * share - 1:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, freedom) < 2 * share - 1 else (low, middle)
    return high


def _student_within(t: float, freedom: int) -> float:
    """Return P(|T| < t); the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    is_odd = freedom % 2
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for power in range(1 + is_odd, freedom, 2):
        total += term
        term *= square * power / (power + 1)
    found = math.sin(angle) * total
    return 2 / math.pi * (angle + found) if is_odd else found
