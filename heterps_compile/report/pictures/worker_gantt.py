"""What every worker ran when, as rows of pieces: attempts that ended well, failed, were cut off, and still run.

Attempts that failed or were cut off have another colour and are lower than the others, so that they are told apart
without colours too. Where a worker has more attempts than pixels can tell apart, neighbours of one kind are drawn as
one.

Left out: how busy a class was, and what trials are (the page's tables).
"""

from collections.abc import Iterator, Sequence

from heterps_compile.tuning.search_figures import ClassUse, WorkerUse, class_uses, length_s
from heterps_compile.tuning.search_state import Attempt, SearchState, TrialState
from heterps_compile.units import counted, format_duration

from .scale import Scale, number_words, time_unit
from .svg import WIDTH, Picture, legend, line, listed, picture, rect, text, titled
from .text_width import SMALL, fitting, text_width

MOST_ROWS = 40
_MOST_PIECES = 4000  # in the whole picture
_LEFT, _NARROW_LEFT, _RIGHT = 170.0, 96.0, 16.0
_ROW, _SPACE, _LOWER, _TICK = 20.0, 6.0, 7.0, 80.0
_DIGIT = 7.0  # pixels of one
_WELL, _FAILED, _RUNS, _CUT = "p0", "p1", "p2", "p3"
_WORDS = {_WELL: "ended well", _FAILED: "failed", _RUNS: "runs", _CUT: "cut off, as the search's process ended"}

_Piece = tuple[float, float, str, str]
"""From when to when, the class, and what it is called."""


def worker_gantt(state: SearchState, *, width: float = WIDTH) -> Picture | None:
    """Draw a row a worker; None where nothing was started, or just now."""
    uses = class_uses(state)
    rows, missing = _rows(uses)
    if not rows or state.now_s <= 0:
        return None
    pieces = {use.worker: [_piece(state, trial, attempt) for trial, attempt in use.attempts] for use in rows}
    kinds = [kind for kind in _WORDS if any(kind == piece[2] for own in pieces.values() for piece in own)]
    told = [(kind, _WORDS[kind]) for kind in kinds]
    second, unit = time_unit(state.now_s)
    axis = f"numbers are trials; time in {unit}"
    if state.resumed_at_s:
        axis += "; ruled red: the search went on in another process"
    parts, top = legend([*told, ("", axis)], width)
    left = _LEFT if width >= WIDTH else _NARROW_LEFT
    clock = Scale(0.0, state.now_s, left, width - _RIGHT)
    bottom = top + len(rows) * (_ROW + _SPACE)
    parts += _axis(clock, second, top, bottom)
    room = max(20, _MOST_PIECES // len(rows))
    for index, use in enumerate(rows):
        y, own = top + index * (_ROW + _SPACE), pieces[use.worker]
        parts.append(text(12, y + 14, fitting(use.worker, left - 20)))
        own = own if len(own) <= room else list(_merged(own, clock))
        parts += [drawn for piece in own for drawn in _drawn(piece, y, clock)]
    parts += [line(clock(at_s), top - 4, clock(at_s), bottom, "mark") for at_s in state.resumed_at_s]
    notes = [f"{counted(missing, 'more worker')} that ran something not drawn"] if missing else []
    below, height = listed(notes, width, bottom + 24)
    return picture("machines", "Use of the machines", height + 4, [*parts, *below], width=width)


def _rows(uses: Sequence[ClassUse]) -> tuple[list[WorkerUse], int]:
    """Return the workers that are drawn, as many of every class as there is room for, and how many are not."""
    counts = [len(use.used) for use in uses]
    each = max(counts, default=0)
    while each > 1 and sum(min(each, count) for count in counts) > MOST_ROWS:
        each -= 1
    rows = [worker for use in uses for worker in use.used[:each]][:MOST_ROWS]
    return rows, sum(counts) - len(rows)


def _piece(state: SearchState, trial: TrialState, attempt: Attempt) -> _Piece:
    if attempt.ended_at_s is None:
        kind = _RUNS
    elif attempt.reason:
        kind = _FAILED
    else:
        kind = _WELL if attempt is trial.attempts[-1] and trial.value is not None else _CUT
    end_s = attempt.started_at_s + length_s(state, attempt)
    return attempt.started_at_s, end_s, kind, str(trial.number)


def _merged(pieces: Sequence[_Piece], clock: Scale) -> Iterator[_Piece]:
    """Yield runs of neighbours of one kind, with no gap that is seen, as one."""
    first = 0
    for i in range(1, len(pieces) + 1):
        ends = i == len(pieces) or pieces[i][2] != pieces[first][2]
        if ends or clock(pieces[i][0]) - clock(pieces[i - 1][1]) > 1:
            name = pieces[first][3] if i == first + 1 else f"{pieces[first][3]} to {pieces[i - 1][3]}"
            yield pieces[first][0], pieces[i - 1][1], pieces[first][2], name
            first = i


def _drawn(piece: _Piece, y: float, clock: Scale) -> Iterator[str]:
    start_s, end_s, kind, name = piece
    lower = _LOWER if kind in (_FAILED, _CUT) else 0.0
    x, inner = clock(start_s), max(clock(end_s) - clock(start_s) - 0.8, 0.6)
    shape = rect(x, y + lower, inner, _ROW - lower, kind, f' rx="{min(3.0, inner / 3):.1f}"')
    yield titled(shape, f"trial {name}, {_WORDS[kind]}, {format_duration(end_s - start_s)}")
    if inner >= _DIGIT * len(name) + 4:
        yield text(x + inner / 2, y + 14 + lower / 2 - (1 if lower else 0), name, "small paper", "middle")


def _axis(clock: Scale, second: float, top: float, bottom: float) -> Iterator[str]:
    inner = Scale(0.0, clock.most / second, clock.first, clock.last)
    ticks = inner.ticks(round((clock.last - clock.first) / _TICK))
    for value, words in zip(ticks, number_words(ticks), strict=True):
        x, half = inner(value), text_width(words, SMALL) / 2
        yield line(x, top - 4, x, bottom, "grid")
        yield text(min(x, clock.last + _RIGHT - 2 - half), bottom + 16, words, "soft small", "middle")
