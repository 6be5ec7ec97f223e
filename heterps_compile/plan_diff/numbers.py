"""The numbers of a plan that a reviewer looks at, and how they change from one plan to another.

Left out: single stages' numbers (the plan file has them).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isclose
from types import MappingProxyType

from heterps_compile.plan.plan import Plan
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE
from heterps_compile.units import format_bytes, format_money, format_rate, format_seconds

_ROUNDING = 1e-9  # relative; what two computations of one number may differ by


@dataclass(frozen=True, slots=True)
class NumberChange:
    """One number of both plans.

    Attributes:
        name: A key of :data:`NUMBERS`.
        scope: What of a plan it is of: one of its readings (``schedule/readings.py``), or all its units; "" where the
            name says it.
        unit: Of both; "" where they are in different currencies, so that they cannot be compared.
        old, new: The numbers.
        old_text, new_text: The same for people, with their units.
    """

    name: str
    scope: str
    unit: str
    old: float
    new: float
    old_text: str
    new_text: str

    @property
    def label(self) -> str:
        """Return the name for people: ``"throughput, steady state"``."""
        return f"{self.name}, {self.scope}" if self.scope else self.name

    @property
    def from_to(self) -> str:
        """Return both for people, the unit once where they share it: ``"2.20 → 2.66 USD/h"``; one where it stayed."""
        if not self.has_changed:
            return self.new_text
        number, _, unit = self.old_text.partition(" ")
        return f"{number if unit == self.new_text.partition(' ')[2] else self.old_text} → {self.new_text}"

    @property
    def has_changed(self) -> bool:
        """Whether the two differ by more than rounding."""
        return not self.unit or not isclose(self.old, self.new, rel_tol=_ROUNDING)

    @property
    def percent(self) -> float:
        """Return the change in percent of the old number: inf where that was 0, nan where they cannot be compared."""
        if not self.unit:
            return float("nan")
        if not self.has_changed:
            return 0.0
        return inf if self.old == 0 else 100 * (self.new / self.old - 1)


@dataclass(frozen=True, slots=True)
class _Number:
    unit: Callable[[Plan], str]
    of: Callable[[Plan], float]
    text: Callable[[Plan, float], str]
    scope: str = ""


def total_memory_bytes(plan: Plan) -> int:
    """Return what all units of all stages hold; stages whose memory is not known hold none."""
    return sum(stage.memory.total_bytes * stage.replicas for stage in plan.stages if stage.memory is not None)


_TABLE: Mapping[str, _Number] = MappingProxyType(
    {
        "price": _Number(
            lambda plan: f"{plan.currency}/h",
            lambda plan: plan.price_per_hour,
            lambda plan, number: f"{format_money(number)} {plan.currency}/h",
        ),
        "cost": _Number(
            lambda plan: f"{plan.currency} per million samples",
            lambda plan: plan.price_per_million_samples,
            lambda plan, number: f"{format_money(number)} {plan.currency} per million samples",
            STEADY_STATE,
        ),
        "throughput": _Number(
            lambda _plan: "samples/s",
            lambda plan: plan.throughput_samples_per_s,
            lambda _plan, number: format_rate(number),
            STEADY_STATE,
        ),
        "step": _Number(
            lambda _plan: "s",
            lambda plan: plan.schedule.step_s,
            lambda _plan, number: format_seconds(number),
            ONE_BATCH_ALONE,
        ),
        "memory": _Number(
            lambda _plan: "B", total_memory_bytes, lambda _plan, number: format_bytes(number), "all units"
        ),
    }
)

NUMBERS = tuple(_TABLE)
"""Price per hour, cost of a million samples, throughput, time of a step, memory of all units."""


def compare_numbers(old: Plan, new: Plan) -> tuple[NumberChange, ...]:
    """Return every number of :data:`NUMBERS` of both plans."""
    return tuple(
        NumberChange(
            name,
            number.scope,
            number.unit(new) if number.unit(old) == number.unit(new) else "",
            number.of(old),
            number.of(new),
            number.text(old, number.of(old)),
            number.text(new, number.of(new)),
        )
        for name, number in _TABLE.items()
    )
