"""By how much kinds of GPUs are slower than predicted, learned from measurements, and how far runs lie from that.

The logarithm of measured over predicted is taken as normal, with mean and variance of a kind unknown, and the conjugate
prior of both (Gelman et al., Bayesian Data Analysis, 3.3)::

    x_i   of n measurements, their mean x
    m     = n x / (1 + n)                          the factor is exp(m): one more measurement had said 1
    S     = sum of (x_i - m)^2 + m^2
    s^2   = (4 a^2 + S) / (4 + n)
    error = exp(s / sqrt(1 + n)) - 1               one standard deviation of the factor
    late  = exp(t sqrt(s^2 + max(s, a)^2 / (1 + n))) - 1
                                                   nine of ten runs are at most that much later; t: the 90 % quantile
                                                   of Student's law with 4 + n degrees of freedom

In ``late`` a source is a cluster, and all its rows count as one measurement: what they share need not hold on the next
cluster. The a is such that without any measurement ``late`` is PREDICTION_ERROR. Few sources far from 1 therefore widen
it, and many that agree narrow it. Where two kinds at least have rows, kinds without rows have the factor of all rows,
each kind counting as one, and ``late`` is no less than PREDICTION_ERROR: rows of other kinds narrow nothing.

A factor is of whole steps: all that a unit does takes so much longer, what it sends included, so that a step on
machines of one kind is the predicted one times the factor. Where it is known of every measurement what part of its
prediction is sent, and the parts differ or nothing is sent, computing and sending have factors of their own: one unit
alone says nothing of the network, which keeps its prior and widens ``late``. Both have the same prior, and in place of
the mean the least of ``sum of (log measured_i - log(c computed_i + n sent_i))^2 + log(c)^2 + log(n)^2``; ``1 / (1 +
n)`` is then the greater element on the diagonal of ``(J'J + 1)^-1``, J the derivatives by both logarithms.

Left out: the rows (``measured_runs.py``); that a kind may be right for one model and wrong for another, which is in
``late`` as far as the measurements show it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cluster.devices import DeviceType
from heterps_compile.offers.as_device import CPU
from heterps_compile.units import counted, format_percent

PREDICTION_ERROR = 1.88
"""By which part nine of ten steps are at most longer than data sheets say, on a cluster of which nothing was learned.

The quantile over eight clusters of Sailor, vTrain and CM-DARE that ``tools/bench_truth.py --only coverage`` prints.
"""

OTHERS = "*"
"""What the correction of kinds without rows calls them."""

_FREEDOM = 4  # degrees of freedom of the prior of the variance
_SHARE = 0.9
_LEAST_ROWS = 3  # that tell computing and sending apart
_SHARES_DIFFER = 0.2  # of their predictions, from the least to the greatest
_MOST_ROUNDS = 100
_ENOUGH = 1e-12

Logs = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Correction:
    """What was learned of one kind.

    Attributes:
        gpu: The kind as offers spell it; "" for virtual CPUs, OTHERS for all kinds without rows.
        rows: How many measurements it is from.
        factor: Times the predicted step.
        error: One standard deviation of the factor, as a part of it.
        late: By which part nine of ten runs are at most longer than the corrected prediction.
        sending: Times what is predicted of sending, where it is told apart from computing, which the factor is of then;
            None where the factor is of both.
        sending_error: One standard deviation of it; None likewise.
    """

    gpu: str
    rows: int
    factor: float
    error: float
    late: float
    sending: float | None = None
    sending_error: float | None = None

    @property
    def of_sending(self) -> float:
        """Return by what everything that units send is slowed."""
        return self.factor if self.sending is None else self.sending

    @property
    def words(self) -> str:
        """Return the correction in words: "v100 takes 1.31 (± 4 %) times as long, from 5 rows"."""
        name, rows = {"": CPU, OTHERS: "a kind without rows"}.get(self.gpu, self.gpu), counted(self.rows, "row")
        late = f"nine of ten runs are at most {format_percent(100 * self.late)} later"
        error = format_percent(100 * self.error)
        if self.sending is None or self.sending_error is None:
            return f"{name} is taken to need {self.factor:.3g} times what is predicted (± {error}, from {rows}); {late}"
        return (
            f"{name} is taken to compute {self.factor:.3g} (± {error}) and to send {self.sending:.3g} (± "
            f"{format_percent(100 * self.sending_error)}) times as long as predicted, from {rows}; {late}"
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
        """Return the correction of a kind, that of others where it has no rows; None where neither was learned."""
        found = {each.gpu: each for each in self.corrections}
        return found.get(gpu, found.get(OTHERS))

    def factor(self, gpu: str) -> float:
        """Return by what steps on a kind are multiplied; 1 where none was measured."""
        correction = self.of(gpu)
        return 1.0 if correction is None else correction.factor

    def most_since(self, before: "Learned", gpu: str) -> float:
        """Return by what a step on a kind is at most multiplied that was predicted with what was learned before."""
        now, then = self.of(gpu), before.of(gpu)
        computing = (1.0 if now is None else now.factor) / (1.0 if then is None else then.factor)
        sending = (1.0 if now is None else now.of_sending) / (1.0 if then is None else then.of_sending)
        return max(computing, sending)

    def late(self, gpus: Iterable[str]) -> float:
        """Return by which part nine of ten runs on these kinds are at most longer; the most of theirs."""
        found = (self.of(gpu) for gpu in gpus)
        return max(PREDICTION_ERROR if each is None else each.late for each in found)

    def corrected(self, device: DeviceType, gpu: str) -> DeviceType:
        """Return units of a kind for which everything takes as long as was learned."""
        correction = self.of(gpu)
        return device if correction is None else slowed(device, correction.factor, correction.of_sending)


NOTHING = Learned()
"""No measurements."""


def slowed(device: DeviceType, factor: float, sending: float | None = None) -> DeviceType:
    """Return units on which everything takes ``factor`` times as long, and what they send ``sending`` times."""
    sent = factor if sending is None else sending
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
        network_bytes_per_s=device.network_bytes_per_s / sent,
        network_latency_s=device.network_latency_s * sent,
        input_bytes_per_s=device.input_bytes_per_s / factor,
        shared_input_bytes_per_s=device.shared_input_bytes_per_s / factor,
        launch_s=device.launch_s * factor,
        inner_bytes_per_s=device.inner_bytes_per_s / sent,
        inner_latency_s=device.inner_latency_s * sent,
        rates=rates,
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """A measured step, and the parts of what was predicted of it.

    Attributes:
        measured_s: The step.
        computed_s: Of the prediction, above 0.
        sent_s: Of the prediction; 0 on one unit, None where ``computed_s`` is of both.
    """

    measured_s: float
    computed_s: float
    sent_s: float | None

    @property
    def share(self) -> float:
        """Return which part of the prediction is sent."""
        return (self.sent_s or 0.0) / (self.computed_s + (self.sent_s or 0.0))


def learn(
    ratios: Mapping[str, Sequence[float]],
    source: str = "",
    notes: Sequence[str] = (),
    *,
    parts: Mapping[str, Sequence[Parts]] = MappingProxyType({}),
    sources: Mapping[str, Sequence[str]] = MappingProxyType({}),
    unknown: float = PREDICTION_ERROR,
) -> Learned:
    """Return the corrections of kinds.

    Args:
        ratios: Measured over predicted steps by kind, all above 0.
        source: What messages call the file.
        notes: What of it did not count.
        parts: The kinds whose rows tell computing and sending apart, in place of their ratios.
        sources: Of the rows by kind; each row is a source where a kind has none.
        unknown: By which part nine of ten runs are at most longer without any measurement.
    """
    before = math.log1p(unknown) / (student_quantile(_SHARE, _FREEDOM) * math.sqrt(2))
    found, shares, logs = [], [], []
    for gpu, of in sorted(ratios.items()):
        if of or parts.get(gpu):
            rows = parts.get(gpu) or [Parts(ratio, 1.0, None) for ratio in of]
            names = sources.get(gpu) or range(len(rows))
            weights = np.array([1 / Counter(names)[name] for name in names])
            found.append(_correction(gpu, rows, np.ones(len(rows)), weights, before))
            shares.append(weights / weights.sum())
            logs += [Parts(each.measured_s, each.computed_s + (each.sent_s or 0.0), None) for each in rows]
    if len(found) > 1:
        others = _correction(OTHERS, logs, np.concatenate(shares), np.concatenate(shares), before)
        found.append(replace(others, late=max(others.late, unknown)))
    return Learned(tuple(found), source, tuple(notes))


def can_be_told_apart(parts: Sequence[Parts]) -> bool:
    """Return whether measurements tell computing and sending apart: three of parts that differ, or all send nothing."""
    shares = [each.share for each in parts]
    return max(shares) == 0 or (len(shares) >= _LEAST_ROWS and max(shares) - min(shares) >= _SHARES_DIFFER)


def _correction(gpu: str, rows: Sequence[Parts], weights: Logs, of_sources: Logs, before: float) -> Correction:
    """Fit one factor, or two.

    Args:
        gpu: The kind.
        rows: Its rows.
        weights: Of the rows in the factors.
        of_sources: Of the rows in how far runs are from the factors.
        before: The deviation without any row.
    """
    measured = np.log([each.measured_s for each in rows])
    seconds = np.array([[each.computed_s] if each.sent_s is None else [each.computed_s, each.sent_s] for each in rows])

    def squares(logs: Logs, weights: Logs = weights) -> float:
        return float(weights @ (measured - np.log(seconds @ np.exp(logs))) ** 2 + logs @ logs)

    def slopes(logs: Logs) -> Logs:
        each = seconds * np.exp(logs)
        return np.asarray(each / each.sum(axis=1, keepdims=True), np.float64)

    def spreads(logs: Logs, weights: Logs = weights) -> Logs:
        return np.asarray(np.linalg.inv((slopes(logs).T * weights) @ slopes(logs) + np.eye(len(logs))), np.float64)

    def deviation(weights: Logs) -> float:
        return math.sqrt((_FREEDOM * before**2 + squares(logs, weights)) / (_FREEDOM + weights.sum()))

    logs = np.zeros(seconds.shape[1])
    for _ in range(_MOST_ROUNDS):  # of Gauss and Newton, each step as short as it must be to get better
        residuals = measured - np.log(seconds @ np.exp(logs))
        step = spreads(logs) @ (slopes(logs).T @ (weights * residuals) - logs)
        while squares(logs + step) > squares(logs) and np.abs(step).max() > _ENOUGH:
            step = step / 2
        logs = logs + step
        if np.abs(step).max() <= _ENOUGH:
            break
    errors = np.expm1(deviation(weights) * np.sqrt(np.diag(spreads(logs)))).tolist()
    of_run, of_factor = deviation(of_sources), max(deviation(of_sources), before)
    wide = math.hypot(of_run, of_factor * math.sqrt(np.diag(spreads(logs, of_sources)).max()))
    late = math.expm1(student_quantile(_SHARE, _FREEDOM + round(of_sources.sum())) * wide)
    (factor, *sending), (error, *sending_error) = np.exp(logs).tolist(), errors
    return Correction(gpu, len(rows), factor, error, late, *sending, *sending_error)


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
