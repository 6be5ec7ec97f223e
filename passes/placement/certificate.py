"""The certificate: how far from the optimum a placement can be at most, whoever found it.

Left out: finding placements (the methods do).
"""

import time
from dataclasses import replace

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Problem, SearchResult

from .interval_search import GAP
from .paths import Deadline
from .prove import prove

_WORTH_A_NOTE = 1e-6  # relative; below it a better plan is no news


def certify(problem: Problem, result: SearchResult, time_limit_s: float | None = None) -> SearchResult:
    """Give the result with the best bound that the exact search proves in the time, or its own where that is better.

    The placement stays the method's own. Where the search comes upon a better one, a note says so.

    Args:
        problem: What was placed.
        result: What a method found.
        time_limit_s: For the proof alone; None for no limit.
    """
    if result.bound >= result.value * (1 - GAP):
        return result
    started = time.monotonic()
    proof = prove(problem, Deadline.after(time_limit_s), [result.placement])
    proven, notes = proof.bound, result.notes
    if proof.best < result.value * (1 - _WORTH_A_NOTE):
        better = OBJECTIVES[problem.objective].better
        notes += (f"the proof came upon a plan {1 - proof.best / result.value:.2%} {better}; --method exact gives it",)
    if proof.is_complete and proof.best >= result.value * (1 - GAP):
        proven = result.value
    return replace(
        result,
        bound=min(result.value, max(result.bound, proven)),
        search_s=result.search_s + time.monotonic() - started,
        notes=notes,
    )
