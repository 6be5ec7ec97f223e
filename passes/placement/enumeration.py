"""Every placement of a problem, for those that have few enough.

Left out: what they cost (``cost/evaluate.py``).
"""

from collections.abc import Iterator

import numpy as np

from heterps_compile.cost.problem import Bools, Ints, Problem

_AT_ONCE = 20_000


def placement_count(problem: Problem) -> float:
    """Return how many choices of types and cuts there are."""
    return float(np.prod([float(options) for options in _options(problem)]))


def _options(problem: Problem) -> list[int]:
    """Return how many choices every layer has: stay in the stage, or begin one on any type; the first begins one."""
    begins = np.where(problem.uncuttable[: problem.layer_count], 0, problem.type_count)
    return [problem.type_count, *(1 + begins[1:]).tolist()]


def every_placement(problem: Problem) -> Iterator[tuple[Ints, Bools]]:
    """Yield types [B, L] and cuts [B, L] of all placements, some at a time."""
    options, count = _options(problem), int(placement_count(problem))
    for start in range(0, count, _AT_ONCE):
        choice = np.stack(np.unravel_index(np.arange(start, min(start + _AT_ONCE, count)), options), axis=1)
        choice[:, 0] += 1  # 0 is to stay, t + 1 to begin a stage on type t
        begins = choice > 0
        origin = np.maximum.accumulate(np.where(begins, np.arange(len(options)), 0), axis=1)
        yield np.take_along_axis(choice, origin, axis=1) - 1, begins
