"""The page of a search: one HTML file with everything in it, which fetches nothing and runs nothing.

Names come from spaces, pools and trials, and are hostile: the template escapes what it inserts, pictures are made of
escaped text, and the page's own policy lets no script run at all.

Left out: how the search stands (``tuning/search_state.py``), the pictures (``pictures/``), the board on a terminal
(``tuning/board.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources

from jinja2 import Environment
from markupsafe import Markup

from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, printable, shorten
from heterps_compile.packages import __version__
from heterps_compile.tuning.importance import LEAST_TRIALS, Importance, Importances, importances
from heterps_compile.tuning.search_figures import (
    better_but_shorter,
    chain,
    class_uses,
    config_words,
    counts_words,
    failures,
    lengths,
    metric_words,
    money_words,
    outlook_words,
    ranked,
    value_words,
)
from heterps_compile.tuning.search_state import SearchState, TrialState
from heterps_compile.tuning.search_tables import SearchTable, class_table, part_table, rung_table, value_of
from heterps_compile.tuning.space import Space
from heterps_compile.tuning.space_file import space_of_text
from heterps_compile.units import counted, format_duration, format_money, format_share

from .pictures.importance_bars import importance_bars
from .pictures.parallel_axes import parallel_axes
from .pictures.search_curves import best_value, learning_curves
from .pictures.svg import NAME_WIDTH, NARROW, STYLE, Picture
from .pictures.worker_gantt import worker_gantt

MOST_BEST = 10
_MOST_ROWS = 30
_MOST_PAIRS, _LEAST_FOLDED = 8, 3  # of a configuration, before it is folded up; and those worth folding
_MOST_TEXT = 600
_MOST_HEAD = 24  # characters of the head of a column, or of a key figure
_MOST_VALUE = 60  # characters of a value of a configuration
_OWN_STYLE = (
    ".page.one{grid-template-columns:minmax(0,1fr)}.pair{display:inline-block;margin-right:12px;overflow-wrap:anywhere}"
    "summary{cursor:pointer;color:var(--mark)}.figures td.number,.figures td:first-child{white-space:nowrap}"
    ".tiles dt{overflow-wrap:anywhere}@media (min-width:861px){.figures td:nth-child(5){white-space:nowrap}}"
    ".figures .config:not([data-label]){min-width:220px;font-weight:400}"
    ".number+td:not(.number),.number+th:not(.number){padding-left:16px}"
    "@media (max-width:860px){.number+td:not(.number){padding-left:0}}"
)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A key figure."""

    name: str
    value: str
    more: str = ""


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a column."""

    name: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class _Section:
    """A section of the page: a picture, wide and narrow, a table, or both."""

    id: str
    title: str
    hint: str = ""
    drawn: tuple[Markup, Markup] | None = None
    heads: tuple[_Head, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    more: str = ""


@dataclass(frozen=True, slots=True)
class _Row:
    """One of the best configurations."""

    trial: TrialState
    value: str
    time_s: float
    money: float
    pairs: tuple[tuple[str, str], ...]


def tuning_page(state: SearchState) -> str:
    """Write the page.

    Raises:
        InputError: where the record's space is none, or a configuration is none of it.
    """
    space = _space_of(state)
    found = importances(state, space)
    sections = [
        section
        for section in (
            _best_value(state),
            _learning_curves(state),
            _table(rung_table(state)),
            _importance(found),
            _configurations(state, space, found),
            _machines(state),
            _table(part_table(state)),
            _failures(state),
            _misfits(state),
        )
        if section is not None
    ]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["name"] = lambda text: shorten(printable(text), NAME_WIDTH)
    environment.filters["text"] = lambda text: shorten(one_line(text), _MOST_TEXT)
    environment.filters["brief"] = lambda text: shorten(printable(text), _MOST_HEAD)
    environment.filters["money"] = format_money
    environment.filters["duration"] = format_duration
    return environment.from_string(_template("tuning.html")).render(
        state=state,
        version=__version__,
        policy="default-src 'none'; style-src 'unsafe-inline'",
        style=Markup(_template("report.css")),  # noqa: S704 - the package's own file
        own_style=Markup(_OWN_STYLE),  # noqa: S704 - the package's own
        picture_style=Markup(STYLE),  # noqa: S704 - the package's own
        stands=outlook_words(state),
        tiles=list(_tiles(state)),
        sections=[
            ("best-configurations", "best configurations"),
            *((each.id, each.title.lower()) for each in sections),
            ("search", "the search"),
        ],
        best=list(_best_rows(state)),
        best_hint=_best_hint(state),
        pairs=_pairs,
        pictures=sections,
        facts=list(_facts(state)),
    )


def _template(name: str) -> str:
    return resources.files(f"{__package__}.templates").joinpath(name).read_text("utf-8")


def _space_of(state: SearchState) -> Space:
    """Return the space of a search, whose configurations are checked against it."""
    space = space_of_text(state.record.space_name, state.record.space_text)
    for trial in state.trials:
        try:
            space.check(trial.config)
        except InputError as error:
            raise InputError(f"trial {trial.number} of {printable(state.folder)}: {error}") from error
    return space


def _tiles(state: SearchState) -> Iterator[_Tile]:
    best, record = state.best, state.record
    if best is None or best.value is None:
        yield _Tile(f"best {record.metric}", "none", "no trial of the longest has a result")
    else:
        trained = f"trial {best.number}, after {lengths(state, best.fidelity)}"
        shorter = better_but_shorter(state)
        trained += (
            "" if shorter is None else f"; better: {value_of([shorter])}, after {lengths(state, shorter.fidelity)}"
        )
        yield _Tile(f"best {record.metric}", metric_words([best.value])[0], trained)
    counts = counts_words(state).split(", ")
    yield _Tile("trials", counts[0], ", ".join(counts[1:]))
    yield _Tile("time", format_duration(state.now_s), "ended" if state.ended_why is not None else "so far")
    money = money_words(state)
    yield _Tile("spent", f"{format_money(state.money)} {record.currency}", money if record.budget else "no budget")
    uses = class_uses(state)
    workers, running = sum(use.workers for use in uses), sum(len(use.running) for use in uses)
    busy = sum(use.busy * use.workers for use in uses) / workers
    yield _Tile("machines busy", format_share(busy), f"{counted(workers, 'worker')}, {running:,} running now")


def _best_hint(state: SearchState) -> str:
    more = "more" if state.record.is_maximised else "less"
    return (
        f"By {state.record.metric}, of which {more} is better; trials that trained longer stand before shorter ones. "
        "Time and money are those of all trials that led to one."
    )


def _best_rows(state: SearchState) -> Iterator[_Row]:
    best = ranked(state)[:MOST_BEST]
    values = metric_words([trial.value for trial in best if trial.value is not None])
    for trial, value in zip(best, values, strict=True):
        all_trials = chain(state, trial)
        time_s = sum(each.time_s or 0.0 for each in all_trials)
        yield _Row(trial, value, time_s, sum(each.money for each in all_trials), tuple(config_words(trial)))


def _pairs(pairs: tuple[tuple[str, str], ...]) -> Markup:
    """Return names and values of a configuration; those behind the first ones are folded up."""
    shown = [
        Markup('<span class="pair"><span class="soft">{}</span> {}</span>').format(
            shorten(printable(name), NAME_WIDTH), shorten(printable(value), _MOST_VALUE)
        )
        for name, value in pairs
    ]
    first = Markup(" ").join(shown[:_MOST_PAIRS])
    if len(shown) < _MOST_PAIRS + _LEAST_FOLDED:
        return Markup(" ").join(shown)
    rest, more = Markup(" ").join(shown[_MOST_PAIRS:]), len(shown) - _MOST_PAIRS
    return first + Markup("<details><summary>{} more</summary>{}</details>").format(more, rest)


def _drawn(wide: Picture, narrow: Picture | None) -> tuple[Markup, Markup]:
    return Markup(wide.element), Markup((narrow or wide).element)  # noqa: S704 - made of escaped text


def _best_value(state: SearchState) -> _Section | None:
    wide = best_value(state)
    if wide is None:
        return None
    return _Section("best-value", wide.title, drawn=_drawn(wide, best_value(state, width=NARROW)))


def _learning_curves(state: SearchState) -> _Section | None:
    wide = learning_curves(state)
    if wide is None:
        return None
    return _Section("learning-curves", wide.title, drawn=_drawn(wide, learning_curves(state, width=NARROW)))


def _table(found: SearchTable) -> _Section | None:
    if not found.rows:
        return None
    heads = (_Head(found.label), *(_Head(name, True) for name in found.numbers))
    left = len(found.rows) - _MOST_ROWS
    more = f"{counted(left, f'more {found.label}')} not shown" if left > 0 else ""
    return _Section(found.id, found.title.capitalize(), heads=heads, rows=tuple(found.rows)[:_MOST_ROWS], more=more)


def _importance(found: Importances) -> _Section | None:
    if not found.trials and not found.too_few:
        return None
    wide = importance_bars(found)
    lacking = f"too few configurations to tell: {', '.join(found.too_few)}" if found.too_few else ""
    if wide is None:
        hint = (
            f"Nothing is measured: {counted(found.trials, 'configuration')} can be compared, of {LEAST_TRIALS} that it "
            "takes."
            if found.trials < LEAST_TRIALS
            else "Nothing is measured: no parameter has different values in enough configurations."
        )
        return _Section("importance", "Importance of parameters", hint)
    hint = (
        f"How much of the variance of the ranks of {counted(found.trials, 'configuration')} lies between groups of one "
        "parameter's values (Kruskal and Wallis), each configuration by its first result among those of the same "
        "length. Chance reaches the floor in one search of twenty. What parameters do together is not in it, and "
        "shares need not add up to 100 %."
    )
    heads = (
        _Head("parameter"),
        _Head("share", True),
        _Head("floor", True),
        _Head("configurations", True),
        _Head("does best"),
    )
    rows = tuple(
        (
            one.name,
            format_share(one.share),
            format_share(one.floor),
            f"{one.trials:,}",
            _range(one) if one.is_told else "may be chance",
        )
        for one in found.measured[:_MOST_ROWS]
    )
    return _Section(
        "importance",
        wide.title,
        hint,
        drawn=_drawn(wide, importance_bars(found, width=NARROW)),
        heads=heads,
        rows=rows,
        more=lacking,
    )


def _range(one: Importance) -> str:
    least, most = (shorten(printable(value_words(value)), _MOST_VALUE) for value in one.best)
    return least if least == most else f"{least} to {most}"


def _configurations(state: SearchState, space: Space, found: Importances) -> _Section | None:
    order = [one.name for one in found.measured]
    wide = parallel_axes(state, space, order)
    if wide is None:
        return None
    hint = "A line is a configuration, through its value of every parameter"
    hint += "; parameters that tell the most stand above." if order else "."
    constant = f"One value alone: {', '.join(found.constant)}" if found.constant else ""
    drawn = _drawn(wide, parallel_axes(state, space, order, width=NARROW))
    return _Section("parallel-axes", wide.title, hint, drawn=drawn, more=constant)


def _machines(state: SearchState) -> _Section | None:
    wide, section = worker_gantt(state), _table(class_table(state))
    if section is None:
        return None
    drawn = None if wide is None else _drawn(wide, worker_gantt(state, width=NARROW))
    hint = "Busy: the part of the time since the search began that the workers of a class ran something."
    without = [f"no trial for {name}: {one_line(why)}" for name, why in list(state.without.items())[:_MOST_ROWS]]
    return replace(section, drawn=drawn, hint=hint, more="; ".join(filter(None, [section.more, *without])))


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8:,} more" if len(numbers) > 8 else shown


def _failures(state: SearchState) -> _Section | None:
    found = failures(state)
    if not found:
        return None
    heads = (_Head("reason"), _Head("attempts", True), _Head("trials"), _Head("left for good"))
    rows = tuple(
        (one.reason, f"{one.attempts:,}", _numbers(list(one.trials)), _numbers(list(one.left)) or "none")
        for one in found[:_MOST_ROWS]
    )
    more = f"{counted(len(found) - _MOST_ROWS, 'more reason')} not shown" if len(found) > _MOST_ROWS else ""
    hint = f"A trial is started again up to {counted(state.record.retries, 'time')}, then left."
    return _Section("failures", "Failures", hint, heads=heads, rows=rows, more=more)


def _misfits(state: SearchState) -> _Section | None:
    if not state.misfits:
        return None
    rows = tuple(
        (reason, ", ".join(f"{name} {value_words(value)}" for name, value in config.items()))
        for config, reason in state.misfits[:_MOST_ROWS]
    )
    left = len(state.misfits) - _MOST_ROWS
    more = f"{counted(left, 'more configuration')} not shown" if left > 0 else ""
    hint = "Configurations that fit no class; they were not run, and count as failed for the search."
    return _Section(
        "misfits", "Without a machine", hint, heads=(_Head("reason"), _Head("configuration")), rows=rows, more=more
    )


def _facts(state: SearchState) -> Iterator[tuple[str, str]]:
    record = state.record
    yield "folder", state.folder or "-"
    yield "began", record.started_at or "-"
    yield "method", f"{record.method}, seed {record.seed}"
    yield "trials", f"{state.wanted:,}, of {record.least:g} to {record.most:g} {record.unit} by powers of {record.eta}"
    yield "assignment", f"{record.rule}, started by {record.engine}"
    yield "space", f"{record.space_name}, SHA-256 {record.space_sha256}"
    if record.time_limit_s is not None:
        yield "time limit", f"{format_duration(record.time_limit_s)} a trial"
    if state.resumed_at_s:
        yield "went on", ", ".join(f"after {format_duration(at_s)}" for at_s in state.resumed_at_s[:_MOST_ROWS])
    if state.is_torn:
        yield "journal", "half a line at its end, which a writer left that was killed, was dropped"
    for name, value in record.arguments.items():
        yield name, value
    for name, value in record.versions.items():
        yield f"version of {name}", value
