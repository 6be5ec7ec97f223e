"""What a run on transient machines is expected to take and to cost, in closed form.

Let ``X`` be the seconds of work and checkpoints without a loss, ``L = interval + checkpoint`` and ``D`` the start-up.
Every machine is replaced when it is lost, so its losses are a renewal process of its lifetime; those of all machines,
``M (t)``, are the sum of independent ones, of ``r = E M (X) / X`` a second. Where a loss stops all, it costs ``W`` of
waiting and ``R`` of work that is done again::

    R = E [u exp(-q u)] / E [exp(-q u)]                     u: the lifetime modulo L
    W = (exp(q D) - 1) / q                                  q: losses a second of the other machines
    P(m losses) = X / (X + m R) P(M(X + m R) = m)           Takacs' ballot theorem; for exponentials a Poisson law
    T = D + X + m W + (sum of m draws of mean R)            of Consul and Jain, of mean r X / (1 - r R)

For exponentials ``R = 1 / r - L / (exp(r L) - 1)``, and the mean is exact: that of ``(exp(r L) - 1) / r`` a stretch
(Daly 2006).

The distribution of a machine's renewals is the convolution of its lifetime with itself, on a grid by FFT
(``renewals.py``); of more than ``_MOST_LOSSES`` losses, the normal law with the moments of renewal theory.

Left out, and of second order in (start-up + interval) / (time between losses): that machines grow older while they
wait for another.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import InfeasibleError

from .lifetime import HOUR_S, Weibull
from .renewals import mean_renewals, renewal_chances, variance_of_renewals
from .transient_work import TransientWork

_MOST_LOSSES = 1024
_LEAST_GAIN = 0.02
_FREE_CHECKPOINT = 1e-9
"""A checkpoint that costs nothing is taken to cost this part of the work, so that there is a best interval."""

_PHASES = 64
_MOST_STRETCHES = 1000
_MOST_IN_STRETCH = 30.0
_NORMAL = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)), otypes=[float])

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity that chance decides.

    Attributes:
        mean: Its mean.
        median: Half of all runs have less.
        most: Nine of ten runs have less.
    """

    mean: float
    median: float
    most: float


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs by their number of losses: how likely, and the mean and deviation of the time of each.

    A run with one loss has an even draw of work that is done again; sums of more are taken as normal.
    """

    chances: Array
    means_s: Array
    deviations_s: Array

    def share_within(self, time_s: float) -> float:
        """Return the probability that a run takes no longer."""
        over = time_s - self.means_s
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(self.deviations_s > 0, _NORMAL(over / self.deviations_s), over >= -1e-9 * self.means_s)
            if len(over) > 1 and self.deviations_s[1] > 0:
                shares[1] = np.clip(0.5 + over[1] / (self.deviations_s[1] * math.sqrt(12)), 0.0, 1.0)
        return float(self.chances @ shares)

    def quantile(self, share: float) -> float:
        """Return the least time within which a share of the runs ends."""
        low, high = 0.0, float(np.max(self.means_s + 9 * self.deviations_s))
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.share_within(middle) >= share else (middle, high)
        return high


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """What a run takes and costs, and why.

    Attributes:
        time_s: From when the machines are asked for to the last step.
        money: In the currency of the prices.
        losses: How many machines are lost, in the mean.
        interval_s: Of computing between two checkpoints; None where none is written.
        runs: The distribution of the time.
    """

    time_s: Spread
    money: Spread
    losses: float
    interval_s: float | None
    runs: "_Runs"

    def chance_within(self, time_s: float) -> float:
        """Return the probability that the run takes no longer than some seconds."""
        return self.runs.share_within(time_s)


def expect_run(work: TransientWork) -> ExpectedRun:
    """Return time and money of a run with their mean, median and 90 % quantile.

    Raises:
        InfeasibleError: where losses come so often that the run does not end.
    """
    recovery = work.recovery
    interval_s = _best_interval_s(work) if recovery.interval_s is None else recovery.interval_s
    computing_s = work.computing_s(interval_s)
    rate = _losses(work, computing_s) / computing_s
    redone_s, spread_s = _redone(work, interval_s, rate)
    if 1 - rate * redone_s < _LEAST_GAIN:
        raise InfeasibleError(
            f"{work.described()} lose one every {1 / rate:,.0f} s of computing, and a loss undoes {redone_s:,.0f} s in "
            "the mean: the run does not end; checkpoint more often, or take machines that stay"
        )
    chances = _chances_of_losses(work, computing_s, redone_s)
    stops = np.arange(len(chances))
    waiting_s, losses_of_stop = _waiting(work, rate)
    means_s = work.first_start_s + computing_s + stops * (waiting_s + redone_s)
    runs = _Runs(chances, means_s, np.sqrt(stops) * spread_s)
    stopped = float(chances @ stops)
    time_s = Spread(float(chances @ means_s), runs.quantile(0.5), runs.quantile(0.9))
    return ExpectedRun(
        time_s=time_s,
        money=Spread(work.money(time_s.mean), work.money(time_s.median), work.money(time_s.most)),
        losses=stopped * losses_of_stop,
        interval_s=interval_s,
        runs=runs,
    )


def _best_interval_s(work: TransientWork) -> float | None:
    """Return the seconds of computing between checkpoints of the least expected time; None where a loss undoes no work.

    The mean of the closed form is minimised by golden section: that is Daly's interval for an exponential, and for
    every other law that of its losses within this run.
    """
    if not work.transient:
        return None
    rate = _losses(work, work.work_s) / work.work_s
    checkpoint_s = max(work.recovery.checkpoint_s, _FREE_CHECKPOINT * work.work_s)
    young_s = math.sqrt(2 * checkpoint_s / rate) if rate > 0 else work.work_s

    def longer(interval_s: float) -> float:
        stretch_s = interval_s + checkpoint_s
        return math.expm1(min(rate * stretch_s, 700.0)) / interval_s

    best_s = _least_of(longer, young_s / 10, young_s * 2)
    return min(best_s, work.work_s)


def _least_of(function: Callable[[float], float], low: float, high: float) -> float:
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


def _losses(work: TransientWork, time_s: float) -> float:
    """Return how many machines are lost within some seconds, in the mean."""
    return sum(kind.count * mean_renewals(kind.lifetime, time_s) for kind in work.machines if kind.lifetime is not None)


def _redone(work: TransientWork, interval_s: float | None, rate: float) -> tuple[float, float]:
    """Return the mean and the standard deviation of the seconds of work that a loss undoes."""
    if rate == 0:
        return 0.0, 0.0
    whole = interval_s is None or interval_s >= work.work_s
    stretch_s = work.work_s if whole or interval_s is None else interval_s + work.recovery.checkpoint_s
    lost = _losses(work, work.work_s)
    moments = np.zeros(2)
    for kind in work.transient:
        if kind.lifetime is not None:
            number = kind.count * mean_renewals(kind.lifetime, work.work_s)
            others = rate * (1 - number / lost / kind.count) * HOUR_S
            moments += number / lost * _phase(kind.lifetime, stretch_s / HOUR_S, work.work_s / HOUR_S, others)
    mean_hours, square_h = moments.tolist()
    return mean_hours * HOUR_S, math.sqrt(max(square_h - mean_hours**2, 0.0)) * HOUR_S


def _phase(law: Weibull, stretch_h: float, work_h: float, others_per_h: float) -> Array:
    """Return the mean and the mean square of the hours since the last checkpoint when a machine is lost.

    Stretches begin when the machine does, and anew with every loss of others, so that the later part of one is seldom
    reached.
    """
    stretches = min(max(math.ceil(work_h / stretch_h), 1), _MOST_STRETCHES)
    edges = np.linspace(0.0, stretch_h, _PHASES + 1)
    alive = law.survival(stretch_h * np.arange(stretches)[:, None] + edges)
    died = np.maximum(alive[:, :-1] - alive[:, 1:], 0.0).sum(axis=0)
    # what dies later than was looked at is spread evenly
    rest = float(alive[-1, -1] - law.survival(work_h)) if stretches == _MOST_STRETCHES else 0.0
    middles = (edges[:-1] + edges[1:]) / 2
    weights = (died + max(rest, 0.0) / _PHASES) * np.exp(-others_per_h * middles)
    weights = weights / weights.sum() if weights.sum() > 0 else np.full(_PHASES, 1 / _PHASES)
    return np.array([weights @ middles, weights @ middles**2 + (stretch_h / _PHASES) ** 2 / 12])


def _waiting(work: TransientWork, rate: float) -> tuple[float, float]:
    """Return the seconds that a loss costs beside what it undoes, and how many losses come together in one."""
    recovery = work.recovery
    if rate == 0:
        return recovery.start_up_s, 1.0
    may_go = sum(kind.count for kind in work.transient)
    others = rate * (may_go - 1) / may_go * recovery.start_up_s
    if others > _MOST_IN_STRETCH:
        raise InfeasibleError(
            f"{work.described()} lose one every {1 / rate:,.0f} s, and starting another takes "
            f"{recovery.start_up_s:,.0f} s: they are never all there; take fewer, or machines that stay"
        )
    together = math.exp(others)
    return recovery.start_up_s * (math.expm1(others) / others if others > 0 else 1.0), together


def _chances_of_losses(work: TransientWork, computing_s: float, redone_s: float) -> Array:
    """Return the probabilities of 0, 1, 2, ... losses during a run; they sum to 1."""
    kinds = [(kind.count, kind.lifetime) for kind in work.machines if kind.lifetime is not None]
    mean = _losses(work, computing_s)
    if mean == 0:
        return np.ones(1)
    gain = 1 - redone_s * mean / computing_s
    deviation = math.sqrt(sum(count * variance_of_renewals(law, computing_s) for count, law in kinds) + 1) / gain**1.5
    most = int(mean / gain + 9 * deviation + 12)
    if most > _MOST_LOSSES:
        numbers = np.arange(most + 1)
        return _normed(np.exp(-(((numbers - mean / gain) / deviation) ** 2) / 2))
    times_s = computing_s + redone_s * np.arange(most + 1)
    size = 1 << (2 * most + 2).bit_length()
    product = np.ones((most + 1, size // 2 + 1), dtype=complex)
    for count, law in kinds:
        product = product * np.fft.rfft(renewal_chances(law, times_s, most + 1), size, axis=1) ** count
    each = np.fft.irfft(product, size, axis=1)
    return _normed(np.maximum(np.diag(each[:, : most + 1]), 0.0) * computing_s / times_s)


def _normed(chances: Array) -> Array:
    summed: Array = chances / chances.sum()
    return summed
