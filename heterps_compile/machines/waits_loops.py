"""The loops of ``stage_waits.py``, which numba compiles: least sums over paths of runs, and the least waits on the way.

Legend: n positions behind the first, R runs of blocks, C stages (a run with its replicas), W weights, U and V the most
units of two kinds. Runs and stages are sorted by the position at which they begin; those of a position p stand from
``rows[p]`` to before ``rows[p + 1]``.
"""

from typing import Any, NamedTuple

import numpy as np

from heterps_compile.cost.problem import Floats, Ints


def least_to_end(rows: Ints, end: Ints, each: Floats) -> Floats:
    """Return [W, n + 1], the least sum of what runs [W, R] cost on any path from a position to the last; O(W R)."""
    length = len(rows) - 1
    least = np.full((len(each), length + 1), np.inf)
    for weight in range(len(each)):
        least[weight, length] = 0.0
        for position in range(length - 1, -1, -1):
            for run in range(rows[position], rows[position + 1]):
                through = each[weight, run] + least[weight, end[run]]
                least[weight, position] = min(least[weight, position], through)
    return least


class StageTable(NamedTuple):
    """Stages.

    Attributes:
        rows: [n + 1], by the position at which they begin.
        end: [C], the position behind each.
        units: [C, 2], of each kind.
        waits_s: [C, 7], what a step lasts beyond X, what X is at the least, and what is added to it; then the
            micro-batches of the busiest replica, forward and backward of one, and what passes behind the stage.
        is_one: [C], whether it is one of those of which plans need one.
    """

    rows: Ints
    end: Ints
    units: Ints
    waits_s: Floats
    is_one: Any


class UnitsLeft(NamedTuple):
    """What units there are.

    Attributes:
        weights: [W, 2], of units of each kind.
        tails: [W, n + 1], the least weighted units from a position to the end.
        limits: [W], of weighted units in all.
        taking_turns: How many there are, where forwards and backwards take turns (1F1B); else 0.
    """

    weights: Floats
    tails: Floats
    limits: Floats
    taking_turns: int


def least_waits(stages: StageTable, left: UnitsLeft, time_s: float, least_s: Any) -> int:
    """Fill [F, n + 1, U + 1, V + 1], the least X of stages up to a position that have no more units of any kind.

    Returns how many stages were put behind how many states.

    Args:
        stages: There may be.
        left: Units.
        time_s: T.
        least_s: X, to fill: inf, but 0 for no stage and no unit; by whether there is such a stage, if F is 2.
    """
    rows, end, units, waits_s, is_one = stages
    weights, tails, limits, taking_turns = left
    kinds, positions, most, most_other = least_s.shape
    states = np.empty((kinds * most * most_other, 3), np.int64)
    waited_s, extended = np.empty(len(states)), 0
    for position in range(positions):
        found = 0
        for kind in range(kinds):
            for unit in range(most):
                for other in range(most_other):
                    here = (kind, position, unit, other)
                    here_s, lower_s = least_s[here], np.inf
                    if unit > 0:
                        lower_s = least_s[kind, position, unit - 1, other]
                    if other > 0:
                        lower_s = min(lower_s, least_s[kind, position, unit, other - 1])
                    least_s[here] = min(here_s, lower_s)
                    if here_s >= lower_s:  # fewer units wait no longer
                        continue
                    fits = True
                    for weight in range(len(weights)):
                        taken = weights[weight, 0] * unit + weights[weight, 1] * other + tails[weight, position]
                        fits = fits and taken <= limits[weight]
                    if fits:
                        states[found, 0], states[found, 1], states[found, 2] = kind, unit, other
                        waited_s[found] = here_s
                        found += 1
        if position == positions - 1:
            break
        extended += found * (rows[position + 1] - rows[position])
        for stage in range(rows[position], rows[position + 1]):
            rest_s, sync_s, adds_s = waits_s[stage, 0], waits_s[stage, 1], waits_s[stage, 2]
            turns, forward_s, backward_s = int(waits_s[stage, 3]), waits_s[stage, 4], waits_s[stage, 5]
            is_inner, replicas = end[stage] < positions - 1, units[stage, 0] + units[stage, 1]
            for state in range(found):
                unit, other = states[state, 1] + units[stage, 0], states[state, 2] + units[stage, 1]
                x_s = waited_s[state]
                if unit >= most or other >= most_other or (position > 0 and x_s + rest_s > time_s):
                    continue
                if taking_turns > 0 and is_inner:  # as many micro-batches are under way as units from here on
                    under_way = -(-(taking_turns - states[state, 1] - states[state, 2]) // replicas)
                    taken_s = -(-turns // under_way) * (forward_s + waits_s[stage, 6] + backward_s)
                    if x_s + taken_s + (turns - 1) % under_way * backward_s > time_s:
                        continue
                kind = states[state, 0]
                if is_one[stage]:
                    kind = kinds - 1
                there = (kind, end[stage], unit, other)
                least_s[there] = min(least_s[there], adds_s + max(x_s, sync_s))
    return extended
