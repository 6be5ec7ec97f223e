"""What placements are worth, as columns of a table and as JSON; what would have to change for one to win, as sentences.

Left out: the numbers (``moves.py``, ``what_decides.py``).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from rich.table import Table
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, plain_table
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.escape import printable
from heterps_compile.units import format_money, format_percent, format_seconds, rate_number

from .moves import Outcome
from .what_decides import Decisive

_NARROW = 100  # columns; below, units and the slowest stage are left out
_NEAREST = 2  # levers that a sentence names


@dataclass(frozen=True, slots=True)
class Scale:
    """What numbers of outcomes are in.

    Attributes:
        objective: Name of the objective.
        currency: Of prices.
        batch: Samples of a batch.
        value: The plan's, which changes are relative to.
    """

    objective: str
    currency: str
    batch: int
    value: float

    def describe(self, value: float) -> str:
        """Print a value as briefly as a column needs."""
        return (
            OBJECTIVES[self.objective]
            .describe(value, self.batch, self.currency)
            .removesuffix(" per million samples")
            .removesuffix(" samples/s")
        )

    def change(self, value: float) -> str:
        """Print how the number of a value differs from the plan's; "same" where rounding alone explains it."""
        share = OBJECTIVES[self.objective].change(self.value, value) if self.value > 0 else 0.0
        return "same" if abs(share) < 1e-9 else f"{'+' if share > 0 else ''}{format_percent(100 * share)}"


def outcome_table(scale: Scale, width: int, heading: str, rows: Sequence[tuple[str, Outcome]]) -> Table:
    """Draw what each of some placements is worth; those that are no plan say why."""
    table = plain_table()
    add_text(table, heading, min_width=width // 4)
    add_numbers(table, "plan's value", "change", "samples/s", f"{scale.currency}/h")
    if width >= _NARROW:
        add_text(table, "units", "slowest stage")
    for what, outcome in rows:
        cells = [printable(what), *_cells(scale, outcome)]
        table.add_row(*map(Text, cells if width >= _NARROW else cells[:5]))
    return table


def _cells(scale: Scale, outcome: Outcome) -> list[str]:
    units = [f"{count} {name}" for name, count in outcome.units]
    return [
        scale.describe(outcome.value),
        scale.change(outcome.value),
        rate_number(outcome.throughput),
        format_money(outcome.price_per_hour),
        printable(" + ".join([*units, *(["servers"] if outcome.servers_price_per_hour else [])])),
        f"{outcome.slowest}: {format_seconds(outcome.slowest_s)}, {outcome.slowest_for}",
    ]


def decisive_sentence(what: str, decisive: Sequence[Decisive]) -> str:
    """Say what would have to change for something to be worth as much as the plan."""
    if not decisive:
        numbers = "price, bandwidth, latency, limit or floor"
        return f"{what}: no single {numbers}, changed up to a thousandfold, makes it worth as much"
    return f"{what}: worth as much if {'; or if '.join(one.text for one in decisive[:_NEAREST])}"


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome for a JSON document; what is not finite is null."""
    return {
        "value": finite(outcome.value),
        "throughput_samples_per_s": outcome.throughput,
        "price_per_hour": finite(outcome.price_per_hour),
        "units": dict(outcome.units),
        "servers_price_per_hour": outcome.servers_price_per_hour,
        "stages": outcome.stages,
        "slowest_stage": {
            "index": outcome.slowest,
            "time_s": finite(outcome.slowest_s),
            "takes_it": outcome.slowest_for,
        },
        "received_bytes": outcome.crossing_bytes,
        "fault": outcome.fault or None,
    }


def decisive_document(decisive: Sequence[Decisive]) -> list[dict[str, Any]]:
    """Return levers for a JSON document, the nearest first."""
    return [asdict(one) for one in decisive]


def finite(number: float) -> float | None:
    """Return a number, None for one that JSON has not."""
    return number if isfinite(number) else None
