"""A comparison of placement methods as tables for the terminal.

Left out: running the methods (``compare_methods.py``), the picture (``report/pictures/method_bars.py``).
"""

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, plain_table
from heterps_compile.cost.objective import OBJECTIVES, plans_of_the_problem
from heterps_compile.escape import printable, shorten
from heterps_compile.schedule.readings import STEADY_STATE
from heterps_compile.units import counted, format_money, format_seconds, rate_number

from .comparison import Comparison


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print one row a method: price, ratio to the bound, placements tried, time."""
    table = plain_table()
    add_text(table, "method")
    objective = OBJECTIVES[comparison.objective]
    add_numbers(table, objective.name.replace("-", " "), "x bound", "tried", "time")
    add_text(table, "")
    for row in comparison.results:
        ratio = f"{row.value / comparison.bound:.3f}" if _is_known(comparison, row.value) else "-"
        reached = value_text(comparison, row.value) if math.isfinite(row.value) else "no plan"
        cells = [row.method, reached, ratio, f"{row.evaluations:,}", format_seconds(row.search_s)]
        table.add_row(*map(Text, [*cells, shorten(printable(row.fault), 60)]))
    console.print(table)
    console.print()
    size = f"{counted(comparison.layer_count, 'layer')}, {counted(comparison.type_count, 'device type')}"
    reading = "" if objective.name in ("latency", "max-load") else f"; values and samples/s in the {STEADY_STATE}"
    console.print(Text(f"{printable(comparison.model)}: {size}{reading}"))
    if math.isfinite(comparison.bound):
        described = objective.describe(comparison.bound, comparison.batch, comparison.currency)
        console.print(Text(f"proven bound: {described}, for every {plans_of_the_problem(comparison.layer_count)}"))
    if comparison.provisionings:
        console.print()
        console.print(_provisionings(comparison))


def _provisionings(comparison: Comparison) -> Table:
    """Draw one row a rule: what the best placement costs when it decides on the replicas."""
    table = plain_table()
    add_text(table, "provisioning of the best plan")
    add_numbers(table, "cost", "x exact", f"{comparison.currency}/h", "samples/s")
    add_text(table, "")
    exact = comparison.provisionings[0].value
    for row in comparison.provisionings:
        if math.isfinite(row.value):
            cells = [
                value_text(comparison, row.value),
                f"{row.value / exact:.3f}",
                format_money(row.price_per_hour),
                rate_number(row.throughput_samples_per_s),
            ]
        else:
            cells = ["no plan", "-", "-", "-"]
        table.add_row(*map(Text, [row.rule, *cells, shorten(printable(row.fault), 60)]))
    return table


def value_text(comparison: Comparison, value: float) -> str:
    """Return a value without the words that the whole comparison shares."""
    text = OBJECTIVES[comparison.objective].describe(value, comparison.batch, comparison.currency)
    return text.removesuffix(" per million samples").removesuffix(" a batch")


def _is_known(comparison: Comparison, value: float) -> bool:
    return math.isfinite(value) and math.isfinite(comparison.bound) and comparison.bound > 0
