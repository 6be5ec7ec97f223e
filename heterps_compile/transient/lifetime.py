"""The law of how long a transient machine lives, in hours from its start: a Weibull.

A shape below 1 has the many early deaths that are seen of spot machines; at shape 1 a machine is lost at the same rate
at every age, as an exponential law has it.

Left out: fitting (``fit_lifetime.py``), ends that a provider forces, hours of the day, prices that rise before a loss.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import InputError

Hours = NDArray[np.floating[Any]]

HOUR_S = 3600.0

_NODES = 512
_LEAST_SHAPE, _MOST_SHAPE = 0.05, 100.0


@dataclass(frozen=True, slots=True)
class Weibull:
    """Survival ``exp(-(t / scale) ** shape)`` to age t.

    Raises:
        InputError: where shape or scale is not positive.
    """

    shape: float
    scale_hours: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale_hours) and self.scale_hours > 0):
            raise InputError(f"scale of a lifetime is {self.scale_hours:g}; it must be positive and finite")
        if not _LEAST_SHAPE <= self.shape <= _MOST_SHAPE:
            raise InputError(
                f"shape of a lifetime is {self.shape:g}; it must lie between {_LEAST_SHAPE:g} and {_MOST_SHAPE:g}"
            )

    @property
    def rate_per_hour(self) -> float | None:
        """Return the losses an hour if they are the same at every age, else None."""
        return 1 / self.scale_hours if self.shape == 1 else None

    @property
    def mean_hours(self) -> float:
        """Return the mean lifetime in hours."""
        return self.scale_hours * math.gamma(1 + 1 / self.shape)

    @property
    def variance(self) -> float:
        """Return the variance of a lifetime in squared hours."""
        return self.scale_hours**2 * math.gamma(1 + 2 / self.shape) - self.mean_hours**2

    def survival(self, hours: Hours | float) -> Hours:
        """Compute the probability to be alive at each age; 1 up to age 0."""
        alive: Hours = np.exp(-((np.maximum(hours, 0.0) / self.scale_hours) ** self.shape))
        return alive

    def density(self, hours: Hours | float) -> Hours:
        """Compute the density of lifetimes an hour, at ages above 0."""
        part = hours / self.scale_hours
        lost: Hours = self.shape / self.scale_hours * part ** (self.shape - 1) * np.exp(-(part**self.shape))
        return lost

    def quantile(self, share: float) -> float:
        """Compute the age in hours by which a share of the machines is gone.

        Raises:
            InputError: if the share is not in [0, 1).
        """
        if not 0 <= share < 1:
            raise InputError(f"a quantile is asked for at {share:g}; it must lie between 0 and 1")
        return float(self.scale_hours * (-math.log1p(-share)) ** (1 / self.shape))

    def sample(self, rng: np.random.Generator, count: int) -> Hours:
        """Draw lifetimes in hours; the same generator draws the same ones."""
        drawn: Hours = self.scale_hours * rng.exponential(size=count) ** (1 / self.shape)
        return drawn

    def lost_within(self, hours: float) -> float:
        """Compute the probability that a machine is lost within some hours."""
        return float(1 - self.survival(hours))

    def mean_within(self, hours: float) -> float:
        """Integrate the survival up to an age: the mean of the lesser of the two, by Gauss and Legendre's rule."""
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        part = (nodes + 1) / 2
        # ages are part**4: with a small shape the law falls at once
        return float(np.sum(weights / 2 * 4 * part**3 * self.survival(hours * part**4)) * hours)


def exponential(mean_hours: float) -> Weibull:
    """Return the law of machines that are lost at one rate at every age."""
    return Weibull(1.0, mean_hours)
