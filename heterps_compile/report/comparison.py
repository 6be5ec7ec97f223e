"""A comparison of placement methods: a table for the terminal, a bar chart as SVG.

Left out: running the methods (``compare.py``).
"""

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.proof import plans_of_the_problem
from heterps_compile.escape import printable, shorten
from heterps_compile.plan.comparison import Comparison
from heterps_compile.units import counted, format_money, format_rate, format_seconds

from .pictures import Picture, line, picture, rect, text
from .tables import add_numbers, add_text, plain_table

_BAR, _GAP, _LEFT, _WIDTH, _TOP = 22, 8, 140, 660, 66  # of the chart, in pixels


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print one row a method: price, ratio to the bound, placements tried, time."""
    table = plain_table()
    add_text(table, "method")
    objective = OBJECTIVES[comparison.objective]
    add_numbers(table, objective.name.replace("-", " "), "x bound", "tried", "time")
    add_text(table, "")
    for row in comparison.results:
        ratio = f"{row.value / comparison.bound:.3f}" if _is_known(comparison, row.value) else "-"
        reached = _short(comparison, row.value) if math.isfinite(row.value) else "no plan"
        cells = [row.method, reached, ratio, f"{row.evaluations:,}", format_seconds(row.search_s)]
        table.add_row(*map(Text, [*cells, shorten(printable(row.fault), 60)]))
    console.print(table)
    console.print()
    size = f"{counted(comparison.layer_count, 'layer')}, {counted(comparison.type_count, 'device type')}"
    console.print(Text(f"{printable(comparison.model)}: {size}"))
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
            rate = format_rate(row.throughput_samples_per_s).removesuffix(" samples/s")
            cells = [_short(comparison, row.value), f"{row.value / exact:.3f}", format_money(row.price_per_hour), rate]
        else:
            cells = ["no plan", "-", "-", "-"]
        table.add_row(*map(Text, [row.rule, *cells, shorten(printable(row.fault), 60)]))
    return table


def comparison_picture(comparison: Comparison) -> Picture:
    """Draw one bar a method, the bound as a line across."""
    rows = comparison.results
    values = [row.value for row in rows if math.isfinite(row.value)]
    largest = max([*values, comparison.bound if math.isfinite(comparison.bound) else 0.0]) or 1.0
    height = _TOP + len(rows) * (_BAR + _GAP) + 16
    unit = OBJECTIVES[comparison.objective].unit(comparison.currency)
    title = f"{shorten(printable(comparison.model), 40)}: {comparison.objective}, {unit}; less is better"
    parts = [text(12, 24, title, "ink head")]
    if math.isfinite(comparison.bound):
        holds = f"proven bound: for every {plans_of_the_problem(comparison.layer_count)}"
        parts.append(text(12, 40, holds, "soft"))
    for index, row in enumerate(rows):
        top = _TOP + index * (_BAR + _GAP)
        middle = top + _BAR * 0.7
        parts.append(text(_LEFT - 8, middle, row.method, "ink", "end"))
        if not math.isfinite(row.value):
            parts.append(text(_LEFT + 6, middle, "no plan", "soft"))
            continue
        width = _WIDTH * row.value / largest
        parts.append(rect(_LEFT, top, width, _BAR, "p0"))
        parts.append(text(_LEFT + width + 6, middle, _short(comparison, row.value)))
    if math.isfinite(comparison.bound):
        x = _LEFT + _WIDTH * comparison.bound / largest
        parts.append(line(x, _TOP - 10, x, height - 10, "mark"))
        parts.append(text(x, _TOP - 14, "proven bound", "p4", "middle"))
    return picture("methods", f"Methods compared with the proven bound: {comparison.objective}", height, parts)


def comparison_svg(comparison: Comparison) -> str:
    """Return the text of :func:`comparison_picture`: self-contained, readable on light and dark."""
    return comparison_picture(comparison).svg


def _short(comparison: Comparison, value: float) -> str:
    """Print a value without the words that the whole comparison shares."""
    text = OBJECTIVES[comparison.objective].describe(value, comparison.batch, comparison.currency)
    return text.removesuffix(" per million samples").removesuffix(" a batch")


def _is_known(comparison: Comparison, value: float) -> bool:
    return math.isfinite(value) and math.isfinite(comparison.bound) and comparison.bound > 0
