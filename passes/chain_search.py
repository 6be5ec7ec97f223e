"""Search chains of down-sets for the least largest load of a stage, by thresholds on it.

A plan is a chain of down-sets from the empty one to all items, and a stage holds the items between two neighbours::

    {}  <  {a}  <  {a b c}  <  {a b c d e}        stages  a | b c | d e

For a threshold T, from the last down-set to the first, each keeps the *ends* that no other of their kind beats in both
of two costs of the stages behind it, such as units and the largest load::

    ends[D] = undominated { extend(D, D', end) : D' around D within reach, end of D' }

A threshold without a chain is a proven bound. T grows from a lower bound, in steps that double: the narrower T, the
fewer pairs of down-sets are within reach. O(N^2) vector operations a threshold at worst.

Source: NeurIPS 2020 (arXiv 2006.16423), section 5, has the recursion without the threshold.

Not covered: the options of a stage and its loads, which ``extend`` knows.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Floats, Ints

from .deadline import Deadline, TimeUpError
from .partial_orders import DownSets

CLOSE = 1e-9
"""Relative: values nearer than this are one."""
_FIRST_STEP = 0.01
_SET, _KIND, _FIRST, _SECOND, _AROUND, _OPTION = range(6)

Ends = tuple[Ints, Floats, Floats, Floats]
"""Down-sets [R], and kind, first and second cost of the stages behind each; new ones: indices into these instead."""
Extend = Callable[[int, Ends], Iterable[Ends]]
"""Puts a stage of each option before ends around a down-set."""


@dataclass(frozen=True, slots=True)
class Link:
    """A stage of a chain: the down-sets before it and with it, its option, and its part of the first cost."""

    begin: int
    end: int
    option: int
    first: int


def find_chain(sets: DownSets, reach: float, extend: Extend, deadline: Deadline) -> tuple[float, list[Link]] | None:
    """Find the chain with the least second cost, and that cost; None if there is no chain.

    Args:
        sets: Down-sets.
        reach: The most weight of one stage.
        extend: Makes the ends of a down-set from those around it.
        deadline: When to stop.

    Raises:
        TimeUpError: if the deadline comes first.
    """
    last = sets.count - 1
    table, count = np.zeros((6, 4096)), 1
    table[_SET, 0] = last
    count_from = [1] * sets.count + [0]  # ends of a down-set and of those with higher indices
    beyond = np.searchsorted(sets.weight, sets.weight + reach, side="right").tolist()
    for begin in range(last - 1, -1, -1):
        deadline.check()
        count_from[begin] = count
        near = np.arange(count_from[beyond[begin]], count)
        if near.size:
            is_around = np.ones(beyond[begin] - begin - 1, np.bool_)
            for item in sets.edges[begin]:
                is_around &= sets.holds[item, begin + 1 : beyond[begin]]
            near = near[is_around[table[_SET, near].astype(np.int64) - begin - 1]]
        if not near.size:
            continue
        _, kind, first, second = table[:_AROUND, near]
        made = extend(begin, (table[_SET, near].astype(np.int64), kind, first, second))
        parts = [
            np.stack([np.full(len(at), begin), *costs, near[at], np.full(len(at), option)])
            for option, (at, *costs) in enumerate(made)
        ]
        found = _undominated(np.concatenate([table[:, :0], *parts], axis=1))
        if count + found.shape[1] > table.shape[1]:
            table = np.concatenate([table, np.zeros_like(table), found], axis=1)
        table[:, count : count + found.shape[1]] = found
        count += found.shape[1]
        count_from[begin] = count
    whole = table[_SECOND, count_from[1] : count]
    if not whole.size:
        return None
    row, links = int(count_from[1] + whole.argmin()), []
    while table[_SET, row] < last:
        around = int(table[_AROUND, row])
        added = table[_FIRST, row] - table[_FIRST, around]
        links.append(Link(*map(int, (table[_SET, row], table[_SET, around], table[_OPTION, row], added))))
        row = around
    return float(whole.min()), links


def _undominated(ends: Floats) -> Floats:
    """Return the ends that no other of their kind beats in both costs."""
    ends = ends[:, np.lexsort((ends[_SECOND], ends[_FIRST], ends[_KIND]))]
    is_least = np.ones(ends.shape[1], np.bool_)
    for kind in np.unique(ends[_KIND]):
        own = np.flatnonzero(ends[_KIND] == kind)
        second = ends[_SECOND, own]
        is_least[own[1:]] = second[1:] < np.minimum.accumulate(second)[:-1]
    return ends[:, is_least]


def raise_threshold(find: Callable[[float], float | None], low: float, most: float, *, finds_least: bool) -> float:
    """Return a proven lower bound, which reaches the most where nothing better was found.

    Args:
        find: Returns the value of a chain of at most a threshold, None for none, and may raise TimeUpError.
        low: A lower bound.
        most: The largest threshold of interest, above 0.
        finds_least: Whether it finds the best chain of all.
    """
    gap = max(low, most * 1e-6) * _FIRST_STEP
    try:
        while low < most:
            limit = min(low + gap, most)
            value = find(limit)
            if value is None:
                low, gap = limit, 2 * gap
            elif finds_least:
                return value
            else:  # whether anything is better comes first, which ends most searches, then what is halfway
                is_most, most = limit == most, value * (1 - CLOSE)
                gap = (most - low) / 2 if is_most else math.inf
    except TimeUpError:
        pass
    return low
