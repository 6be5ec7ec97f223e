"""Of the plans of one price per hour, the fastest.

Replicas are whole numbers, so many plans have the price that is lowest: a cut moves, and every stage still needs as
many units. Of those the fastest is taken, whose samples are the cheapest. It is the best plan for the throughput within
that price as a budget, which the exact search finds and proves.

Left out: which of the fastest plans it is, where there are several: the one that the search comes upon first.
"""

from dataclasses import replace

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.finders import PROOF
from heterps_compile.cost.problem import Problem, SearchResult
from heterps_compile.passes.deadline import Deadline, now_s

from .prove import prove
from .trivial_bounds import GAP

LATE = "other plans of this price per hour may be faster: the time was up before all of them were ruled out"


def fastest_at_price(problem: Problem, result: SearchResult, time_limit_s: float) -> SearchResult:
    """Return a result with the fastest placement of its price; a note says where the time did not suffice to know.

    Args:
        problem: For the objective ``price``.
        result: What was found for it.
        time_limit_s: For the search.
    """
    started = now_s()
    within = replace(problem, objective="throughput", budget_per_hour=result.value)
    proof = prove(within, Deadline.after(time_limit_s), [result.placement])
    notes = result.notes if proof.is_complete else (*result.notes, LATE)
    found = replace(result, notes=notes, search_s=result.search_s + now_s() - started)
    if proof.placement is None:
        return found
    before, after = detail(problem, result.placement), detail(problem, proof.placement)
    if after.faults or not after.throughput > before.throughput * (1 + GAP) or after.value > before.value * (1 + GAP):
        return found
    return replace(found.with_placement(proof.placement, after.value), found_by=PROOF)
