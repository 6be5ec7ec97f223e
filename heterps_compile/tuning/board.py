"""The board of a search on a terminal: trials, what is left, money, the best so far, rungs, machines, failures.

Left out: the page with pictures (``report/tuning_page.py``), following a search as it goes (the command).
"""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, name_text, note_text, pairs_table, plain_table
from heterps_compile.escape import printable, shorten
from heterps_compile.units import counted

from .search_figures import (
    Failure,
    better_but_shorter,
    config_words,
    counts_words,
    failures,
    lengths,
    metric_words,
    money_words,
    outlook_words,
)
from .search_state import SearchState, TrialState
from .search_tables import SearchTable, class_table, part_table, rung_table, running_table

MOST_ROWS = 20
MOST_REASONS = 5
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
    for found in (rung_table(state), part_table(state), class_table(state), running_table(state)):
        if found.rows:
            console.print()
            console.print(Text(f"{found.title}:"))
            console.print(_drawn(found, console.width))
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


def _drawn(found: SearchTable, width: int) -> Table:
    table = plain_table()
    add_text(table, found.label)
    add_numbers(table, *map(_name, found.numbers))
    for label, *numbers in found.rows[:MOST_ROWS]:
        table.add_row(name_text(label, 2 * width), *map(Text, numbers))
    if len(found.rows) > MOST_ROWS:
        table.add_row(Text(f"… {len(found.rows) - MOST_ROWS:,} more", style="dim"))
    return table


def _print_failures(console: Console, state: SearchState) -> None:
    found = failures(state)
    if found or state.misfits or state.without:
        console.print()
    for failure in found[:MOST_REASONS]:
        console.print(Text(_failure_words(failure)))
    if len(found) > MOST_REASONS:
        console.print(Text(f"and {counted(len(found) - MOST_REASONS, 'more reason')} of failed attempts"))
    for name, why in list(state.without.items())[:MOST_ROWS]:
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
