"""The sets of machines that may still win: those whose bounds keep all limits and are better than the best found.

Bounds that cost nothing come first; the sets that may win by these are bounded by what their stages need, those with
the lowest bounds first, up to an effort.

Left out: the search for their plans (``search.py``).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.progress import check

from .goal import Goal
from .outlook import steady_outlook
from .sets import Candidate, PairSets
from .step_bounds import StepBounds

_MOST_LISTED = 2000  # sets of two kinds
_CLOSE = 1.005  # the ratio of values between which no bound is looked for
_FURTHEST = 100.0  # nor below the part 1 / this of the highest
_HALVINGS = 5
"""Of the ratio between the values that the bound of some sets lies between, as in ``step_bounds.py``: the fewer, the
more sets the same effort bounds."""

_RISE = 4.0  # of the values up to which all sets are looked at together, and its roots
_LONGER = 1.001  # than what a value allows is what steps are looked at, so that what is proven is above it
_SURE = 1 - 1e-9  # of a bound, for what rounding makes of equal numbers


@dataclass(frozen=True, slots=True, eq=False)
class OpenSets:
    """Sets that may win.

    Attributes:
        candidates: Of one kind all that may be better than the value, of two kinds those with the best bounds.
        more: How many others of two kinds there are.
        least_more: No value of these is below; inf without any.
    """

    candidates: tuple[Candidate, ...]
    more: int
    least_more: float


def open_sets(
    singles: Sequence[Candidate],
    pairs: Sequence[PairSets],
    bounds: StepBounds,
    goal: Goal,
    *,
    best: float,
    effort: int,
) -> OpenSets:
    """Return the sets that may be better than a value.

    Args:
        singles: Of one kind.
        pairs: Of two.
        bounds: Of their steps, by what stages need.
        goal: What is asked.
        best: The value.
        effort: Looks at the needs of two kinds of units.
    """
    found = _of_one_kind(singles, bounds, goal, best)
    closer = _of_two_kinds(pairs, bounds, goal, best, effort)
    values = [each.values(goal) for each in closer]
    places = [np.argwhere(value < best) for value in values]
    rows = [(group, *place) for group, here in enumerate(places) for place in here.tolist()]
    of_rows = np.array([values[group][pair, place] for group, pair, place in rows])
    order = np.argsort(of_rows, kind="stable")
    for number in order[:_MOST_LISTED].tolist():
        group, pair, place = rows[number]
        found.append(closer[group].candidate(pair, place, singles[0].machines.learned))
    more = order[_MOST_LISTED:]
    return OpenSets(tuple(found), len(more), float(of_rows[more[0]]) if len(more) else float("inf"))


def _value(candidate: Candidate, goal: Goal) -> float:
    """Return the value that a set cannot be below; inf where it breaks a limit."""
    machines = candidate.machines
    outlook = steady_outlook(machines.price_per_hour, candidate.least_s, candidate.batch, goal, machines.late)
    return float("inf") if outlook.misses(goal) else outlook.value(goal)


def _of_one_kind(singles: Sequence[Candidate], bounds: StepBounds, goal: Goal, best: float) -> list[Candidate]:
    """Return the sets of one kind whose bounds keep all limits, those closer that may be better than a value."""
    groups: defaultdict[object, list[tuple[float, Candidate]]] = defaultdict(list)
    for each in singles:
        if (value := _value(each, goal)) < best:
            groups[each.kinds[0].hardware, each.batch].append((value, each))
    found = []
    for group in sorted(groups.values(), key=lambda group: min(value for value, _ in group)):
        check()
        sets = {each.machines.count: each for _, each in sorted(group, key=lambda one: -one[1].machines.price_per_hour)}
        counts, kind, batch = sorted(sets), group[0][1].kinds[0], group[0][1].batch
        cheapest = [sets[count] for count in counts]
        low_s = np.array([each.least_s for each in cheapest])
        closer = bounds.of_one(kind, np.array(counts), batch, low_s)
        known = dict(zip(counts, closer.tolist(), strict=True))
        found += [replace(each, least_s=known[each.machines.count]) for _, each in group]
    return [each for each in found if _value(each, goal) < float("inf")]


def _of_two_kinds(
    pairs: Sequence[PairSets], bounds: StepBounds, goal: Goal, best: float, effort: int
) -> list[PairSets]:
    """Return the sets of two kinds of which some may be better than a value, closer bounded.

    First all of them by values that rise, since the lowest says how much better a set may be, and what is far too
    short costs little to prove; then, as far as the effort lasts, one after the other, the lowest first.
    """
    found = [each for each in pairs if each.values(goal).min() < best]
    end = bounds.looks + effort
    found = _together(found, bounds, goal, best, end)
    found.sort(key=lambda each: each.values(goal).min())
    for number, each in enumerate(found):
        check()
        if bounds.looks < end and each.values(goal).min() < best:
            found[number] = _closer(each, bounds, goal, best)
    return found


def _together(pairs: Sequence[PairSets], bounds: StepBounds, goal: Goal, best: float, end: int) -> list[PairSets]:
    """Return sets none of which may be better than a value, the target at the most, where that is proven of all."""
    found, step = list(pairs), _RISE
    low = min((float(each.values(goal).min()) for each in found), default=best)
    while low * _CLOSE < best and step > _CLOSE:
        level = min(max(low, best / _FURTHEST) * step, best)
        for number, each in enumerate(found):
            check()
            if bounds.looks >= end:
                return found
            if each.values(goal).min() < level:
                found[number], is_out = _out_below(each, bounds, goal, level)
                if not is_out:  # no bound of all sets is above that of these
                    step = float(np.sqrt(step))
                    found.insert(0, found.pop(number))  # which are likely to be the next as well
                    break
        else:
            low = level
    return found


def _out_below(each: PairSets, bounds: StepBounds, goal: Goal, value: float) -> tuple[PairSets, bool]:
    """Return sets with the bounds of those that are proven not to be better than a value, and whether all are."""
    places = np.flatnonzero(each.values(goal).min(axis=0) < value)
    least_s, times_s = each.least_s.copy(), each.longest_s(goal, value) * _LONGER
    out = bounds.are_out(each.offers[0], each.machines[places].astype(np.int64), each.batch, times_s[places])
    least_s[places[out]] = np.maximum(least_s[places[out]], times_s[places[out]] * _SURE)
    return replace(each, least_s=least_s), bool(out.all())


def _closer(each: PairSets, bounds: StepBounds, goal: Goal, target: float) -> PairSets:
    """Return sets with closer bounds, which matter up to the target."""
    low, high = float(each.values(goal).min()), target
    for halving in range(_HALVINGS + 1):
        middle = high if not halving else float(np.sqrt(max(low, high / _FURTHEST) * high))
        each, is_out = _out_below(each, bounds, goal, middle)
        low, high = (middle, high) if is_out else (low, middle)
        if low * _CLOSE >= high:
            break
    return each
