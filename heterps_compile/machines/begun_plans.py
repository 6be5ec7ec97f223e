"""Plans that a search may begin with: those that the bounds of a set have for the best.

With every number of micro-batches there is a shortest time within which units may be enough (``stage_waits.py``), and a
plan that is: stages, and replicas of each. Its step lasts longer, by what the bounds leave out, and mostly by little; a
search that begins with the whole model on all units comes to pipelines of many stages by no way on which every change
is better.

Left out: the search (``step_times.py``); plans with stages that two kinds share.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Ints

from .stage_waits import FoundStage, StageWaits, Within, may_be_enough, plan_within

_LONGER = 1.25  # than that of the best number of micro-batches a time may be for a plan to be taken
_LOOSER = 1.1  # times the shortest, within which there is another plan
_WIDER, _MOST_WIDER = 1.5, 12  # from the lowest bound on, until units are enough
_HALVINGS = 5  # of a ratio of 1.5: the shortest time is known to 1.3 %
_MOST = 6


@dataclass(frozen=True, slots=True)
class BegunPlan:
    """A plan to begin with: its micro-batches, and its stages, in blocks."""

    micro_batches: int
    stages: tuple[FoundStage, ...]


def begun_plans(
    counts: Sequence[int],
    least_s: Callable[[int], float],
    stages_of: Callable[[int], Sequence[StageWaits]],
    within: Callable[[int, float], Within],
    units: Ints,
) -> tuple[BegunPlan, ...]:
    """Return plans on units [kinds], those with the shortest times first.

    Args:
        counts: Numbers of micro-batches, the usual ones first.
        least_s: Returns a bound on the steps of so many.
        stages_of: Returns what plans of so many are made of, by kind.
        within: Returns which plans of so many are looked at within a time.
        units: Of each kind.
    """
    found, shortest_s = list[tuple[float, BegunPlan]](), np.inf
    for count in counts:
        low_s = least_s(count)
        if low_s >= shortest_s * _LONGER:
            continue
        kinds = stages_of(count)

        def is_enough(time_s: float, kinds: Sequence[StageWaits] = kinds, count: int = count) -> bool:
            return bool(may_be_enough(kinds, units[None, :], within(count, time_s))[0])

        high_s, wider = min(low_s * _WIDER, shortest_s * _LONGER), 0
        while not is_enough(high_s) and wider < _MOST_WIDER and high_s < shortest_s * _LONGER:
            low_s, high_s, wider = high_s, min(high_s * _WIDER, shortest_s * _LONGER), wider + 1
        if not is_enough(high_s):
            continue
        for _ in range(_HALVINGS):
            middle_s = float(np.sqrt(low_s * high_s))
            low_s, high_s = (low_s, middle_s) if is_enough(middle_s) else (middle_s, high_s)
        shortest_s = min(shortest_s, high_s)
        for time_s in (high_s, high_s * _LOOSER):
            plan = plan_within(kinds, units, within(count, time_s))
            if plan is not None:
                found.append((time_s, BegunPlan(count, tuple(plan))))
    return tuple(plan for _, plan in sorted(found, key=lambda each: each[0])[:_MOST])
