"""The board of a search on a terminal: trials, what is left, money, the best so far, rungs, machines, failures.

Left out: the page with pictures (``report/tuning_page.py``), following a search as it goes (the command).
"""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, name_text, note_text, pairs_table, plain_table
from heterps_compile.escape import printable, shorten
from heterps_compile.units import counted, format_duration, format_money, format_share

from .search_figures import (
    BEST,
    FINISHED,
    Failure,
    better_but_shorter,
    class_uses,
    config_words,
    counts_words,
    failures,
    length_s,
    lengths,
    metric_words,
    money_words,
    outlook_words,
    ranked,
    rungs,
)
from .search_state import FAILED, RUNNING, TOLD, WAITING, SearchState, TrialState

MOST_RUNNING = 20
MOST_RUNGS = 20
MOST_CLASSES = 20
MOST_REASONS = 5
MOST_PARTS = 20
_MOST_VALUE = 40  # characters of a value of the best configuration
_MOST_NAME = 60
_MOST_REASON = 300
_MOST_NUMBERS = 5  # of trials that are named


def print_board(console: Console, state: SearchState) -> None:
    """Print how a search stands.

    Args:
        console: Where to; it says how wide a line may be.
        state: The search.
    """
    console.print(pairs_table(_figures(state, console.width)))
    best = state.best
    if best is not None:
        console.print()
        console.print(Text("best configuration:"))
        console.print(pairs_table(_configuration(best, console.width)))
    for title, table in (
        ("rungs", _rungs(state)),
        ("parts of the space", _parts(state, console.width)),
        ("machines", _machines(state, console.width)),
        ("running", _running(state, console.width)),
    ):
        if table.row_count:
            console.print()
            console.print(Text(f"{title}:"))
            console.print(table)
    _print_failures(console, state)
    if state.is_torn:
        console.print(note_text("half a line at the end of the journal, left by a writer that was killed, was dropped"))


def _figures(state: SearchState, width: int) -> list[tuple[str, str]]:
    record, best = state.record, state.best
    more = "more" if record.is_maximised else "less"
    found = f"none: no trial of {lengths(state, record.most)} has a result"
    if best is not None and best.value is not None:
        found = (
            f"{metric_words([best.value])[0]} by trial {best.number}, after {lengths(state, best.fidelity)} on "
            f"{_name(best.class_name)}"
        )
    names = [
        ("search", f"{_name(record.space_name)} by {_name(record.method)}, {_name(record.rule)}, seed {record.seed}"),
        ("trials", counts_words(state)),
        ("time", shorten(outlook_words(state), _MOST_REASON)),
        ("spent", money_words(state)),
        (
            shorten(f"best {_name(record.metric)}", _room(width)),
            f"{found} ({more} is better)" if best is not None else found,
        ),
    ]
    shorter = better_but_shorter(state)
    if shorter is not None and shorter.value is not None:
        shown = (
            f"{metric_words([shorter.value])[0]} by trial {shorter.number}, after {lengths(state, shorter.fidelity)}"
        )
        names.append(("shorter", f"{shown}, has a better value; it counts less, as longer trials are compared first"))
    if best is not None and best.checkpoint is not None:
        names.append(("checkpoint", best.checkpoint))
    return names


def _configuration(trial: TrialState, width: int) -> list[tuple[str, str]]:
    return [
        (f"  {shorten(printable(name), _room(width))}", shorten(printable(value), _MOST_VALUE))
        for name, value in config_words(trial)
    ]


def _rungs(state: SearchState) -> Table:
    table = plain_table()
    add_text(table, "length", no_wrap=True)
    add_numbers(table, FINISHED, RUNNING, WAITING, FAILED, BEST)
    found = rungs(state)
    for rung in found[-MOST_RUNGS:]:
        best = "-" if rung.best is None or rung.best.value is None else metric_words([rung.best.value])[0]
        counts = (f"{rung.counts[status]:,}" for status in (TOLD, RUNNING, WAITING, FAILED))
        table.add_row(Text(lengths(state, rung.fidelity)), *map(Text, counts), Text(best))
    return _told_more(table, len(found) - MOST_RUNGS)


def _parts(state: SearchState, width: int) -> Table:
    table = plain_table()
    add_text(table, "part")
    add_numbers(table, FINISHED, FAILED, BEST)
    if len(state.record.parts) < 2:
        return table
    best = {trial.part: trial for trial in reversed(ranked(state))}
    for index, name in enumerate(state.record.parts[:MOST_PARTS]):
        own = [trial for trial in state.trials if trial.part == index]
        value = best[index].value if index in best else None
        table.add_row(
            name_text(name, 2 * width),
            Text(f"{sum(trial.status == TOLD for trial in own):,}"),
            Text(f"{sum(trial.status == FAILED for trial in own):,}"),
            Text("-" if value is None else metric_words([value])[0]),
        )
    return _told_more(table, len(state.record.parts) - MOST_PARTS)


def _machines(state: SearchState, width: int) -> Table:
    table = plain_table()
    add_text(table, "class")
    add_numbers(table, "workers", "busy", RUNNING, FINISHED, "failed attempts", _name(state.record.currency))
    uses = class_uses(state)
    for use in uses[:MOST_CLASSES]:
        table.add_row(
            name_text(use.name, 2 * width),
            Text(f"{use.workers:,}"),
            Text(format_share(use.busy)),
            Text(f"{len(use.running):,}"),
            Text(f"{use.told:,}"),
            Text(f"{use.failed:,}"),
            Text(format_money(use.money)),
        )
    return _told_more(table, len(uses) - MOST_CLASSES)


def _running(state: SearchState, width: int) -> Table:
    """Draw what every worker runs, how long it has, and what was predicted for its class."""
    table = plain_table()
    add_text(table, "worker")
    add_numbers(table, "trial", "to", "for", "predicted", "attempt", "last")
    found = [(worker, worker.running) for use in class_uses(state) for worker in use.used if worker.running is not None]
    for worker, trial in found[:MOST_RUNNING]:
        last = metric_words([trial.curve[-1][1]])[0] if trial.curve else "-"
        table.add_row(
            name_text(worker.worker, 2 * width),
            Text(f"{trial.number}"),
            Text(lengths(state, trial.fidelity)),
            Text(format_duration(length_s(state, trial.attempts[-1]))),
            Text(format_duration(trial.predicted_s)),
            Text(f"{len(trial.attempts)}"),
            Text(last),
        )
    return _told_more(table, len(found) - MOST_RUNNING)


def _told_more(table: Table, more: int) -> Table:
    """Add a row that says how many others are not shown."""
    if more > 0:
        table.add_row(Text(f"… {more:,} more", style="dim"))
    return table


def _print_failures(console: Console, state: SearchState) -> None:
    found = failures(state)
    if found or state.misfits or state.without:
        console.print()
    for failure in found[:MOST_REASONS]:
        console.print(Text(_failure_words(failure)))
    if len(found) > MOST_REASONS:
        console.print(Text(f"and {counted(len(found) - MOST_REASONS, 'more reason')} of failed attempts"))
    for name, why in list(state.without.items())[:MOST_CLASSES]:
        console.print(Text(f"no trial for {_name(name)}: {shorten(printable(why), _MOST_REASON)}"))
    if state.misfits:
        reason = shorten(printable(state.misfits[-1][1]), _MOST_REASON)
        counts = counted(len(state.misfits), "configuration")
        console.print(Text(f"not run: {counts} that fit no class, the last one: {reason}"))


def _failure_words(failure: Failure) -> str:
    numbers = ", ".join(map(str, failure.trials[:_MOST_NUMBERS]))
    more = f" and {len(failure.trials) - _MOST_NUMBERS:,} more" if len(failure.trials) > _MOST_NUMBERS else ""
    trials = f"{'trial' if len(failure.trials) == 1 else 'trials'} {numbers}{more}"
    left = f" ({len(failure.left):,} left for good)" if failure.left else " (none left for good)"
    reason = shorten(printable(failure.reason), _MOST_REASON)
    return f"failed: {counted(failure.attempts, 'attempt')} at {trials}{left}: {reason}"


def _room(width: int) -> int:
    """Return the characters of a name that leave half of a line for what stands beside it."""
    return max(8, min(_MOST_NAME, width // 2 - 4))


def _name(text: str) -> str:
    return shorten(printable(text), _MOST_NAME)
