"""How much each parameter tells about a trial's result, as bars beside what chance reaches.

Left out: how it is measured (``tuning/importance.py``), the values that do best (the page's table).
"""

from heterps_compile.tuning.importance import Importances
from heterps_compile.units import format_share

from .svg import WIDTH, Picture, legend, line, listed, picture, rect, text
from .text_width import fitting, text_width

MOST_BARS = 30
_BAR, _GAP, _LEFT, _NARROW_LEFT, _LABEL = 18.0, 9.0, 250.0, 12.0, 18.0
_CHANCE = "may be chance"


def importance_bars(found: Importances, *, width: float = WIDTH) -> Picture | None:
    """Draw a bar a parameter; None where nothing was measured."""
    if not found.measured:
        return None
    shown = found.measured[:MOST_BARS]
    is_narrow = width < WIDTH or any(text_width(one.name) > _LEFT - 24 for one in shown)
    left, above = (_NARROW_LEFT, _LABEL) if is_narrow else (_LEFT, 0.0)
    told = [("p0", "share of the variance of ranks"), ("grid-fill", f"below the floor: {_CHANCE}")]
    parts, top = legend([*told, ("p4", "floor: what chance reaches")], width)
    longest = width - left - max(text_width(format_share(one.share)) for one in shown) - 28
    most = max(max(one.share, one.floor) for one in shown) or 1.0
    for index, one in enumerate(shown):
        y = top + index * (_BAR + _GAP + above) + above
        name = fitting(one.name, width - 24 if is_narrow else left - 24)
        parts.append(text(left, y - 5, name) if is_narrow else text(left - 10, y + 13, name, "ink", "end"))
        parts.append(rect(left, y, max(1.0, longest * one.share / most), _BAR, "p0" if one.is_told else "grid-fill"))
        mark = left + longest * one.floor / most
        parts.append(line(mark, y - 3, mark, y + _BAR + 3, "mark"))
        parts.append(text(width - 12, y + 13, format_share(one.share), "ink" if one.is_told else "soft", "end"))
    bottom = top + len(shown) * (_BAR + _GAP + above)
    more = len(found.measured) - MOST_BARS
    notes = [f"{more:,} more parameters, which tell less, are not drawn"] if more > 0 else []
    below, height = listed(notes, width, bottom)
    return picture("importance", "Importance of parameters", height + 2, [*parts, *below], width=width)
