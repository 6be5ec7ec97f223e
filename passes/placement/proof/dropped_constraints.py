"""Which constraints rule something out: the fewest whose removal makes it possible, found by removing them.

A constraint that happens to be named first is not the reason where the same would be impossible without it. So each is
taken away in turn, then two together, and so on, until what was impossible is possible.

Left out: limits on units and the budget, which the reasons about prices name with numbers (``why_infeasible.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType

import numpy as np

from heterps_compile.cost.problem import Problem
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline, TimeUpError

PINS = "pins and forbidden pairs (--pin, --forbid)"
MEMORY = "memory"
MOST_STAGES = "the most stages allowed (--max-stages)"
FEWEST_STAGES = "the fewest stages asked for (--min-stages)"


def _without_pins(problem: Problem) -> Problem:
    return replace(problem, allowed=np.ones_like(problem.allowed))


def _without_memory(problem: Problem) -> Problem:
    room = np.full(problem.type_count, np.inf)
    rules = None if problem.rules is None else tuple(replace(each, room_bytes=room) for each in problem.rules)
    return replace(problem, memory_bytes=room, rules=rules)


def _without_most(problem: Problem) -> Problem:
    return replace(problem, max_stages=max(problem.layer_count, problem.min_stages))


def _without_fewest(problem: Problem) -> Problem:
    return replace(problem, min_stages=1)


WITHOUT: Mapping[str, Callable[[Problem], Problem]] = MappingProxyType(
    {MEMORY: _without_memory, PINS: _without_pins, MOST_STAGES: _without_most, FEWEST_STAGES: _without_fewest}
)
"""What a problem is without each of the constraints."""


def without(problem: Problem, names: Sequence[str]) -> Problem:
    """Return a problem without some of its constraints."""
    for name in names:
        problem = WITHOUT[name](problem)
    return problem


def fewest_to_drop(
    problem: Problem, is_possible: Callable[[Problem], bool], among: Sequence[str], deadline: Deadline = NO_DEADLINE
) -> tuple[tuple[str, ...], ...] | None:
    """Return the smallest sets of constraints without which something is possible, all of one size.

    Args:
        problem: For which it is impossible.
        is_possible: Whether it is for another problem; monotonic in constraints.
        among: The constraints to take away, names of :data:`WITHOUT`.
        deadline: When to stop.

    Returns:
        Every set of the smallest size that will do, empty where it stays impossible without all of them; None where
        the time did not suffice.
    """
    for size in range(1, len(among) + 1):
        found = []
        for names in combinations(among, size):
            try:
                deadline.check()
                if is_possible(without(problem, names)):
                    found.append(names)
            except TimeUpError:
                return None
        if found:
            return tuple(found)
    return ()


def in_words(sets: Sequence[Sequence[str]]) -> str:
    """Name sets of constraints: those of one set go together, any one set is enough to drop."""
    return ", or ".join(" and ".join(names) for names in sets)
