"""What a plan is the best in: the objectives, and what their values mean.

Every value is lower the better, so that bound and gap mean the same for all::

    cost         price of a million samples               subject to  throughput >= floor
    throughput   seconds a batch takes the slowest stage              price per hour <= budget
    latency      seconds one batch takes through the empty pipeline   throughput >= floor, price per hour <= budget
    max-load     seconds a batch takes the slowest stage,             every stage on one unit of its own
                 without replicas

Left out: how they are reached (``evaluate.py``, ``passes/placement``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from heterps_compile.units import format_money, format_rate, format_seconds


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
