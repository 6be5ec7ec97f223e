"""What stages and plans cost on fixed terms: the objective as a sum over stages, which the polish makes small.

For a fixed time of a batch tau every objective is a sum over stages, or is reached through one::

    cost, throughput   sum of price * units(tau), least: times tau the cost; within the budget, tau is reached
    price              sum of price * units(floor)
    latency            sum of price * units(floor) + v * (C + D): the larger v, the more a second counts
    max-load           sum of what ET(1) exceeds tau by: nothing, where tau is reached

Equal sums are told apart by the work that is left. What exceeds limits on units and bounds on the number of stages has
a price, and so has every position inside a stage that nothing makes feasible.

Left out: links between pairs of types (each type's fastest is taken), and whole placements, which ``cost/evaluate.py``
judges.
"""

from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.problem import Floats, Ints

from .segment_table import SegmentTable
from .stage_list import StageList

WORK_WEIGHT = 1e-3
"""Price of work, against the price of whole replicas."""

_EXCESS_WEIGHT = 30.0  # price of a unit or a stage beyond its limit, in units of the dearest type
_STUCK = 1e6  # price of every position inside a stage that no number of replicas makes feasible, likewise


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """On what stages are priced; R terms at once as arrays [R, 1].

    Attributes:
        batch_s: The time of a batch.
        second_price: v above, price of a second on the way of a batch; 0 but for ``latency``.
        work_weight: Price of a unit's work as a share of the unit's own; the larger, the smoother.
    """

    batch_s: float | Floats
    second_price: float | Floats = 0.0
    work_weight: float = WORK_WEIGHT

    def near(self, factor: float) -> "Terms":
        """Return terms at a multiple: of the price of a second, if it has one, else of the time of a batch."""
        if np.any(self.second_price):
            return replace(self, second_price=self.second_price * factor)
        return replace(self, batch_s=self.batch_s * factor)


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """Stages on all types: price and units [X, T], the least price [X]."""

    price: Floats
    units: Floats
    least: Floats


class StagePrices:
    """Prices of one problem; ``priced`` counts the stages it has priced."""

    def __init__(self, table: SegmentTable) -> None:
        problem = table.problem
        self.table = table
        self.priced = 0
        self.limits = problem.max_units.astype(np.float64)
        self._rate = problem.price_per_hour
        self._dearest = float(self._rate.max()) or 1.0
        self._one_unit_each = problem.objective == "max-load"
        self._fewest, self._most = problem.min_stages, problem.max_stages
        self.excess_price = _EXCESS_WEIGHT * self._dearest

    def of_stages(self, first: Ints, end: Ints, types: Ints | None, terms: Terms) -> tuple[Floats, Floats]:
        """Return price and units of stages, [N]; of N stages on every type, [N, T], where ``types`` is None.

        What no number of replicas makes feasible takes no units and a huge price.
        """
        work, unfit = self.table.work(first, end, types)
        rate = self._rate if types is None else self._rate[types]
        demand, length = work.demand(), (end - first)[:, None] if types is None else end - first
        if self._one_unit_each:
            overload = demand.once_s / terms.batch_s
            units = np.ones_like(overload)
            price = terms.work_weight * overload + self.excess_price * np.maximum(overload - 1.0, 0.0)
            stuck = np.broadcast_to(unfit, units.shape)
        else:
            units = demand.units(terms.batch_s)
            stuck = np.isinf(units) | unfit
            units = np.where(stuck, 0.0, units)
            price = rate * (units + terms.work_weight * demand.once_s / terms.batch_s)
            if np.any(terms.second_price):
                price = price + terms.second_price * (work.compute_s + work.data_s)
        self.priced += units.size
        return np.where(stuck, price + _STUCK * self._dearest * length, price), units

    def on_all_types(self, first: Ints, end: Ints, terms: Terms) -> Priced:
        """Price stages on every type."""
        price, units = self.of_stages(first, end, None, terms)
        return Priced(price, units, price.min(axis=1, initial=np.inf))

    def of_count(self, stages: int) -> float:
        """Price a number of stages that is out of bounds."""
        return self.excess_price * (max(self._fewest - stages, 0) + max(stages - self._most, 0))

    def total(self, stages: StageList, terms: Terms) -> float:
        """Price a plan, with the price on what exceeds limits in it."""
        return float(self.totals(stages, terms)[0])

    def totals(self, stages: StageList, terms: Terms) -> Floats:
        """Price a plan on R terms at once [R]."""
        paid, breach = self.paid(stages, terms)
        return paid + self.excess_price * breach

    def paid(self, stages: StageList, terms: Terms) -> tuple[Floats, Floats]:
        """Return [R], the price of a plan without what it exceeds limits by; and that, in units of ``excess_price``."""
        price, units = (
            np.atleast_2d(x) for x in self.of_stages(stages.bounds[:-1], stages.bounds[1:], stages.types, terms)
        )
        used = np.zeros((len(self.limits), len(units)))
        np.add.at(used, stages.types, units.T)
        excess = (
            np.maximum(used.T - self.limits, 0.0).sum(axis=1) + self.of_count(len(stages.types)) / self.excess_price
        )
        return np.asarray(price.sum(axis=1)), np.asarray(excess)
