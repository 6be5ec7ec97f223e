"""Bars: memory and price of every stage, and the numbers of two plans beside each other.

Left out: memory over time (``timeline.py``), which numbers there are (``plan_diff/numbers.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite

from heterps_compile.cost.memory import MemoryParts
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan_diff.numbers import NumberChange
from heterps_compile.plan_diff.sentences import change_of
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.units import counted, format_bytes, format_money, format_seconds

from .svg import WIDTH, Picture, device_classes, legend, line, listed, picture, rect, text
from .text_width import fitting, text_width

_LEFT, _RIGHT, _NARROW_LEFT = 200.0, 150.0, 12.0
_ROW, _SPACE, _LABEL = 20.0, 9.0, 18.0
_MOST_ROWS = 120
_PART_GAP = 1.0  # pixels between parts of a bar
_ALIKE = 3  # neighbours, that are drawn as one
_PARTS = (
    ("weights", "p0"),
    ("gradients", "p1"),
    ("optimiser state", "p2"),
    ("activations", "p3"),
    ("agreement", "p4"),
    ("safety margin", "grid-fill"),
)
_NUMBER_LEFT, _NUMBER_RIGHT, _NUMBER_BAR, _NUMBER_ROW = 190.0, 330.0, 17.0, 50.0


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of bars: beside their labels, or below them where there is little width."""

    width: float

    @property
    def is_narrow(self) -> bool:
        return self.width < WIDTH

    @property
    def left(self) -> float:
        return _NARROW_LEFT if self.is_narrow else _LEFT

    @property
    def longest(self) -> float:
        return self.width - self.left - _RIGHT

    @property
    def pitch(self) -> float:
        return _ROW + _SPACE + (_LABEL if self.is_narrow else 0.0)

    def bar_y(self, top: float, index: int) -> float:
        return top + index * self.pitch + (_LABEL if self.is_narrow else 0.0)

    def label(self, words: str, y: float) -> list[str]:
        if self.is_narrow:
            return [text(self.left, y - 5, fitting(words, self.width - 24), "ink")]
        shown = fitting(words, self.left - 24)
        ruled = line(self.left - 2, y - 3, self.left - 2, y + _ROW + 3, "grid")
        return [text(self.left - 10, y + 15, shown, "ink", "end"), ruled]

    def missing(self, count: int, top: float, shown: int) -> tuple[list[str], float]:
        """Say how many stages are not drawn; return the elements and the height of all."""
        height = top + shown * self.pitch + 12
        if count <= 0:
            return [], height
        return [text(self.left, height, f"{count} more stages are not drawn", "soft")], height + 18


def memory_bars(plan: Plan, *, width: float = WIDTH) -> Picture:
    """Draw what one replica of every stage holds, part by part, beside what its device has where that is known."""
    rows = _Rows(width)
    runs = [(run, run[0].memory) for run in _runs(plan) if run[0].memory is not None]
    shown = runs[:_MOST_ROWS]
    most = max((memory.total_bytes for _, memory in shown if memory is not None), default=0) or 1
    scale = rows.longest / most
    there = {device.name: device.memory_bytes for device in plan.devices}
    held = [_sizes(memory) for _, memory in shown if memory is not None]
    parts, top = legend(
        ((colour, name) for index, (name, colour) in enumerate(_PARTS) if any(sizes[index] for sizes in held)), width
    )
    alike = [words for sizes in held for words in _told(sizes)]
    for (run, _), sizes in zip(shown, held, strict=True):
        y = rows.bar_y(top, 0)
        parts += rows.label(_words(run), y)
        left = rows.left
        again = ", recomputes" if run[0].recompute else ""
        for (_, colour), size in zip(_PARTS, sizes, strict=True):
            if size > 0:
                parts.append(rect(left, y, max(size * scale - _PART_GAP, _PART_GAP), _ROW, colour))
                left += size * scale
        parts.append(text(left + 8, y + 15, _against(sum(sizes), there.get(run[0].device)) + again))
        below, top = listed(_told(sizes), width, y + _ROW, left=rows.left, alike=alike)
        parts, top = [*parts, *below], top + _SPACE
    said, height = rows.missing(sum(len(run) for run, _ in runs[_MOST_ROWS:]), top, 0)
    return picture("memory", "Memory of one replica of every stage", height, [*parts, *said], width=width)


def price_bars(plan: Plan, *, width: float = WIDTH) -> Picture:
    """Draw the price per hour of every stage, all replicas together."""
    rows, runs = _Rows(width), _runs(plan)
    shown = runs[:_MOST_ROWS]
    prices = [run[0].price_per_hour for run in shown]
    most = max([*prices, plan.parameter_servers.price_per_hour]) or 1.0
    scale = rows.longest / most
    colours = device_classes(stage.device_words for stage in plan.stages)
    parts, top = legend([("", f"{format_money(plan.price_per_hour)} {plan.currency}/h in all")], width)
    for index, run in enumerate(shown):
        stage, y = run[0], rows.bar_y(top, index)
        parts += rows.label(_words(run), y)
        length = stage.price_per_hour * scale
        parts.append(rect(rows.left, y, max(length, 1), _ROW, f"d{colours[stage.device_words]}"))
        price = f"{format_money(stage.price_per_hour)} {plan.currency}/h" if stage.price_per_hour else "free"
        parts.append(text(rows.left + length + 8, y + 15, price if len(run) == 1 else f"{price} each"))
    drawn, servers = len(shown), plan.parameter_servers
    if servers.count:
        y, length = rows.bar_y(top, drawn), servers.price_per_hour * scale
        parts += rows.label(f"parameter servers: {counted(servers.count, 'core')}", y)
        price = f"{format_money(servers.price_per_hour)} {plan.currency}/h" if servers.price_per_hour else "free"
        parts += [rect(rows.left, y, max(length, 1), _ROW, "grid-fill"), text(rows.left + length + 8, y + 15, price)]
        drawn += 1
    said, height = rows.missing(sum(map(len, runs[_MOST_ROWS:])), top, drawn)
    return picture("price", "Price per hour of every stage", height, [*parts, *said], width=width)


def _runs(plan: Plan) -> list[list[PlannedStage]]:
    """Return the stages in runs of neighbours that hold and cost the same; short runs are taken apart."""

    def key(stage: PlannedStage) -> tuple[object, ...]:
        sizes = () if stage.memory is None else tuple(map(format_bytes, _sizes(stage.memory)))
        return (stage.units, stage.price_per_hour, stage.recompute, *sizes)

    runs = [list(run) for _, run in groupby(plan.stages, key)]
    return [part for run in runs for part in ([run] if len(run) >= _ALIKE else [[stage] for stage in run])]


def _words(run: Sequence[PlannedStage]) -> str:
    first, last = run[0], run[-1]
    if first is last:
        return f"stage {first.index}: {first.hardware}"
    return f"{first.index} to {last.index}, each {first.hardware}"


def _sizes(memory: MemoryParts) -> Sequence[float]:
    parts = (
        memory.weights_bytes,
        memory.gradients_bytes,
        memory.optimizer_bytes,
        memory.activations_bytes + memory.copies_bytes,
        memory.sync_bytes,
    )
    return (*parts, memory.total_bytes - sum(parts))


def _told(sizes: Sequence[float]) -> list[str]:
    return [f"{name} {format_bytes(size)}" for (name, _), size in zip(_PARTS, sizes, strict=True) if size > 0]


def _against(used: float, there: float | None) -> str:
    return format_bytes(used) if there is None else f"{format_bytes(used)} of {format_bytes(there)}"


def number_bars(numbers: Sequence[NumberChange], *, width: float = WIDTH) -> Picture:
    """Draw two bars a number, the old above the new; the longer one of a pair is as long as the picture is wide."""
    return _pairs("numbers", "Numbers before and after", ("before", "after"), numbers, width)


def rule_bars(plan: Plan, *, width: float = WIDTH) -> Picture:
    """Draw what the rules of stages move in a step and take after the last backward, beside an all-reduce."""
    numbers = [
        NumberChange(
            f"stage {stage.index}, {parse_rule(stage.sync.rule).name}: {what}",
            "",
            unit,
            old,
            new,
            shown(old),
            shown(new),
        )
        for stage in plan.stages[:_MOST_ROWS]
        if stage.sync is not None
        for what, unit, old, new, shown in (
            ("bytes", "B", stage.sync.all_reduce_bytes, stage.sync.step_bytes, format_bytes),
            ("exposed", "s", stage.sync.all_reduce_s, stage.all_reduce_s, format_seconds),
        )
    ]
    title = "What a replica sends in a step, and what the step waits for, by rule"
    return _pairs("rules", title, ("all-reduce", "the stage's rule"), numbers, width)


def _pairs(name: str, title: str, told: tuple[str, str], numbers: Sequence[NumberChange], width: float) -> Picture:
    """Draw pairs of bars."""
    is_narrow = width < WIDTH
    left = _NARROW_LEFT if is_narrow else _NUMBER_LEFT
    scale = ("", "every pair of bars has a scale of its own")
    parts, top = legend([("grid-fill", told[0]), ("p0", told[1]), scale], width)
    above = _LABEL if is_narrow else 0.0
    for index, number in enumerate(numbers):
        y = top + index * (_NUMBER_ROW + above) + above
        label = fitting(number.name, width - 24 if is_narrow else left - 16)
        parts.append(text(left, y - 5, label) if is_narrow else text(left - 10, y + 21, label, "ink", "end"))
        parts.append(line(left - 2, y - 3, left - 2, y + 37, "grid"))
        most = max(number.old, number.new) or 1.0
        words = (number.old_text, f"{number.new_text}  {change_of(number)}".rstrip())
        beside = max(map(text_width, words)) + 16 if is_narrow else _NUMBER_RIGHT
        longest = max(20.0, width - left - beside)
        for value, said, classes, bar_y in (
            (number.old, words[0], "grid-fill", y),
            (number.new, words[1], "p0", y + _NUMBER_BAR),
        ):
            share = value / most if number.unit and isfinite(most) else 1.0
            length = max(1.0, share * longest)
            shown = fitting(said, width - left - length - 10)
            parts += [rect(left, bar_y, length, _NUMBER_BAR - 2, classes), text(left + length + 8, bar_y + 13, shown)]
    height = top + len(numbers) * (_NUMBER_ROW + above) + 6
    return picture(name, title, height, parts, width=width)
