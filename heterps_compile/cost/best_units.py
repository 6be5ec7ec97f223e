"""The best replicas of given stages: minimise price / throughput exactly, for many placements at once.

Let tau be the time of a batch (batch / throughput). The units k(tau) of every stage are steps that rise as tau
falls, so only the steps' edges matter. They are searched from the slowest tau down::

    tau   slow [------------- one interval per placement, down to 0 -------------] fast
                 bound < best?  split it; bound >= best or limits exceeded: drop it
               [---][--][-x][-x][xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx]
                 |    '-- few steps left inside: sort them, price every one

The price of a batch anywhere in ``[lo, hi]`` is at least ``sum of price * max(k(hi) * lo, bound(hi))`` with the bound
of :mod:`.replicas`; what an interval cannot win with, no step in it can.

Left out: which placement (``passes/placement``).
"""

from dataclasses import dataclass

import numpy as np

from .problem import Bools, Floats, Ints, Problem
from .segments import FlatStages

_GRID = 0.85 ** np.arange(13)  # tau at the borders of the first intervals, relative to the slowest
_PARTS = 4  # how many intervals one with many steps is split into
_FEW_STEPS = 48
_NARROWEST = 1e-10  # relative; what happens inside cannot be told from rounding


@dataclass(frozen=True, slots=True)
class _Intervals:
    placement: Ints
    slow_s: Floats
    fast_s: Floats

    def keep(self, mask: Bools) -> "_Intervals":
        return _Intervals(self.placement[mask], self.slow_s[mask], self.fast_s[mask])


def best_units(problem: Problem, stages: FlatStages, slowest_s: Floats) -> Floats:
    """Give the replicas of every stage that minimise price / throughput within the limits on units.

    Args:
        problem: The problem.
        stages: N stages of B placements.
        slowest_s: [B], the longest time of a batch that is allowed; it must be reachable.

    Returns:
        [N], whole numbers.
    """
    price = problem.price_per_hour[stages.type]
    best = np.full(len(slowest_s), np.inf)
    best_s = slowest_s.copy()
    open_ = _Intervals(np.arange(len(slowest_s)), slowest_s, np.zeros(len(slowest_s)))
    while len(open_.placement):
        owner, stage, offsets = _expand(stages, open_.placement)
        work, slow_s = stages.work.take(stage), open_.slow_s[owner]
        units, unit_seconds = work.units_and_bound(slow_s)
        within = _within_limits(problem, stages.type[stage], owner, units, len(open_.placement))
        paid = np.add.reduceat(price[stage] * units, offsets)
        _improve(best, best_s, open_.placement, np.where(within, paid * open_.slow_s, np.inf), open_.slow_s)
        bound = np.add.reduceat(
            price[stage] * np.maximum(units * open_.fast_s[owner], unit_seconds), offsets
        )
        alive = within & (bound <= best[open_.placement]) & (open_.fast_s < open_.slow_s * (1 - _NARROWEST))
        open_, rest, units = open_.keep(alive), alive[owner], units
        if not len(open_.placement):
            break
        owner, stage, offsets = _expand(stages, open_.placement)
        units = units[rest]
        limit = problem.max_units[stages.type[stage]] + 1.0
        last = np.minimum(stages.work.take(stage).units(open_.fast_s[owner]), limit)
        few = np.add.reduceat(last - units, offsets) <= _FEW_STEPS
        _price_steps(problem, stages, price, open_, few, units, last, best, best_s)
        open_ = _split(open_.keep(~few))
    return stages.work.units(best_s[stages.placement])


def _expand(stages: FlatStages, placements: Ints) -> tuple[Ints, Ints, Ints]:
    """Give, for the stages of every listed placement in turn: position in the list, stage; and offsets per entry."""
    ends = np.append(stages.offsets[1:], len(stages.type))
    counts = (ends - stages.offsets)[placements]
    offsets = np.cumsum(counts) - counts
    owner = np.repeat(np.arange(len(placements)), counts)
    return owner, np.arange(len(owner)) + (stages.offsets[placements] - offsets)[owner], offsets


def units_by_type(problem: Problem, types: Ints, owner: Ints, units: Floats, owners: int) -> Floats:
    """Give [owners, T], the units that each owner's stages take of each type."""
    count = problem.type_count
    return np.bincount(owner * count + types, units, owners * count).reshape(owners, count)


def _within_limits(problem: Problem, types: Ints, owner: Ints, units: Floats, owners: int) -> Bools:
    used = units_by_type(problem, types, owner, units, owners)
    return np.asarray(np.all(used <= problem.max_units, axis=1))


def _improve(best: Floats, best_s: Floats, placement: Ints, values: Floats, time_s: Floats) -> None:
    order = np.lexsort((time_s, -values))  # the best comes last, so it is what repeated assignment leaves
    order = order[values[order] < best[placement[order]]]
    best[placement[order]] = values[order]
    best_s[placement[order]] = time_s[order]


def _split(intervals: _Intervals) -> _Intervals:
    tail = intervals.fast_s == 0
    ratio = np.where(tail, 1.0, intervals.fast_s / intervals.slow_s)
    parts = np.arange(_PARTS + 1) / _PARTS
    inner = intervals.slow_s[~tail, None] * ratio[~tail, None] ** parts
    outer = np.append(intervals.slow_s[tail, None] * _GRID, np.zeros((np.count_nonzero(tail), 1)), axis=1)
    return _Intervals(
        np.concatenate(
            [np.repeat(intervals.placement[~tail], _PARTS), np.repeat(intervals.placement[tail], len(_GRID))]
        ),
        np.concatenate([inner[:, :-1].ravel(), outer[:, :-1].ravel()]),
        np.concatenate([inner[:, 1:].ravel(), outer[:, 1:].ravel()]),
    )


def _price_steps(
    problem: Problem,
    stages: FlatStages,
    price: Floats,
    intervals: _Intervals,
    few: Bools,
    units: Floats,
    last: Floats,
    best: Floats,
    best_s: Floats,
) -> None:
    """Price every step of the units inside the intervals marked ``few``; keep what improves ``best``."""
    chosen = intervals.keep(few)
    mask = few[_expand(stages, intervals.placement)[0]]
    owner, stage, offsets = _expand(stages, chosen.placement)
    start = units[mask]
    count = (last[mask] - start).astype(np.int64)
    step = np.repeat(np.arange(len(count)), count)  # the (interval, stage) that takes one more unit
    taken = np.arange(len(step)) - np.repeat(np.cumsum(count) - count, count)
    by, owner = stage[step], owner[step]
    work = stages.work.take(by)
    # synchronisation may make two replicas slower than one: the time that units reach is a running minimum
    reached = np.minimum(work.time_s(start[step] + taken), work.time_s(start[step]))
    slow_s, fast_s = chosen.slow_s[owner], chosen.fast_s[owner]
    reached = np.clip(reached, fast_s, slow_s)
    order = np.argsort(owner + (slow_s - reached) / (slow_s - fast_s) * (1 - 1e-9), kind="stable")
    by, owner, reached = by[order], owner[order], reached[order]
    paid_before = _sums_before(price[by], owner, len(chosen.placement))
    paid_first = np.add.reduceat(price[stage] * start, offsets)
    used_first = units_by_type(
        problem, stages.type[stage], np.repeat(np.arange(len(offsets)), np.diff(offsets, append=len(stage))), start, len(offsets)
    )
    within = np.ones(len(by), np.bool_)
    for t in np.flatnonzero(np.any(used_first + 0 <= np.inf, axis=0)):
        used = used_first[owner, t] + _sums_before((stages.type[by] == t).astype(np.float64), owner, len(offsets))
        within &= used <= problem.max_units[t]
    values = np.where(within, (paid_first[owner] + paid_before) * reached, np.inf)
    _improve(best, best_s, chosen.placement[owner], values, reached)


def _sums_before(amounts: Floats, owner: Ints, owners: int) -> Floats:
    """Give for every entry the sum of the earlier entries of its owner; entries are grouped by owner."""
    before = np.cumsum(amounts) - amounts
    first = np.searchsorted(owner, np.arange(owners))
    return np.asarray(before - np.append(before, 0.0)[first][owner])
