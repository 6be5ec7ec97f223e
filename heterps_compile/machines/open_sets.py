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
from .sets import MUCH_LONGER, Candidate, PairSets, longest_steps_s
from .step_bounds import StepBounds

_MOST_LISTED = 2000  # sets of two kinds


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
        effort: How many sets of two kinds are bounded by what their stages need, times runs of layers.
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
        prices = np.array([each.machines.price_per_hour for each in cheapest])
        high_s = longest_steps_s(prices, batch, goal, kind.late, best)
        high_s = np.minimum(high_s, low_s * MUCH_LONGER)
        closer = bounds.of_one(kind, np.array(counts), batch, low_s, high_s)
        known = dict(zip(counts, closer.tolist(), strict=True))
        found += [replace(each, least_s=known[each.machines.count]) for _, each in group]
    return [each for each in found if _value(each, goal) < float("inf")]


def _of_two_kinds(
    pairs: Sequence[PairSets], bounds: StepBounds, goal: Goal, best: float, effort: int
) -> list[PairSets]:
    """Return the sets of two kinds of which some may be better than a value, closer bounded."""
    values = [each.values(goal).min() for each in pairs]
    found, target, whole = list[PairSets](), best, effort
    for number in np.argsort(values, kind="stable").tolist():
        each, before = pairs[number], bounds.looked_at
        if values[number] >= best:
            break
        check()
        places = np.flatnonzero(each.values(goal).min(axis=0) < target)
        if effort > 0 and len(places):
            least_s, high_s = each.least_s.copy(), each.longest_s(goal, target)
            machines = each.machines[places].astype(np.int64)
            least_s[places] = bounds.of_two(each.offers[0], machines, each.batch, least_s[places], high_s[places])
            each = replace(each, least_s=least_s)
            effort -= bounds.looked_at - before
            if effort < whole / 2:  # no bound of all sets is above that of these
                target = min(target, each.values(goal).min())
        found.append(each)
    return found
