"""What a plan is the best in: the objectives, and what their values mean.

Every value is lower the better, so that bound and gap mean the same for all::

    cost         price of a million samples               subject to  throughput >= floor
    price        price per hour of the units              throughput >= floor, which there must be
    throughput   seconds a batch takes the slowest stage              price per hour <= budget
    latency      seconds one batch takes through the empty pipeline   throughput >= floor, price per hour <= budget
    max-load     seconds a batch takes the slowest stage,             every stage on one unit of its own
                 without replicas

A proven bound is a bound for the plans of the problem that was posed, and no others. Where every order of the layers
was searched, those are all divisions of the layers into stages; else the layers in one order, with stages that are runs
of it, and beside that bound stands a lower one for all orders. A plan that parts layers is none of either.

``cost`` and ``price`` are two questions about one bill. A job with so many samples to work off ends earlier on a plan
that is faster than the floor, so that the price of a sample counts: ``cost``. A service that is asked for so many
samples per second and no more pays for hours: ``price``. ``cost`` is the default with a floor too: so a floor rules
plans out, and never changes what the others are compared by.

Left out: how values are reached (``evaluate.py``, ``passes/placement``), how a bound is proven (``passes/placement``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from heterps_compile.units import counted, format_money, format_rate, format_seconds

if TYPE_CHECKING:
    from .problem import Floats

Number = TypeVar("Number", float, "Floats")


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective.

    Attributes:
        name: As on the command line.
        meaning: What its value is, in words.
        better: What a plan of a lower value is: ``"cheaper"``.
        takes_budget: Whether a budget per hour may be set.
        in_training: Whether it has a meaning for training.
        needs_floor: Whether a throughput floor must be set.
        sums_at_floor: Whether its value is a sum over stages, none of which depends on a time of a batch other than the
            floor's.
        other: Name of the objective that asks the other question about money; "" for none.
        has_readings: Whether its value is of the steady state or of one batch alone, as is asked for; else it is
            neither.
    """

    name: str
    meaning: str
    better: str
    takes_budget: bool
    in_training: bool = True
    needs_floor: bool = False
    sums_at_floor: bool = False
    other: str = ""
    has_readings: bool = True

    def unit(self, currency: str) -> str:
        """Return the unit of its values."""
        return _UNITS.get(self.name, "seconds per batch").format(currency=currency)

    def paid(self, price_per_hour: Number, throughput: Number) -> Number | None:
        """Return the value of plans with that price per hour and throughput; None where it is a time."""
        if self.name == "cost":
            return price_per_hour / 3600 / throughput * 1e6
        return price_per_hour if self.name == "price" else None

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
        if self.name == "price":
            return f"{format_money(value)} {currency}/h"
        if self.name == "throughput":
            return format_rate(batch / value)
        return f"{format_seconds(value)} a batch"


_UNITS: Mapping[str, str] = MappingProxyType({"cost": "{currency} per million samples", "price": "{currency} per hour"})

OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {
        objective.name: objective
        for objective in (
            Objective("cost", "price of a million samples", "cheaper", takes_budget=False, other="price"),
            Objective(
                "price",
                "price of an hour at the floor",
                "cheaper",
                takes_budget=False,
                needs_floor=True,
                sums_at_floor=True,
                other="cost",
            ),
            Objective("throughput", "time of a batch in the slowest stage", "faster", takes_budget=True),
            Objective(
                "latency",
                "time of a batch through all stages",
                "faster",
                takes_budget=True,
                in_training=False,
                sums_at_floor=True,
                has_readings=False,
            ),
            Objective(
                "max-load",
                "time of a batch in the most loaded device",
                "faster",
                takes_budget=False,
                has_readings=False,
            ),
        )
    }
)
"""The objectives by name; the first is the default."""


_ROUNDING = 1e-12  # relative, of sums of prices


def plans_of_the_problem(layer_count: int, *, in_any_order: bool = False) -> str:
    """Name the plans that a bound holds for: ``"plan that keeps these 54 layers in this order"``."""
    if layer_count == 1:
        return "plan for this one layer"
    layers = f"these {counted(layer_count, 'layer')}"
    return f"plan of {layers}" if in_any_order else f"plan that keeps {layers} in this order"


def what_is_proven(objective: Objective, layer_count: int, better_by: float, better_in_any: float | None = None) -> str:
    """Say what a bound proves of a plan.

    Args:
        objective: Of the plan.
        layer_count: Layers of the model.
        better_by: How much better the bound is than the plan, as a part: 0 where the bound is reached, or anything
            that adding prices in another order can make of 0.
        better_in_any: The same of the bound for all orders of the layers; None where none is known.
    """
    in_any_order = better_in_any is not None and better_in_any <= better_by + _ROUNDING
    plan = plans_of_the_problem(layer_count, in_any_order=in_any_order)
    said = f"no {plan} is {_more_than(better_by)}{objective.better}"
    if better_in_any is None or in_any_order or layer_count == 1 or not math.isfinite(better_in_any):
        return said
    return f"{said}; in other orders a plan may be up to {100 * better_in_any:.3g} % {objective.better}"


def _more_than(better_by: float) -> str:
    return f"more than {100 * better_by:.3g} % " if better_by > _ROUNDING else ""
