"""Placement methods compared, as bars.

Left out: running the methods and the tables of them (``bench/``).
"""

import math

from heterps_compile.bench.comparison import Comparison
from heterps_compile.bench.comparison_words import value_text
from heterps_compile.cost.objective import OBJECTIVES, plans_of_the_problem
from heterps_compile.escape import printable, shorten

from .svg import Picture, line, picture, rect, text

_BAR, _GAP, _LEFT, _WIDTH, _TOP = 22, 8, 140, 660, 66  # pixels


def method_bars(comparison: Comparison) -> Picture:
    """Draw one bar a method, and the bound as a line across them."""
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
        parts.append(text(_LEFT + width + 6, middle, value_text(comparison, row.value)))
    if math.isfinite(comparison.bound):
        x = _LEFT + _WIDTH * comparison.bound / largest
        parts.append(line(x, _TOP - 10, x, height - 10, "mark"))
        parts.append(text(x, _TOP - 14, "proven bound", "p4", "middle"))
    return picture("methods", f"Methods compared with the proven bound: {comparison.objective}", height, parts)
