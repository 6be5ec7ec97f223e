"""What a proven bound is a bound for, in words: the plans of the problem that was posed, and no others.

The problem has the model's layers in one order, and stages that are runs of that order. A plan that takes the layers in
another order, or parts them otherwise, is none of those that a bound is about.

Left out: how a bound is proven (``passes/placement``).
"""

from heterps_compile.units import counted

from .objective import Objective


def plans_of_the_problem(layer_count: int) -> str:
    """Name the plans that a bound holds for: ``"plan that keeps these 54 layers in this order"``."""
    if layer_count == 1:
        return "plan for this one layer"
    return f"plan that keeps these {counted(layer_count, 'layer')} in this order"


def what_is_proven(objective: Objective, layer_count: int, better_by: float) -> str:
    """Say what a bound proves of a plan.

    Args:
        objective: Of the plan.
        layer_count: Layers of the model.
        better_by: How much better the bound is than the plan, as a part: 0 where the bound is reached.
    """
    by = f"more than {100 * better_by:.3g} % " if better_by else ""
    return f"no {plans_of_the_problem(layer_count)} is {by}{objective.better}"
