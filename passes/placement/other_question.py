"""Answer the other question about money where there is a throughput floor: ``price`` beside ``cost``, or the reverse.

The exact search answers it, beginning with the plan of the question that was asked, in a time that is its own part of
the time limit.

Left out: what is told of it (``plan/other_plan.py``).
"""

from dataclasses import replace

import numpy as np

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.pose import FREE_PRICE_PER_HOUR
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.passes.deadline import Deadline
from heterps_compile.plan.other_plan import OtherPlan

from .proof.prove import prove


def has_other_question(problem: Problem) -> bool:
    """Say whether a problem has a floor, and an objective beside which there is another about money."""
    return problem.min_throughput > 0 and other_objective(problem) != ""


def other_objective(problem: Problem) -> str:
    """Return the name of the objective that asks the other question about money; "" for none."""
    return OBJECTIVES[problem.objective].other


def unanswered(problem: Problem, why: str) -> str:
    """Return the note that the other question has no answer."""
    return f"what --objective {other_objective(problem)} would choose is not told: {why}"


def answer_other(problem: Problem, result: SearchResult, time_limit_s: float) -> OtherPlan:
    """Return the best plan by the other objective that the exact search finds in the time."""
    asked = replace(problem, objective=other_objective(problem))
    proof = prove(asked, Deadline.after(time_limit_s), [result.placement])
    placement: Placement = result.placement if proof.placement is None else proof.placement
    found = detail(asked, placement)
    types, replicas = [stage.type for stage in found.stages], [stage.replicas for stage in found.stages]
    used = np.bincount(types, replicas, problem.type_count)
    units = {problem.type_names[t]: int(used[t]) for t in np.flatnonzero(used)}
    # what is free has a price to the search, not to the user
    prices = np.where(problem.price_per_hour == FREE_PRICE_PER_HOUR, 0.0, problem.price_per_hour)
    return OtherPlan(
        objective=asked.objective,
        price_per_hour=float(prices @ used),
        throughput_samples_per_s=found.throughput,
        units=units,
        is_proven=proof.is_complete,
    )
