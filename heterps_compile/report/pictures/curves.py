"""Curves over one axis: what was best over time, how trials learn, methods beside one another.

Values beyond the range that is drawn stand at its edge, and the caller says so.

Left out: which curves there are and what they mean (their callers).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .scale import Scale, wide, widest
from .svg import WIDTH, Picture, legend, line, listed, picture, text
from .text_width import SMALL, text_width

_HEIGHT, _NARROW_HEIGHT, _RIGHT, _TICK, _UP_TICK = 280.0, 220.0, 20.0, 90.0, 46.0
_MOST_POINTS = 600  # of a curve
_DOT = 3.0


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve.

    Attributes:
        points: Across and up, ascending across.
        classes: Of its line: ``l0`` to ``l4``, ``line``, with ``thin`` or ``data`` for a thin or dashed one.
        name: In the legend; "" for none.
        is_stepped: Holds each value until the next one.
        has_dots: Draws its points too.
    """

    points: tuple[tuple[float, float], ...]
    classes: str
    name: str = ""
    is_stepped: bool = False
    has_dots: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn.

    Attributes:
        name: What its file is called.
        title: What it shows.
        axes: In words: what stands over what.
        curves: Drawn in this order, the last one on top and named first.
        dots: Points without a line, below the curves: across, up, and classes of the dot.
        told: More of the legend: classes of the square, and words.
        below: Texts below the picture.
        up: Least and most value up; by default that of the points.
        across: Least and most value across.
        about: More about what it shows.
    """

    name: str
    title: str
    axes: str
    curves: tuple[Curve, ...]
    dots: tuple[tuple[float, float, str], ...] = ()
    told: tuple[tuple[str, str], ...] = ()
    below: tuple[str, ...] = ()
    up: tuple[float, float] | None = None
    across: tuple[float, float] | None = None
    about: str = ""


def draw_curves(plot: Plot, *, width: float = WIDTH) -> Picture:
    """Draw the curves."""
    named = [(_filled(curve), curve.name) for curve in reversed(plot.curves) if curve.name]
    parts, top = legend([*named, *plot.told, ("", plot.axes)], width)
    height = _HEIGHT if width >= WIDTH else _NARROW_HEIGHT
    points = [point for curve in plot.curves for point in curve.points] + [dot[:2] for dot in plot.dots]
    low, high = plot.up or _range([y for _, y in points])
    up = Scale(*wide(low, high), top + height, top)
    up_ticks = up.ticks(round(height / _UP_TICK))
    up_words = up.words(up_ticks)
    left = 12 + widest(up_words) + 8
    across = Scale(*(plot.across or _range([x for x, _ in points])), left, width - _RIGHT)
    for value, words in zip(up_ticks, up_words, strict=True):
        parts += [line(left, up(value), width - _RIGHT, up(value), "grid")]
        parts += [text(left - 8, up(value) + 4, words, "soft small", "end")]
    parts += _across_axis(across, top, top + height, width)
    parts += [f'<circle class="{of}" cx="{across(x):.1f}" cy="{up(y):.1f}" r="{_DOT:g}"/>' for x, y, of in plot.dots]
    for curve in plot.curves:
        parts += _drawn(curve, across, up)
    below, end = listed(list(plot.below), width, top + height + 28)
    return picture(plot.name, plot.title, end + 2, [*parts, *below], about=plot.about, width=width)


def _filled(curve: Curve) -> str:
    """Return the class of a square or a dot in the colour of a curve."""
    first = curve.classes.split(maxsplit=1)[0]
    return f"p{first[1:]}" if first[1:].isdecimal() else "grid-fill"


def _range(values: Sequence[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (0.0, 1.0)


def _across_axis(across: Scale, top: float, bottom: float, width: float) -> list[str]:
    ticks = across.ticks(round((across.last - across.first) / _TICK))
    words, parts, free = across.words(ticks), list[str](), 0.0
    for value, said in zip(ticks, words, strict=True):
        x, half = across(value), text_width(said, SMALL) / 2
        parts.append(line(x, top, x, bottom, "grid"))
        middle = min(max(x, half + 2), width - half - 2)
        if middle - half >= free:
            parts.append(text(middle, bottom + 16, said, "soft small", "middle"))
            free = middle + half + 6
    return parts


def _drawn(curve: Curve, across: Scale, up: Scale) -> list[str]:
    places = [(across(x), up(y)) for x, y in _thinned(curve.points)]
    if not places:
        return []
    (x, y), *others = places
    path = f"M{x:.1f} {y:.1f}" + "".join(
        f"H{x:.1f}V{y:.1f}" if curve.is_stepped else f"L{x:.1f} {y:.1f}" for x, y in others
    )
    parts = [f'<path class="curve {curve.classes}" d="{path}"/>'] if others else []
    if curve.has_dots or not others:
        parts += [f'<circle class="{_filled(curve)}" cx="{x:.1f}" cy="{y:.1f}" r="{_DOT:g}"/>' for x, y in places]
    return parts


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most some hundred points, the first and the last among them."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    step = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(index * step)] for index in range(_MOST_POINTS)]
