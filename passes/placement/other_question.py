"""Answer the other question about money where there is a throughput floor: ``price`` beside ``cost``, or the reverse.

The exact search answers it, beginning with the plan of the question that was asked, and the search over orders of the
layers after it, in a time that is their own part of the time limit.

Left out: what is told of it (``plan/other_plan.py``).
"""

from dataclasses import replace

import numpy as np

from heterps_compile.cost.evaluate import detail, evaluate_one
from heterps_compile.cost.layer_orders import reordered
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import FREE_PRICE_PER_HOUR, Problem, SearchResult
from heterps_compile.cost.whole_machines import rented_units
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.drafts import Posed, in_order
from heterps_compile.passes.step_orders import best_steps
from heterps_compile.plan.other_plan import OtherPlan

from .orders.best_order import best_order
from .proof.prove import prove
from .proof.trivial_bounds import GAP
from .steps.minimise_step import least_factor


def has_other_question(problem: Problem) -> bool:
    """Say whether a problem has a floor, and an objective beside which there is another about money."""
    return problem.min_throughput > 0 and other_objective(problem) != ""


def other_objective(problem: Problem) -> str:
    """Return the name of the objective that asks the other question about money; "" for none."""
    return OBJECTIVES[problem.objective].other


def unanswered(problem: Problem, why: str) -> str:
    """Return the note that the other question has no answer."""
    return f"what --objective {other_objective(problem)} would choose is not told: {why}"


def answer_other(draft: Posed, result: SearchResult, time_limit_s: float) -> OtherPlan:
    """Return the best plan by the other objective that is found in the time, in whatever order it takes the layers.

    Args:
        draft: Its problem has the objective that was asked for.
        result: Its plan, which the search begins with.
        time_limit_s: For the search.
    """
    problem, orders = draft.problem, draft.orders
    asked, deadline = replace(problem, objective=other_objective(problem)), Deadline.after(time_limit_s)
    proof = prove(asked, deadline, [result.placement])
    own = result.placement if proof.placement is None else proof.placement
    value = evaluate_one(asked, own)
    bound = value if proof.is_complete else min(proof.bound, value)
    known = SearchResult(own, value, bound, result.method, 0, 0, 0.0)
    best = best_order(asked, orders, result.method, known, deadline.left_s(), is_proven=True)
    known = known if best.result is None else best.result
    found = detail(reordered(asked, orders, best.order) if best.order else asked, known.placement)
    throughput, is_proven = found.throughput, known.bound_of_all_orders >= known.value * (1 - GAP)
    if draft.request.minimises_step:
        posed = replace(draft, problem=asked)
        moved = in_order(posed, best.order) if best.order else posed
        steps = best_steps(
            [
                (moved, [known.placement]),
                (posed, [own, result.placement]),
                (in_order(posed, posed.layers.own_order), []),
            ],
            deadline,
        )
        if (stepped := steps.found.plan) is not None:
            found = detail(steps.draft.problem, stepped.placement, np.array(stepped.step.units, np.float64))
            throughput = problem.batch / stepped.step.step_s
            least = known.bound_of_all_orders * least_factor(steps.of)
            least = max(least, steps.found.bound) if orders.is_fixed else least
            is_proven = least >= stepped.value * (1 - GAP)
    types, replicas = [stage.type for stage in found.stages], [stage.replicas for stage in found.stages]
    used = np.asarray(np.bincount(types, replicas, problem.type_count), np.float64)
    units = {problem.type_names[t]: int(used[t]) for t in np.flatnonzero(used)}
    # what is free has a price to the search, not to the user
    prices = np.where(problem.price_per_hour == FREE_PRICE_PER_HOUR, 0.0, problem.price_per_hour)
    server_price = 0.0 if problem.server_price_per_hour == FREE_PRICE_PER_HOUR else problem.server_price_per_hour
    return OtherPlan(
        objective=asked.objective,
        price_per_hour=float(prices @ rented_units(problem, used)) + found.servers * server_price,
        throughput_samples_per_s=throughput,
        units=units,
        is_proven=is_proven,
        servers_price_per_hour=found.servers * server_price,
    )
