"""Placement methods compared, as bars.

Left out: running the methods and the tables of them (``bench/``).
"""

import math

from heterps_compile.bench.comparison import Comparison
from heterps_compile.bench.comparison_words import value_text
from heterps_compile.cost.objective import OBJECTIVES, plans_of_the_problem
from heterps_compile.escape import printable, shorten

from .svg import WIDTH, Picture, legend, line, picture, rect, text
from .text_width import fitting, text_width

_BAR, _GAP, _LEFT, _NARROW_LEFT, _LABEL = 22, 8, 140.0, 12.0, 18.0  # pixels


def method_bars(comparison: Comparison, *, width: float = WIDTH) -> Picture:
    """Draw one bar a method, and the bound as a line across them."""
    rows, is_narrow = comparison.results, width < WIDTH
    left, above = (_NARROW_LEFT, _LABEL) if is_narrow else (_LEFT, 0.0)
    values = [row.value for row in rows if math.isfinite(row.value)]
    beside = max((text_width(value_text(comparison, value)) for value in values), default=0.0) + 20
    longest = width - left - beside
    largest = max([*values, comparison.bound if math.isfinite(comparison.bound) else 0.0]) or 1.0
    unit = OBJECTIVES[comparison.objective].unit(comparison.currency)
    told = [("", f"{shorten(printable(comparison.model), 40)}: {comparison.objective}, {unit}; less is better")]
    if math.isfinite(comparison.bound):
        bound = value_text(comparison, comparison.bound)
        told.append(("p4", f"proven bound, {bound}, for every {plans_of_the_problem(comparison.layer_count)}"))
    parts, top = legend(told, width)
    pitch = _BAR + _GAP + above
    height = top + len(rows) * pitch + 12
    for index, row in enumerate(rows):
        y = top + index * pitch + above
        middle = y + _BAR * 0.7
        name = fitting(row.method, width - 24 if is_narrow else left - 16)
        parts.append(text(left, y - 5, name) if is_narrow else text(left - 8, middle, name, "ink", "end"))
        if not math.isfinite(row.value):
            parts.append(text(left + 6, middle, "no plan", "soft"))
            continue
        length = longest * row.value / largest
        parts.append(rect(left, y, length, _BAR, "p0"))
        parts.append(text(left + length + 8, middle, value_text(comparison, row.value)))
        if math.isfinite(comparison.bound):
            x = left + longest * comparison.bound / largest
            parts.append(line(x, y - 3, x, y + _BAR + 3, "mark"))
    return picture("methods", "Methods compared with the proven bound", height, parts, width=width)
