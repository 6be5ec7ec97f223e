"""What a plan is the best in: the objectives, and what their values mean.

Every value is lower the better, so that bound and gap mean the same for all::

    cost         price of a million samples               subject to  throughput >= floor
    throughput   seconds a batch takes the slowest stage              price per hour <= budget
    latency      seconds one batch takes through the empty pipeline   throughput >= floor, price per hour <= budget
    max-load     seconds a batch takes the slowest stage,             every stage on one unit of its own
                 without replicas

A proven bound is a bound for the plans of the problem that was posed, and no others: the model's layers in one order,
and stages that are runs of that order. A plan that takes the layers in another order, or parts them otherwise, is none
of those that a bound is about.

Left out: how values are reached (``evaluate.py``, ``passes/placement``), how a bound is proven (``passes/placement``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from heterps_compile.units import counted, format_money, format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective.

    Attributes:
        name: As on the command line.
        meaning: What its value is, in words.
        better: What a plan of a lower value is: ``"cheaper"``.
        takes_budget: Whether a budget per hour may be set.
        in_training: Whether it has a meaning for training.
    """

    name: str
    meaning: str
    better: str
    takes_budget: bool
    in_training: bool = True

    def unit(self, currency: str) -> str:
        """Return the unit of its values."""
        return f"{currency} per million samples" if self.name == "cost" else "seconds per batch"

    def change(self, value: float, other: float) -> float:
        """Return how the number that is printed changes from one value to another: 0.05 for +5 %.

        A throughput grows as its value, the time of a batch, falls; of the other objectives the value is printed.
        """
        if self.name != "throughput":
            return other / value - 1
        return value / other - 1 if other > 0 else float("inf")

    def better_by(self, value: float, other: float) -> float:
        """Return by which part of the printed number another value is better; below 0 where it is worse."""
        return self.change(value, other) * (1 if self.name == "throughput" else -1)

    def describe(self, value: float, batch: int, currency: str) -> str:
        """Print a value for people: a price, a throughput, a time."""
        if self.name == "cost":
            return f"{format_money(value)} {currency} per million samples"
        if self.name == "throughput":
            return format_rate(batch / value)
        return f"{format_seconds(value)} a batch"


OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {
        objective.name: objective
        for objective in (
            Objective("cost", "price of a million samples", "cheaper", takes_budget=False),
            Objective("throughput", "time of a batch in the slowest stage", "faster", takes_budget=True),
            Objective("latency", "time of a batch through all stages", "faster", takes_budget=True, in_training=False),
            Objective("max-load", "time of a batch in the most loaded device", "faster", takes_budget=False),
        )
    }
)
"""The objectives by name; the first is the default."""


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
