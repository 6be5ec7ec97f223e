"""Bars: memory and price of every stage, and the numbers of two plans beside each other.

Left out: memory over time (``timeline.py``), which numbers there are (``plan_diff/numbers.py``).
"""

from collections.abc import Sequence
from math import isfinite

from heterps_compile.cost.memory import MemoryParts
from heterps_compile.plan.plan import Plan, PlannedStage
from heterps_compile.plan_diff.numbers import NumberChange
from heterps_compile.plan_diff.sentences import change_of
from heterps_compile.units import format_bytes, format_money

from .svg import WIDTH, Picture, device_classes, fitting, line, picture, rect, text, titled

_LEFT, _RIGHT, _TOP = 200.0, 150.0, 50.0
_ROW, _SPACE = 20.0, 9.0
_MOST_ROWS = 120
_PARTS = (
    ("weights", "p0"),
    ("gradients", "p1"),
    ("optimiser state", "p2"),
    ("activations", "p3"),
    ("safety margin", "grid-fill"),
)
_NUMBER_LEFT, _NUMBER_RIGHT, _NUMBER_TOP = 190.0, 330.0, 50.0
_NUMBER_BAR, _NUMBER_ROW = 14.0, 44.0


def memory_bars(plan: Plan) -> Picture:
    """Draw what one replica of every stage holds, part by part, beside what its device has where that is known."""
    stages = [(stage, stage.memory) for stage in plan.stages if stage.memory is not None]
    shown = stages[:_MOST_ROWS]
    most = max((memory.total_bytes for _, memory in shown), default=0) or 1
    scale = (WIDTH - _LEFT - _RIGHT) / most
    there = {device.name: device.memory_bytes for device in plan.devices}
    parts, x = [], 12.0
    for index, (name, colour) in enumerate(_PARTS):
        if not any(_sizes(memory)[index] for _, memory in shown):
            continue
        parts += [rect(x, 13, 14, 14, colour, ' rx="3"'), text(x + 20, 24, name)]
        x += 40 + 6.6 * len(name)
    for index, (stage, memory) in enumerate(shown):
        y = _TOP + index * (_ROW + _SPACE)
        parts += _label(plan, stage, y)
        left = _LEFT
        for (name, colour), size in zip(_PARTS, _sizes(memory), strict=True):
            if size > 0:
                bar = rect(left, y, size * scale, _ROW, colour)
                parts.append(titled(bar, f"{name}: {format_bytes(size)}"))
                left += size * scale
        parts.append(text(left + 8, y + 15, _against(memory.total_bytes, there.get(stage.device))))
    missing = _missing(parts, len(stages) - len(shown), len(shown))
    height = _TOP + len(shown) * (_ROW + _SPACE) + 12 + missing
    return picture("memory", "Memory of one replica of every stage", height, parts)


def price_bars(plan: Plan) -> Picture:
    """Draw the price per hour of every stage, all replicas together."""
    shown = plan.stages[:_MOST_ROWS]
    most = max((stage.price_per_hour for stage in shown), default=0.0) or 1.0
    scale = (WIDTH - _LEFT - _RIGHT) / most
    colours = device_classes(stage.device for stage in plan.stages)
    parts = [text(12, 24, f"{format_money(plan.price_per_hour)} {plan.currency}/h in all", "ink")]
    for index, stage in enumerate(shown):
        y = _TOP + index * (_ROW + _SPACE)
        parts += _label(plan, stage, y)
        width = stage.price_per_hour * scale
        title = f"{stage.replicas} x {stage.device}"
        parts.append(titled(rect(_LEFT, y, max(width, 1), _ROW, f"d{colours[stage.device]}"), title))
        price = f"{format_money(stage.price_per_hour)} {plan.currency}/h" if stage.price_per_hour else "free"
        parts.append(text(_LEFT + width + 8, y + 15, price))
    missing = _missing(parts, len(plan.stages) - len(shown), len(shown))
    height = _TOP + len(shown) * (_ROW + _SPACE) + 12 + missing
    return picture("price", "Price per hour of every stage", height, parts)


def _label(plan: Plan, stage: PlannedStage, y: float) -> list[str]:
    words = fitting(f"stage {stage.index}: {stage.replicas} x {stage.device}", _LEFT - 34)
    return [text(_LEFT - 10, y + 15, words, "ink", "end"), line(_LEFT - 2, y - 3, _LEFT - 2, y + _ROW + 3, "grid")]


def _sizes(memory: MemoryParts) -> Sequence[float]:
    parts = (memory.weights_bytes, memory.gradients_bytes, memory.optimizer_bytes, memory.activations_bytes)
    return (*parts, memory.total_bytes - sum(parts))


def _against(used: float, there: float | None) -> str:
    return format_bytes(used) if there is None else f"{format_bytes(used)} of {format_bytes(there)}"


def _missing(parts: list[str], count: int, shown: int) -> float:
    """Say how many stages are not drawn; return the pixels that takes."""
    if count <= 0:
        return 0.0
    parts.append(text(_LEFT, _TOP + shown * (_ROW + _SPACE) + 12, f"{count} more stages are not drawn", "soft"))
    return 18.0


def number_bars(numbers: Sequence[NumberChange]) -> Picture:
    """Draw two bars a number, the old above the new; the longer one of a pair is as long as the picture is wide."""
    parts = [rect(12, 13, 14, 14, "grid-fill", ' rx="3"'), text(32, 24, "before")]
    parts += [rect(92, 13, 14, 14, "p0", ' rx="3"'), text(112, 24, "after")]
    parts.append(text(170, 24, "every pair of bars has a scale of its own", "soft"))
    for index, number in enumerate(numbers):
        y = _NUMBER_TOP + index * _NUMBER_ROW
        parts += [
            text(_NUMBER_LEFT - 10, y + 20, number.label, "ink", "end"),
            line(_NUMBER_LEFT - 2, y - 3, _NUMBER_LEFT - 2, y + 31, "grid"),
        ]
        most = max(number.old, number.new) or 1.0
        for value, words, classes, top in (
            (number.old, number.old_text, "grid-fill", y),
            (number.new, f"{number.new_text}  {change_of(number)}".rstrip(), "p0", y + _NUMBER_BAR),
        ):
            share = value / most if number.unit and isfinite(most) else 1.0
            width = max(1.0, share * (WIDTH - _NUMBER_LEFT - _NUMBER_RIGHT))
            parts += [
                rect(_NUMBER_LEFT, top, width, _NUMBER_BAR, classes),
                text(_NUMBER_LEFT + width + 8, top + 11, words),
            ]
    return picture("numbers", "Numbers before and after", _NUMBER_TOP + len(numbers) * _NUMBER_ROW + 6, parts)
