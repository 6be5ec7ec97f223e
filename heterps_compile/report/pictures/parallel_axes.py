"""Parallel coordinates: an axis for every parameter, one below the other, and a line for every configuration.

The axes lie, so that names and values have room for their text on a phone too. A configuration that lacks a parameter
passes at the right end of its axis, behind a gap. The last axis is the metric, the best value at its right.

Left out: parameters with one value alone.
"""

from collections.abc import Container, Sequence

from heterps_compile.tuning.parameters import Choice, Parameter
from heterps_compile.tuning.search_figures import metric_words, ranked, spread, value_words
from heterps_compile.tuning.search_state import FAILED, SearchState, TrialState
from heterps_compile.tuning.space import Space
from heterps_compile.units import counted

from .scale import Scale
from .search_curves import bounded, shown_range
from .svg import WIDTH, Picture, legend, line, listed, picture, text
from .text_width import SMALL, fitting, text_width

MOST_LINES = 240
_MOST_FAILED = 60
MOST_AXES = 24
_MOST_TICKS = 8
_BEST = 0.1  # of the configurations
_LEFT, _RIGHT, _ABSENT, _PITCH, _HALF = 20.0, 20.0, 52.0, 58.0, 4.0
_ABSENT_WORDS = "absent"


def parallel_axes(
    state: SearchState, space: Space, order: Sequence[str] = (), *, width: float = WIDTH
) -> Picture | None:
    """Draw them; None where no configuration was told and none failed.

    Args:
        state: The search.
        space: Its space.
        order: Names of parameters that come first; the others follow in the order of the space.
        width: In pixels.
    """
    best = ranked(state)
    drawn = spread(best, MOST_LINES)
    all_failed = [trial for trial in state.trials if trial.status == FAILED]
    failed = spread(all_failed, _MOST_FAILED)
    left_out = len(best) - len(drawn) + len(all_failed) - len(failed)
    if not drawn and not failed:
        return None
    rank = {name: place for place, name in enumerate(order)}
    varied = [p for p in space.parameters if not (isinstance(p, Choice) and len(p.choices) == 1)]
    varied.sort(key=lambda p: rank.get(p.name, len(rank)))
    axes = varied[:MOST_AXES]
    tenth = {trial.number for trial in best[: max(1, round(_BEST * len(best)))]}
    named = sum(trial.number in tenth for trial in drawn)
    told = [("p4", "the best")] if drawn else []
    told += [("p0", "the best tenth")] if named > 1 else []
    told += [("grid-fill", "others")] if len(drawn) > named else []
    told += [("p1", "failed (dashed)")] if failed else []
    parts, top = legend(told, width)
    low, high, beyond = shown_range(state, [bounded(trial.value) for trial in drawn if trial.value is not None])
    worst, right = (low, high) if state.record.is_maximised else (high, low)
    first, last = _across(width, False)
    metric = Scale(low, high, *((first, last) if state.record.is_maximised else (last, first)))
    lines: list[str] = []
    rows = [top + _PITCH * index + 34 for index in range(len(axes) + 1)]
    has_absent = [any(axis.name not in trial.config for trial in (*drawn, *failed)) for axis in axes]
    for trial in reversed([*drawn, *failed]):
        places = [_place(axis, trial, width, absent) for axis, absent in zip(axes, has_absent, strict=True)]
        places += [metric(bounded(trial.value))] if trial.value is not None else []
        lines.append(_line(places, rows, _classes(trial, drawn, tenth)))
    parts += [line(first, y, last, y, "line") for y in rows[: len(axes) + bool(drawn)]]
    parts += lines
    for axis, absent, y in zip(axes, has_absent, rows, strict=False):
        parts += _axis(axis, absent, y, width)
    if drawn:
        parts += _metric_axis(state, worst, right, rows[-1], width)
    notes = [f"{counted(len(varied) - len(axes), 'more parameter')} not drawn"] if len(varied) > len(axes) else []
    notes += [f"{counted(left_out, 'more configuration')} not drawn, spread evenly"] if left_out else []
    notes += [f"{counted(beyond, 'configuration')} beyond the metric's axis, at its left"] if beyond else []
    below, height = listed(notes, width, rows[-1] + 22)
    return picture("parallel-axes", "Configurations", height + 4, [*parts, *below], width=width)


def _classes(trial: TrialState, drawn: Sequence[TrialState], tenth: Container[int]) -> str:
    if trial.value is None:
        return "l1 thin data"
    if trial is drawn[0]:
        return "l4"
    return "l0 thin" if trial.number in tenth else "line thin faint"


def _across(width: float, absent: bool) -> tuple[float, float]:
    return _LEFT, width - _RIGHT - (_ABSENT if absent else 0.0)


def _place(axis: Parameter, trial: TrialState, width: float, absent: bool) -> float:
    first, last = _across(width, absent)
    if axis.name not in trial.config:
        return width - _RIGHT
    return first + axis.place(trial.config[axis.name]) * (last - first)


def _line(places: Sequence[float], rows: Sequence[float], classes: str) -> str:
    corners = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(places, rows, strict=False))
    return f'<path class="curve {classes}" d="M{corners}"/>'


def _axis(axis: Parameter, absent: bool, y: float, width: float) -> list[str]:
    first, last = _across(width, absent)
    parts = [text(_LEFT, y - 20, fitting(axis.name, width - _LEFT - _RIGHT, bold=True), "ink head halo")]
    for x, words in _ticks(axis, first, last):
        parts.append(line(x, y - _HALF, x, y + _HALF, "line"))
        parts.append(_label(x, y, words, first, last))
    if absent:
        parts.append(line(width - _RIGHT, y - _HALF, width - _RIGHT, y + _HALF, "line"))
        parts.append(text(width - _RIGHT, y - 7, _ABSENT_WORDS, "soft small halo", "end"))
    return parts


def _ticks(axis: Parameter, first: float, last: float) -> list[tuple[float, str]]:
    """Return where the values of an axis stand, and the values: all of a short choice, else both ends."""
    if not isinstance(axis, Choice):
        return [
            (first + axis.place(value) * (last - first), value_words(value))
            for value in dict.fromkeys((axis.low, axis.high))
        ]
    room = (last - first) / len(axis.choices)
    words = [value_words(value) for value in axis.choices]
    if len(words) > _MOST_TICKS or room < 24:
        words = [words[0], *[""] * (len(words) - 2), words[-1]]
        room = (last - first) / 2
    return [
        (first + axis.place(value) * (last - first), fitting(word, room - 6, SMALL))
        for value, word in zip(axis.choices, words, strict=True)
    ]


def _label(x: float, y: float, words: str, first: float, last: float) -> str:
    half = text_width(words, SMALL) / 2
    middle = min(max(x, first + half - 8), last - half + 8)
    return text(middle, y - 7, words, "soft small halo", "middle")


def _metric_axis(state: SearchState, worst: float, best: float, y: float, width: float) -> list[str]:
    first, last = _across(width, False)
    words = metric_words([worst, best])
    ends = [(first, words[0]), (last, words[1])] if worst != best else [((first + last) / 2, words[0])]
    name = fitting(f"{state.record.metric}, the best at the right", width - _LEFT - _RIGHT, bold=True)
    return [
        text(_LEFT, y - 20, name, "ink head halo"),
        *(_label(x, y, said, first, last) for x, said in ends),
    ]
