"""The certificate: how far from the optimum a plan can be at most, and the better plan where the proof finds one.

Left out: finding placements (the methods do).
"""

from collections.abc import Sequence
from dataclasses import replace

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.finders import PROOF, finder
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.incumbent import Incumbent
from heterps_compile.progress import tell
from heterps_compile.units import format_percent

from .prove import prove
from .trivial_bounds import GAP


def certify(
    problem: Problem, result: SearchResult, time_limit_s: float | None = None, starts: Sequence[Placement] = ()
) -> SearchResult:
    """Return the best plan and the best bound known: the method's own, or what the exact search adds in the time.

    The proof begins with the result and with ``starts``. Where it comes upon a plan that is better by more than
    rounding, that plan is the result, ``found_by`` says so, and the bound is about it.

    Args:
        problem: What was placed.
        result: What a method found.
        time_limit_s: For the proof alone; None for no limit.
        starts: Other placements to begin with, such as an old plan's.
    """
    if result.bound >= result.value * (1 - GAP):
        return result
    started = now_s()
    tell("proving", best=result.value)
    incumbent = Incumbent(problem, tells=True)
    proof = prove(problem, Deadline.after(time_limit_s), [result.placement, *starts], incumbent=incumbent)
    best = result if proof.placement is None else better_of(problem, result, proof.placement, PROOF)
    bound = best.value if proof.is_complete else max(result.bound, proof.bound)
    return replace(best, bound=min(best.value, bound), search_s=result.search_s + now_s() - started)


def better_of(problem: Problem, result: SearchResult, placement: Placement, found_by: str) -> SearchResult:
    """Return the result, or the placement in its stead where that is better by more than rounding.

    A note then says who found the plan, and by how much it is better than the method's own.
    """
    value = evaluate_one(problem, placement)
    if not value < result.value * (1 - GAP):
        return result
    note = found_note(problem, result, value, found_by)
    return replace(result, placement=placement, value=value, found_by=found_by, notes=(*result.notes, note))


def found_note(problem: Problem, result: SearchResult, value: float, found_by: str) -> str:
    """Say who found a plan of a value, and by how much it is better than the method's own."""
    share = f"{format_percent(100 * (1 - value / result.value))} {OBJECTIVES[problem.objective].better}"
    return f"the plan was found by {finder(found_by)} and is {share} than the one that {result.method} found by itself"
