"""A comparison of placement methods: a table for the terminal, a bar chart as SVG.

Left out: running the methods (``compare.py``).
"""

import math
from html import escape

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.escape import printable, shorten
from heterps_compile.plan.comparison import Comparison
from heterps_compile.units import format_money, format_rate, format_seconds

from .tables import add_numbers, add_text, plain_table

_BAR, _GAP, _LEFT, _WIDTH, _TOP = 22, 8, 110, 520, 56  # of the chart, in pixels


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
    size = f"{comparison.layer_count} layers, {comparison.type_count} device types"
    console.print(Text(f"{printable(comparison.model)}: {size}"))
    if math.isfinite(comparison.bound):
        described = objective.describe(comparison.bound, comparison.batch, comparison.currency)
        console.print(Text(f"proven bound: {described}"))
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


def comparison_svg(comparison: Comparison) -> str:
    """Draw one bar a method, the bound as a line across; self-contained, readable on light and dark."""
    rows = comparison.results
    values = [row.value for row in rows if math.isfinite(row.value)]
    largest = max([*values, comparison.bound if math.isfinite(comparison.bound) else 0.0]) or 1.0
    height = _TOP + len(rows) * (_BAR + _GAP) + 16
    unit = OBJECTIVES[comparison.objective].unit(comparison.currency)
    title = f"{escape(shorten(printable(comparison.model), 40))}: {escape(comparison.objective)}, {escape(unit)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 110} {height}" role="img" '
        f'aria-label="{title}" font-family="system-ui, sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15" fill="#111">{title}</text>',
    ]
    for index, row in enumerate(rows):
        top = _TOP + index * (_BAR + _GAP)
        middle = top + _BAR * 0.7
        parts.append(
            f'<text x="{_LEFT - 8}" y="{middle:.1f}" text-anchor="end" fill="#111">{escape(row.method)}</text>'
        )
        if not math.isfinite(row.value):
            parts.append(f'<text x="{_LEFT + 6}" y="{middle:.1f}" fill="#777">no plan</text>')
            continue
        width = _WIDTH * row.value / largest
        parts.append(f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="#3b76af"/>')
        label = escape(_short(comparison, row.value))
        parts.append(f'<text x="{_LEFT + width + 6:.1f}" y="{middle:.1f}" fill="#111">{label}</text>')
    if math.isfinite(comparison.bound):
        x = _LEFT + _WIDTH * comparison.bound / largest
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 10}" y2="{height - 10}" stroke="#c2452d" stroke-width="2"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{_TOP - 14}" text-anchor="middle" fill="#c2452d">proven bound</text>')
    return "\n".join([*parts, "</svg>\n"])


def _short(comparison: Comparison, value: float) -> str:
    """Print a value without the words that the whole comparison shares."""
    text = OBJECTIVES[comparison.objective].describe(value, comparison.batch, comparison.currency)
    return text.removesuffix(" per million samples").removesuffix(" a batch")


def _is_known(comparison: Comparison, value: float) -> bool:
    return math.isfinite(value) and math.isfinite(comparison.bound) and comparison.bound > 0
