"""Laws of how long a transient machine lives, in hours from its start.

A law answers with its survival function, its quantiles and seeded samples. Weibull with a shape below 1 has the many
early deaths that an exponential misses; a mixture has a share of machines that die young; a limit is the end that a
provider forces (24 h on preemptible machines of Google).

Left out: fitting (``fit_lifetime.py``), hours of the day, prices that rise before a revocation.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import InputError

Hours = NDArray[np.floating[Any]]

HOUR_S = 3600.0

_NODES = 512
_QUANTILE_STEPS = 200
_LEAST_SHAPE, _MOST_SHAPE = 0.05, 100.0


@lru_cache(maxsize=1)
def nodes_of_quadrature() -> tuple[Hours, Hours]:
    """Return places in 0 to 1 and their weights, by the rule of Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return (nodes + 1) / 2, weights / 2


def _positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{what} of a lifetime is {value:g}; it must be positive and finite")


class Lifetime(ABC):
    """How long a machine lives. What is called ``hours`` is the age since its start."""

    @abstractmethod
    def survival(self, hours: Hours | float) -> Hours:
        """Return the probability to be alive at each age; 1 up to age 0."""

    @abstractmethod
    def density(self, hours: Hours | float) -> Hours:
        """Return the density of lifetimes an hour, at ages above 0."""

    @property
    @abstractmethod
    def mean_hours(self) -> float:
        """Return the mean lifetime in hours."""

    @property
    def rate_per_hour(self) -> float | None:
        """Return the rate of loss an hour where it is the same at every age, else None."""
        return None

    @property
    def max_hours(self) -> float:
        """Return the age at which every machine ends, infinity where there is none."""
        return math.inf

    @abstractmethod
    def quantile(self, share: float) -> float:
        """Return the age in hours by which a share of the machines is gone.

        Infinity if it never is.

        Raises:
            InputError: if the share is not in [0, 1).
        """

    def sample(self, rng: np.random.Generator, count: int, age_hours: float = 0.0) -> Hours:
        """Draw the hours that machines of an age have left.

        Args:
            rng: Decides; the same generator gives the same lifetimes.
            count: How many.
            age_hours: How old the machines are, all of them alive.
        """
        alive = float(self.survival(age_hours))
        if alive <= 0:
            return np.zeros(count)
        drawn = 1 - alive * rng.random(count)
        return np.maximum(np.array([self.quantile(min(share, 1 - 1e-16)) for share in drawn]) - age_hours, 0.0)

    def lost_within(self, hours: float, age_hours: float = 0.0) -> float:
        """Return the probability that a machine of an age is lost within some hours; 1 where none is that old."""
        alive = float(self.survival(age_hours))
        return 1.0 if alive <= 0 else float(1 - self.survival(age_hours + hours) / alive)

    def mean_within(self, hours: float) -> float:
        """Return the mean of the lesser of the lifetime and some hours, by integrating the survival function."""
        part, weights = nodes_of_quadrature()
        # ages are part**4: a Weibull of a small shape falls at once
        return float(np.sum(weights * 4 * part**3 * self.survival(hours * part**4)) * hours)


@dataclass(frozen=True, slots=True)
class Weibull(Lifetime):
    """Survival ``exp(-(t / scale) ** shape)``; a shape below 1 is many early deaths, 1 is the exponential.

    Raises:
        InputError: where shape or scale is not positive.
    """

    shape: float
    scale_hours: float

    def __post_init__(self) -> None:
        _positive("scale", self.scale_hours)
        if not _LEAST_SHAPE <= self.shape <= _MOST_SHAPE:
            raise InputError(
                f"shape of a lifetime is {self.shape:g}; it must lie between {_LEAST_SHAPE:g} and {_MOST_SHAPE:g}"
            )

    def survival(self, hours: Hours | float) -> Hours:
        """Return the probability to be alive at each age."""
        alive: Hours = np.exp(-((np.maximum(hours, 0.0) / self.scale_hours) ** self.shape))
        return alive

    def density(self, hours: Hours | float) -> Hours:
        """Return the density of lifetimes an hour."""
        part = hours / self.scale_hours
        lost: Hours = self.shape / self.scale_hours * part ** (self.shape - 1) * np.exp(-(part**self.shape))
        return lost

    @property
    def mean_hours(self) -> float:
        """Return the mean lifetime in hours."""
        return self.scale_hours * math.gamma(1 + 1 / self.shape)

    def quantile(self, share: float) -> float:
        """Return the age by which a share is gone."""
        _check_share(share)
        return float(self.scale_hours * (-math.log1p(-share)) ** (1 / self.shape))

    def sample(self, rng: np.random.Generator, count: int, age_hours: float = 0.0) -> Hours:
        """Draw the hours that machines of an age have left."""
        gone = (age_hours / self.scale_hours) ** self.shape
        left: Hours = self.scale_hours * (gone + rng.exponential(size=count)) ** (1 / self.shape) - age_hours
        return left


@dataclass(frozen=True, slots=True)
class Exponential(Lifetime):
    """A machine is lost at the same rate at every age.

    Raises:
        InputError: where the mean is not positive.
    """

    # Not a bare annotation, which would take the property of Lifetime as the default.
    mean_hours: float = field()  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        _positive("mean", self.mean_hours)

    def survival(self, hours: Hours | float) -> Hours:
        """Return the probability to be alive at each age."""
        return np.exp(-np.maximum(hours, 0.0) / self.mean_hours)

    def density(self, hours: Hours | float) -> Hours:
        """Return the density of lifetimes an hour."""
        lost: Hours = np.exp(-np.asarray(hours) / self.mean_hours) / self.mean_hours
        return lost

    @property
    def rate_per_hour(self) -> float | None:
        """Return the rate of loss an hour, which is the same at every age."""
        return 1 / self.mean_hours

    def quantile(self, share: float) -> float:
        """Return the age by which a share is gone."""
        _check_share(share)
        return -self.mean_hours * math.log1p(-share)

    def sample(self, rng: np.random.Generator, count: int, age_hours: float = 0.0) -> Hours:
        """Draw the hours that machines have left, whatever their age."""
        return rng.exponential(self.mean_hours, size=count)


@dataclass(frozen=True, slots=True)
class EarlyDeaths(Lifetime):
    """A share of the machines has one lifetime, all others another.

    Raises:
        InputError: where the share lies outside 0 to 1.
    """

    share: float
    early: Lifetime
    late: Lifetime

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InputError(f"the share of early deaths is {self.share:g}; it must lie between 0 and 1")

    def survival(self, hours: Hours | float) -> Hours:
        """Return the probability to be alive at each age."""
        return self.share * self.early.survival(hours) + (1 - self.share) * self.late.survival(hours)

    def density(self, hours: Hours | float) -> Hours:
        """Return the density of lifetimes an hour."""
        return self.share * self.early.density(hours) + (1 - self.share) * self.late.density(hours)

    @property
    def mean_hours(self) -> float:
        """Return the mean lifetime in hours."""
        return self.share * self.early.mean_hours + (1 - self.share) * self.late.mean_hours

    def quantile(self, share: float) -> float:
        """Return the age by which a share is gone, by bisection between the quantiles of the two."""
        low, high = sorted((self.early.quantile(share), self.late.quantile(share)))
        for _ in range(_QUANTILE_STEPS):
            middle = (low + high) / 2
            if not low < middle < high:
                break
            low, high = (middle, high) if 1 - float(self.survival(middle)) < share else (low, middle)
        return high

    def sample(self, rng: np.random.Generator, count: int, age_hours: float = 0.0) -> Hours:
        """Draw the hours that machines of an age have left; the older, the likelier it is not one that dies early."""
        early = self.share * float(self.early.survival(age_hours))
        alive = float(self.survival(age_hours))
        is_early = rng.random(count) < (early / alive if alive > 0 else 1.0)
        return np.where(is_early, self.early.sample(rng, count, age_hours), self.late.sample(rng, count, age_hours))


@dataclass(frozen=True, slots=True)
class Limited(Lifetime):
    """A lifetime that its provider ends at a limit, whatever is still alive.

    Raises:
        InputError: where the limit is not positive.
    """

    law: Lifetime
    limit_hours: float

    def __post_init__(self) -> None:
        _positive("limit", self.limit_hours)

    def survival(self, hours: Hours | float) -> Hours:
        """Return the probability to be alive at each age; 0 from the limit on."""
        return np.where(np.asarray(hours) < self.limit_hours, self.law.survival(hours), 0.0)

    def density(self, hours: Hours | float) -> Hours:
        """Return the density of lifetimes an hour; what ends at the limit has none."""
        return np.where(np.asarray(hours) < self.limit_hours, self.law.density(hours), 0.0)

    @property
    def mean_hours(self) -> float:
        """Return the mean lifetime in hours."""
        return self.law.mean_within(self.limit_hours)

    @property
    def max_hours(self) -> float:
        """Return the age at which every machine ends."""
        return min(self.limit_hours, self.law.max_hours)

    def quantile(self, share: float) -> float:
        """Return the age by which a share is gone: the limit, where the law alone comes later."""
        return min(self.law.quantile(share), self.limit_hours)

    def sample(self, rng: np.random.Generator, count: int, age_hours: float = 0.0) -> Hours:
        """Draw the hours that machines of an age have left, up to the limit."""
        return np.clip(self.law.sample(rng, count, age_hours), 0.0, max(self.limit_hours - age_hours, 0.0))


def _check_share(share: float) -> None:
    if not 0 <= share < 1:
        raise InputError(f"a quantile is asked for at {share:g}; it must lie between 0 and 1")
