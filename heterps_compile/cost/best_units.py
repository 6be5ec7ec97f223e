"""The best replicas of given stages: minimise price / throughput exactly, for many placements at once.

Let tau be the time of a batch (batch / throughput). The units k(tau) of every stage are steps that rise as tau
falls, so only the steps' edges matter. They are searched from the slowest tau down::

    tau   slow [------------- one interval per placement, down to 0 -------------] fast
                 bound < best?  split it; bound >= best or limits exceeded: drop it
               [---][--][-x][-x][xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx]
                 |    '-- few steps left inside: sort them, price every one

Where more replicas make a stage slower, since its gradients take longer to sum than its data to divide, its steps end
with the number that is fastest.

The price of a batch anywhere in ``[lo, hi]`` is at least ``sum of price * max(k(hi) * lo, bound(hi))`` with the bound
of :mod:`.replicas`, of units in whole machines too; what an interval cannot win with, no step in it can.

Left out: which placement (``passes/placement``).
"""

from dataclasses import dataclass

import numpy as np

from .problem import Bools, Floats, Ints, Problem
from .replicas import ReplicaDemand
from .rule_times import TIME_TOLERANCE
from .segments import FlatStages
from .whole_machines import paid_per_hour, rented_units, units_by_type

_GRID = np.append(0.85 ** np.arange(13), 0.0)  # borders of the first intervals, relative to the slowest
_PARTS = 4  # how many intervals one with many steps is split into
_FEW_STEPS = 128
_STEPS_PER_STAGE = 2
_TIE = 1e-12  # relative
_NARROWEST = 1e-10  # relative; what happens inside cannot be told from rounding


def best_units(problem: Problem, stages: FlatStages, slowest_s: Floats) -> Floats:
    """Return the replicas of every stage that minimise price / throughput within the limits on units.

    Args:
        problem: The problem.
        stages: N stages of B placements.
        slowest_s: [B], the longest time of a batch that is allowed; it must be reachable within the limits.

    Returns:
        [N], whole numbers.
    """
    demand, price = stages.work.demand(), problem.price_per_hour[stages.type]
    search = _Search(problem, stages, demand, price, np.full(len(slowest_s), np.inf), slowest_s.copy())
    intervals = _Intervals(np.arange(len(slowest_s)), slowest_s, np.zeros(len(slowest_s)))
    while len(intervals.placement):
        intervals = search.narrow(intervals)
    return demand.units(search.best_s[stages.placement])


@dataclass(frozen=True, slots=True, eq=False)
class _Intervals:
    """Ranges of tau, each of one placement, with fast_s < tau <= slow_s."""

    placement: Ints
    slow_s: Floats
    fast_s: Floats

    def keep(self, mask: Bools) -> "_Intervals":
        return _Intervals(self.placement[mask], self.slow_s[mask], self.fast_s[mask])

    def split(self) -> "_Intervals":
        tail = self.fast_s == 0
        ratio = self.fast_s[~tail] / self.slow_s[~tail]
        inner = self.slow_s[~tail, None] * ratio[:, None] ** (np.arange(_PARTS + 1) / _PARTS)
        outer = self.slow_s[tail, None] * _GRID
        return _Intervals(
            np.concatenate([np.repeat(self.placement[~tail], _PARTS), np.repeat(self.placement[tail], len(_GRID) - 1)]),
            np.concatenate([inner[:, :-1].ravel(), outer[:, :-1].ravel()]),
            np.concatenate([inner[:, 1:].ravel(), outer[:, 1:].ravel()]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    problem: Problem
    stages: FlatStages
    demand: ReplicaDemand
    price: Floats
    best: Floats  # [B], lowest price * tau seen
    best_s: Floats  # [B], its tau

    def narrow(self, intervals: _Intervals) -> _Intervals:
        """Drop the intervals that cannot win, price those with few steps, split the others."""
        owner, stage, offsets = self._expand(intervals.placement)
        slow_s, price, types = intervals.slow_s[owner], self.price[stage], self.stages.type[stage]
        units, unit_seconds = self.demand.take(stage).units_and_bound(slow_s)
        within = np.all(self._used(types, owner, units, len(offsets)) <= self.problem.max_units, axis=1)
        values = paid_per_hour(self.problem, types, owner, offsets, units) * intervals.slow_s
        self._improve(intervals.placement, np.where(within, values, np.inf), intervals.slow_s)
        with np.errstate(invalid="ignore"):  # inf * 0 where no number of units is enough, and that is not within
            unit_seconds = np.maximum(units * intervals.fast_s[owner], unit_seconds)
        bound = np.add.reduceat(price * unit_seconds, offsets)
        alive = within & (bound < self.best[intervals.placement] * (1 - TIME_TOLERANCE))
        alive &= intervals.fast_s < intervals.slow_s * (1 - _NARROWEST)
        intervals, units = intervals.keep(alive), units[alive[owner]]
        if not len(intervals.placement):
            return intervals
        owner, stage, offsets = self._expand(intervals.placement)
        demand = self.demand.take(stage)
        # one unit beyond the limit, or beyond the fastest number, stands for all that are too many
        most = np.minimum(self.problem.max_units[self.stages.type[stage]], demand.fastest_units()) + 1.0
        last = np.minimum(demand.units(intervals.fast_s[owner]), most)
        few = np.add.reduceat(last - units - _STEPS_PER_STAGE, offsets) <= _FEW_STEPS
        if np.any(few):
            self._price_steps(intervals.keep(few), units[few[owner]], last[few[owner]])
        return intervals.keep(~few).split()

    def _price_steps(self, intervals: _Intervals, units: Floats, last: Floats) -> None:
        """Price the plan before every step in which a stage goes from ``units`` towards ``last``."""
        owner, stage, offsets = self._expand(intervals.placement)
        types = self.stages.type[stage]
        used = self._used(types, owner, units, len(offsets))
        beyond = self._used(types, owner, last, len(offsets)) > self.problem.max_units
        count = (last - units).astype(np.int64)
        if not count.any():
            return
        step = np.repeat(np.arange(len(count)), count)
        work, before = self.stages.work.take(stage[step]), units[step]
        reached = work.time_s(before + _ranks(count))
        if work.machines is not None or work.rules is not None:  # more may be slower, and the next ones faster again
            reached = _running_minimum(reached, count)
        fastest = self.demand.take(stage).fastest_units()
        # the step from the fastest number leads nowhere
        ends = before + _ranks(count) >= fastest[step]

        steps = np.add.reduceat(count, offsets)
        at = (owner[step], _ranks(steps))  # one row per interval, so that its sums do not depend on the others
        reached_s = np.zeros((len(steps), steps.max(initial=0)))
        reached_s[at] = np.clip(reached, intervals.fast_s[at[0]], intervals.slow_s[at[0]])
        which = np.full(reached_s.shape, -1)  # the stage that takes the step; the last of all pads
        which[at] = stage[step]
        is_end = np.zeros(reached_s.shape, np.bool_)
        is_end[at] = ends
        order = np.argsort(-reached_s, axis=1, kind="stable")
        reached_s = np.take_along_axis(reached_s, order, axis=1)
        which = np.take_along_axis(which, order, axis=1)

        values = self._paid_before(stage, units, offsets, used, which) * reached_s
        for t in np.flatnonzero(np.any(beyond, axis=0)):
            is_type = self.stages.type[which] == t
            taken = np.cumsum(is_type, axis=1) - is_type
            values[used[:, t, None] + taken > self.problem.max_units[t]] = np.inf
        if np.any(ends):
            is_end = np.take_along_axis(is_end, order, axis=1)
            values[np.cumsum(is_end, axis=1) - is_end > 0] = np.inf  # behind such a step
        values[reached_s == 0] = np.inf
        row = np.arange(len(steps))
        first = np.argmax(values <= values.min(axis=1, keepdims=True) * (1 + _TIE), axis=1)
        self._improve(intervals.placement, values[row, first], reached_s[row, first])

    def _paid_before(self, stage: Ints, units: Floats, offsets: Ints, used: Floats, which: Ints) -> Floats:
        """Return what is paid before every step: ``which`` stages take them, after ``units`` of every stage."""
        problem = self.problem
        if problem.rented_together is None:
            price = self.price[which]
            paid = np.add.reduceat(self.price[stage] * units, offsets)
            return np.asarray(paid[:, None] + np.cumsum(price, axis=1) - price)
        is_type = self.stages.type[which][..., None] == np.arange(problem.type_count)
        taken = np.cumsum(is_type, axis=1) - is_type
        return np.asarray(rented_units(problem, used[:, None, :] + taken) @ problem.price_per_hour)

    def _improve(self, placement: Ints, values: Floats, time_s: Floats) -> None:
        """Take in what is better than the best; of what is equal but for rounding, the slowest, with fewest units."""
        lowest = np.full(len(self.best), np.inf)
        np.minimum.at(lowest, placement, values)
        better = (values <= lowest[placement] * (1 + _TIE)) & (values < self.best[placement] * (1 - _TIE))
        order = np.flatnonzero(better)[np.argsort(time_s[better])]  # the slowest last: repeated assignment leaves it
        self.best[placement[order]] = values[order]
        self.best_s[placement[order]] = time_s[order]

    def _expand(self, placements: Ints) -> tuple[Ints, Ints, Ints]:
        """List the stages of the placements in turn: entry in ``placements``, stage; and where entries begin."""
        ends = np.append(self.stages.offsets[1:], len(self.stages.type))
        counts = (ends - self.stages.offsets)[placements]
        offsets = np.cumsum(counts) - counts
        owner = np.repeat(np.arange(len(placements)), counts)
        return owner, np.arange(len(owner)) + (self.stages.offsets[placements] - offsets)[owner], offsets

    def _used(self, types: Ints, owner: Ints, units: Floats, owners: int) -> Floats:
        return units_by_type(self.problem.type_count, types, owner, units, owners)


def _running_minimum(values: Floats, counts: Ints) -> Floats:
    """Return the least of the first counts[0] values so far, then of the next counts[1], and so on."""
    rows = np.full((len(counts), counts.max(initial=0)), np.inf)
    at = (np.repeat(np.arange(len(counts)), counts), _ranks(counts))
    rows[at] = values
    return np.asarray(np.minimum.accumulate(rows, axis=1)[at])


def _ranks(counts: Ints) -> Ints:
    """Return 0 .. counts[0] - 1, then 0 .. counts[1] - 1, and so on."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
