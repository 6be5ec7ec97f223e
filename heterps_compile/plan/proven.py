"""What a plan's bound proves of it, in words.

Left out: the words for a problem without a plan (``cost/proof.py``).
"""

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.proof import plans_of_the_problem, what_is_proven

from .plan import Plan


def what_the_bound_proves(plan: Plan) -> str:
    """Say what no plan of the same problem is, or "" where no bound is known."""
    if plan.bound <= 0:
        return ""
    objective = OBJECTIVES[plan.request.objective]
    as_rate = objective.name == "throughput" and plan.gap > 0
    return what_is_proven(objective, _layer_count(plan), plan.value / plan.bound - 1 if as_rate else plan.gap)


def what_the_bound_holds_for(plan: Plan) -> str:
    """Name the plans that the bound holds for, or "" where no bound is known."""
    return f"every {plans_of_the_problem(_layer_count(plan))}" if plan.bound > 0 else ""


def _layer_count(plan: Plan) -> int:
    return sum(len(stage.layers) for stage in plan.stages)
