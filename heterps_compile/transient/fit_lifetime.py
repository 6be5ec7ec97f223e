"""Lifetimes that were seen, and the law fitted to them.

A machine was seen to die at an age, between two ages, or was alive when it was last seen (censored). The law is fitted
by maximum likelihood, which takes all three as they are. Errors of parameters come from a sandwich: the scores of
machines that were started or lost together are summed first, because such deaths are not independent, and take away
what their number seems to promise.

Left out: effects of hour, region and price; a law for each group of machines.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import InputError

from .lifetime import Weibull

_USUAL_SHAPE = 0.8  # that the search begins at
_STEP = 1e-4  # of logarithms, for derivatives
_MOST_ROUNDS, _ENOUGH = 200, 1e-8

Parameters = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Lifespan:
    """What was seen of machines: alive at ``after_hours``, gone at ``by_hours``, ``count`` times.

    ``by_hours`` equal to ``after_hours`` is an exact age, infinity is a machine that was alive when last seen. Machines
    of one ``group`` were started or lost together; None is a group of its own.

    Raises:
        InputError: where the ages are negative, in the wrong order or no numbers, or the count is not positive.
    """

    after_hours: float
    by_hours: float
    count: float = 1.0
    group: str | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.after_hours < math.inf and self.after_hours <= self.by_hours and self.by_hours > 0):
            raise InputError(
                f"a machine was alive at {self.after_hours:g} h and gone at {self.by_hours:g} h; "
                "both must be numbers that are not negative, the second the later one"
            )
        if not 0 < self.count < math.inf:
            raise InputError(f"{self.count:g} machines of one lifetime; the count must be positive")

    @classmethod
    def died(cls, hours: float, group: str | None = None) -> "Lifespan":
        """Return a machine that was lost at an age."""
        return cls(hours, hours, 1.0, group)

    @classmethod
    def alive(cls, hours: float, group: str | None = None) -> "Lifespan":
        """Return a machine that was alive when it was last seen."""
        return cls(hours, math.inf, 1.0, group)


@dataclass(frozen=True, slots=True)
class FittedLifetime:
    """A law with the errors of what was fitted.

    Attributes:
        law: The law of greatest likelihood.
        errors: The standard error of every fitted parameter, in parts of it, by name; groups count as one.
        log_likelihood: Of all that was seen.
        deaths: How many of the machines were seen to die.
        machines: How many there were.
    """

    law: Weibull
    errors: dict[str, float]
    log_likelihood: float
    deaths: float
    machines: float


def fit_lifetime(seen: Iterable[Lifespan], shape: float | None = None) -> FittedLifetime:
    """Fit a law to lifetimes by maximum likelihood.

    Args:
        seen: The machines.
        shape: Of the law, where it is known; 1 fits an exponential.

    Raises:
        InputError: where nothing was seen, or no machine was seen to die.
    """
    spans = tuple(seen)
    if not spans:
        raise InputError("no lifetimes are given; a law needs one machine at the least that was seen to die")
    deaths = sum(span.count for span in spans if span.by_hours < math.inf)
    machines = sum(span.count for span in spans)
    if deaths == 0:
        alive_h = sum(span.count * span.after_hours for span in spans)
        raise InputError(
            f"none of {machines:g} machines was seen to die in {alive_h:g} h; a law needs one death at the least"
        )
    lived_h = sum(
        span.count * (span.after_hours if math.isinf(span.by_hours) else (span.after_hours + span.by_hours) / 2)
        for span in spans
    )
    start = np.log([max(lived_h, 1e-9) / deaths, *([_USUAL_SHAPE] if shape is None else [])])
    likelihood = _Likelihood(spans, shape)
    best = _maximised(likelihood, start)
    errors: dict[str, float] = dict(zip(("scale_hours", "shape"), _sandwich(likelihood, best).tolist(), strict=False))
    return FittedLifetime(likelihood.law(best), errors, likelihood(best), deaths, machines)


class _Likelihood:
    """The logarithm of the likelihood of what was seen, by the logarithms of scale and shape."""

    def __init__(self, spans: tuple[Lifespan, ...], shape: float | None) -> None:
        after = np.array([span.after_hours for span in spans])
        by = np.array([span.by_hours for span in spans])
        self._exact = after == by
        self._after, self._by = after, np.where(np.isinf(by), 0.0, by)
        self._is_alive = np.isinf(by)
        self._counts = np.array([span.count for span in spans])
        self._shape = shape
        names = [span.group for span in spans]
        index = {name: number for number, name in enumerate(dict.fromkeys(name for name in names if name is not None))}
        own = itertools.count(len(index))
        self._groups = np.array([index[name] if name is not None else next(own) for name in names])

    def law(self, logs: Parameters) -> Weibull:
        """Return the law of some parameters."""
        return Weibull(math.exp(logs[1]) if self._shape is None else self._shape, math.exp(logs[0]))

    def of_each(self, logs: Parameters) -> Parameters:
        """Return the part of every row."""
        try:
            law = self.law(logs)
        except (OverflowError, InputError):
            return np.full(len(self._counts), -np.inf)
        alive = law.survival(self._after)
        gone = np.where(self._is_alive, 0.0, law.survival(self._by))
        with np.errstate(all="ignore"):
            died = law.density(np.where(self._exact, self._by, 1.0))
            part = np.log(np.where(self._exact, died, np.maximum(alive - gone, 0.0)))
        return self._counts * np.where(np.isnan(part), -np.inf, part)

    def __call__(self, logs: Parameters) -> float:
        return float(np.sum(self.of_each(logs)))

    def of_groups(self, logs: Parameters) -> Parameters:
        """Return the part of every group of machines."""
        return np.bincount(self._groups, weights=self.of_each(logs)).astype(np.float64)


def _maximised(likelihood: _Likelihood, start: Parameters) -> Parameters:
    """Maximise a likelihood by Newton's steps, each as short as it must be to get better."""
    best = start
    for _ in range(_MOST_ROUNDS):
        gradient = np.array([(likelihood(best + e) - likelihood(best - e)) / (2 * _STEP) for e in _units(best)])
        curvature = _curvature(likelihood, best)
        if not (np.isfinite(gradient).all() and np.isfinite(curvature).all()):
            break  # at the end of what a law may have
        falls, ways = np.linalg.eigh(-curvature)
        step = np.clip(ways @ (ways.T @ gradient / np.maximum(np.abs(falls), 1e-9)), -1.0, 1.0)
        while likelihood(best + step) < likelihood(best) and np.abs(step).max() > _ENOUGH:
            step = step / 2
        if np.abs(step).max() <= _ENOUGH:
            break
        best = best + step
    return best


def _units(best: Parameters) -> Parameters:
    return np.asarray(_STEP * np.eye(len(best)), np.float64)


def _curvature(likelihood: _Likelihood, best: Parameters) -> Parameters:
    """Return the second derivatives of a likelihood, by differences."""
    units = _units(best)
    rows = [
        [
            likelihood(best + a + b) - likelihood(best + a - b) - likelihood(best - a + b) + likelihood(best - a - b)
            for b in units
        ]
        for a in units
    ]
    return np.asarray(np.array(rows) / (4 * _STEP**2), np.float64)


def _sandwich(likelihood: _Likelihood, best: Parameters) -> Parameters:
    """Return the standard errors of the parameters, from the curvature and the scores of groups (Huber, White)."""
    of, units = likelihood.of_groups, _units(best)
    scores = np.array([(of(best + e) - of(best - e)) / (2 * _STEP) for e in units])
    try:
        bread = np.linalg.inv(-_curvature(likelihood, best))
    except np.linalg.LinAlgError:
        return np.full(len(best), math.inf)
    spread = np.diag(bread @ (scores @ scores.T) @ bread.T)
    return np.where(np.isfinite(spread) & (spread >= 0), np.sqrt(np.abs(spread)), math.inf)
