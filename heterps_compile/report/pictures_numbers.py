"""The numbers of two plans beside each other as bars.

Left out: which numbers there are (``plan_diff/numbers.py``).
"""

from collections.abc import Sequence
from math import isfinite

from heterps_compile.plan_diff.numbers import NumberChange
from heterps_compile.plan_diff.sentences import change_of

from .pictures import WIDTH, Picture, line, picture, rect, text

_LEFT, _RIGHT, _TOP = 110.0, 330.0, 50.0
_BAR, _ROW = 14.0, 44.0


def number_bars(numbers: Sequence[NumberChange]) -> Picture:
    """Draw two bars a number, the old above the new; the longer one of a pair is as long as the picture is wide."""
    parts = [rect(12, 13, 14, 14, "grid-fill", more=' rx="3"'), text(32, 24, "before")]
    parts += [rect(92, 13, 14, 14, "p0", more=' rx="3"'), text(112, 24, "after")]
    parts.append(text(170, 24, "every pair of bars has a scale of its own", "soft"))
    for index, number in enumerate(numbers):
        y = _TOP + index * _ROW
        parts += [
            text(_LEFT - 10, y + 20, number.name, "ink", "end"),
            line(_LEFT - 2, y - 3, _LEFT - 2, y + 31, "grid"),
        ]
        most = max(number.old, number.new) or 1.0
        for value, words, classes, top in (
            (number.old, number.old_text, "grid-fill", y),
            (number.new, f"{number.new_text}  {change_of(number)}".rstrip(), "p0", y + _BAR),
        ):
            share = value / most if number.unit and isfinite(most) else 1.0
            width = max(1.0, share * (WIDTH - _LEFT - _RIGHT))
            parts += [rect(_LEFT, top, width, _BAR, classes), text(_LEFT + width + 8, top + 11, words)]
    return picture("numbers", "Numbers before and after", _TOP + len(numbers) * _ROW + 6, parts)
