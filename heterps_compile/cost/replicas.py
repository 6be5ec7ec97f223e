"""How long a stage takes with k replicas, how many it needs, and how many are best: formulas on arrays of stages.

Legend (HeterPS, arXiv 2111.10635, section 4): C the computation of a batch on one unit, D its data movement, alpha
and beta their parallel fractions, s the synchronisation among replicas, g what the storage behind all replicas takes
for a batch (so that k of them are as fast as ``min(r k, cap)``), p the price of a unit, tau the time of a
batch in the slowest stage (batch / throughput)::

    ET(k)    = max(C (1 - alpha) + C alpha / k,  D (1 - beta) + D beta / k + (s if k > 1),  g)
    units(x) = the smallest k with ET(k) <= x
    price of a batch = tau * sum over stages of p k

An exact search needs a lower bound on ``k tau`` for *every* tau up to some x
(:meth:`ReplicaDemand.units_and_bound`):

1. ``k tau >= k ET(k) >= max(C, D)``: replicas never do the same work in fewer unit-seconds than one does;
2. ``k tau >= tau max(C alpha / (tau - C (1 - alpha)), ...)``, which does not decrease as tau falls: take it at x.

Left out: which layers a stage has (``segments.py``), limits on units (``best_units.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .problem import Bools, Floats, Ints

TIME_TOLERANCE = 1e-12
"""Relative: rounding of sums must not cost a replica."""


@dataclass(frozen=True, slots=True, eq=False)
class StageWork:
    """The work of many stages for one batch; all arrays broadcast together.

    Attributes:
        compute_s: C.
        data_s: D.
        sync_s: s.
        compute_parallel: alpha.
        data_parallel: beta.
        shared_s: g; None where it is 0 for all.
    """

    compute_s: Floats
    data_s: Floats
    sync_s: Floats
    compute_parallel: Floats
    data_parallel: Floats
    shared_s: Floats | None = None

    def take(self, index: object) -> "StageWork":
        """Return the work of some of the stages; every array must have the full shape."""
        return StageWork(*(_taken(getattr(self, name), index) for name in self.__slots__))  # type: ignore[arg-type]  # only shared_s may be None

    def compute_time_s(self, units: Floats) -> Floats:
        """Return CT(k)."""
        return self.compute_s * (1 - self.compute_parallel + self.compute_parallel / units)

    def data_time_s(self, units: Floats) -> Floats:
        """Return DT(k)."""
        moved = self.data_s * (1 - self.data_parallel + self.data_parallel / units)
        return moved + np.where(units > 1, self.sync_s, 0.0)

    def time_s(self, units: Floats) -> Floats:
        """Return ET(k), the longest of CT, DT and g: they overlap."""
        return _at_least(np.maximum(self.compute_time_s(units), self.data_time_s(units)), self.shared_s)

    def demand(self) -> "ReplicaDemand":
        """Return what it takes to find units for a time."""
        fixed_compute_s = self.compute_s * (1 - self.compute_parallel)
        fixed_data_s = self.data_s * (1 - self.data_parallel) + self.sync_s
        return ReplicaDemand(
            once_s=_at_least(np.maximum(self.compute_s, self.data_s), self.shared_s),
            fixed_s=np.maximum(fixed_compute_s, fixed_data_s),
            fixed_compute_s=fixed_compute_s,
            fixed_data_s=fixed_data_s,
            shared_compute_s=self.compute_s * self.compute_parallel,
            shared_data_s=self.data_s * self.data_parallel,
            least_s=self.shared_s,
        )


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaDemand:
    """The inverse of ET: from a time to the replicas that reach it; all arrays have one shape.

    Attributes:
        once_s: ET(1).
        fixed_s: What CT and DT fall to with ever more replicas.
        fixed_compute_s, fixed_data_s: The parts of CT and DT that replicas do not divide, synchronisation included.
        shared_compute_s, shared_data_s: The parts that they do.
        least_s: g; None where it is 0 for all.
    """

    once_s: Floats
    fixed_s: Floats
    fixed_compute_s: Floats
    fixed_data_s: Floats
    shared_compute_s: Floats
    shared_data_s: Floats
    least_s: Floats | None = None

    def take(self, index: Ints | Bools | slice | tuple[Ints, ...]) -> "ReplicaDemand":
        """Return the demand of some of the stages."""
        return ReplicaDemand(*(_taken(getattr(self, name), index) for name in self.__slots__))  # type: ignore[arg-type]  # only least_s may be None

    @staticmethod
    def join(parts: "Sequence[ReplicaDemand]") -> "ReplicaDemand":
        """Put the demands of lists of stages one after the other."""
        columns = ([getattr(part, name) for part in parts] for name in ReplicaDemand.__slots__)
        return ReplicaDemand(*(None if column[0] is None else np.concatenate(column) for column in columns))  # type: ignore[arg-type]  # as above

    def time_s(self, units: Floats) -> Floats:
        """Return ET(k)."""
        compute_s = self.fixed_compute_s + self.shared_compute_s / units
        data_s = self.fixed_data_s + self.shared_data_s / units
        return np.where(units > 1, _at_least(np.maximum(compute_s, data_s), self.least_s), self.once_s)

    def units(self, time_s: Floats | float) -> Floats:
        """Return the fewest replicas that take at most ``time_s``; inf where no number of them does."""
        limit = np.asarray(time_s) * (1 + TIME_TOLERANCE)
        return self._round_up(self._fraction(limit), self.once_s <= limit)

    def units_and_bound(self, time_s: Floats | float) -> tuple[Floats, Floats]:
        """Return :meth:`units`, and a lower bound on k * tau over all tau <= time_s and k that take at most tau."""
        limit = np.asarray(time_s) * (1 + TIME_TOLERANCE)
        need, one = self._fraction(limit), self.once_s <= limit
        # one replica needs no synchronisation: the fraction, which has it, holds only where one is too slow
        bound = np.where(one, self.once_s, np.maximum(self.once_s, need * time_s))
        return self._round_up(need, one), bound

    def _fraction(self, limit_s: Floats) -> Floats:
        """Return the replicas, as a real number, that synchronising stages need; inf where no number is enough."""
        with np.errstate(divide="ignore", invalid="ignore"):  # where no time is left, which the last line answers
            need = self.shared_compute_s / (limit_s - self.fixed_compute_s)
            np.maximum(need, self.shared_data_s / (limit_s - self.fixed_data_s), out=need)
        need[limit_s <= self.fixed_s] = np.inf
        if self.least_s is not None:
            need[limit_s < self.least_s] = np.inf
        return need

    def _round_up(self, need: Floats, one: Bools) -> Floats:
        units = np.ceil(need)
        np.maximum(units, 2.0, out=units)
        units[one] = 1.0
        return units


def _taken(values: Floats | None, index: Any) -> Floats | None:
    return None if values is None else values[index]


def _at_least(time_s: Floats, least_s: Floats | None) -> Floats:
    return time_s if least_s is None else np.maximum(time_s, least_s)
