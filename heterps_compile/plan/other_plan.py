"""The plan that the other question about money would choose: beside ``cost`` that of ``price``, and the reverse.

It is told beside a plan with a throughput floor, since who gives one may have meant either (``cost/objective.py``).

Left out: how it is found (``passes/placement/other_question.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.units import format_percent, format_rate

TELLING = 0.01
"""By how much better, as a part, the other plan must be to be told."""


@dataclass(frozen=True, slots=True)
class OtherPlan:
    """The plan of the other objective for the same model, pool and request.

    Attributes:
        objective: Its name.
        price_per_hour: Of all units and servers.
        throughput_samples_per_s: In the reading that the plan beside it is valued in.
        units: Of every device type that it uses, by name.
        is_proven: Whether no plan of the same problem is better by that objective.
        servers_price_per_hour: A part of the price: of servers that hold tables.
    """

    objective: str
    price_per_hour: float
    throughput_samples_per_s: float
    units: Mapping[str, int]
    is_proven: bool
    servers_price_per_hour: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as plan files and documents have it."""
        return {
            "objective": self.objective,
            "price_per_hour": self.price_per_hour,
            "throughput_samples_per_s": self.throughput_samples_per_s,
            "units": dict(self.units),
            "is_proven": self.is_proven,
            **({"servers_price_per_hour": self.servers_price_per_hour} if self.servers_price_per_hour else {}),
        }

    @property
    def value(self) -> float:
        """Return its objective."""
        paid = OBJECTIVES[self.objective].paid(self.price_per_hour, self.throughput_samples_per_s)
        if paid is None:
            raise ValueError(f"the objective {self.objective!r} does not follow from price and throughput")
        return paid

    def sentence(self, price_per_hour: float, throughput: float, currency: str) -> str:
        """Say what it saves against a plan with that price per hour and throughput; "" where that is next to nothing.

        Names are as the pool has them, not escaped.

        Args:
            price_per_hour: Of the plan.
            throughput: Of the plan, samples/s in the reading that it is valued in.
            currency: Of the prices.
        """
        objective = OBJECTIVES[self.objective]
        value = objective.paid(price_per_hour, throughput)
        if not value:
            return ""
        if objective.better_by(value, self.value) <= TELLING:
            return "" if self.is_proven else _UNKNOWN[self.objective]
        what = _WHAT[self.objective].format("the cheapest" if self.is_proven else "a cheaper")
        change = format_percent(100 * objective.change(value, self.value))
        units = " and ".join(f"{count} x {name}" for name, count in self.units.items())
        figures = f"{objective.describe(self.value, 1, currency)} ({change})"
        rate = format_rate(self.throughput_samples_per_s)
        return f"{what} is {figures}, on {units} at {rate}: --objective {self.objective}"


_WHAT = {
    "price": "{} hourly bill that meets the floor",
    "cost": "{} price of a million samples at or above the floor",
}
_UNKNOWN = {
    objective: f"whether there is {words.format('a cheaper')} is not known, as the search for it "
    f"did not end in its time: --objective {objective}"
    for objective, words in _WHAT.items()
}
