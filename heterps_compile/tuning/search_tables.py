"""Tables of a search, as text: rungs, parts of the space, machines, and what runs.

The board and the page draw the same rows.

Left out: their look (``board.py``, ``report/tuning_page.py``).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.units import format_duration, format_money, format_share

from .search_figures import BEST, FINISHED, class_uses, length_s, lengths, metric_words, ranked
from .search_state import FAILED, RUNNING, TOLD, WAITING, SearchState, TrialState


@dataclass(frozen=True, slots=True)
class SearchTable:
    """A table of a search.

    Attributes:
        id: Unique among the tables.
        title: Above the table.
        label: Heading of the first column, which is text.
        numbers: Headings of the other columns.
        rows: Cells, one a column.
    """

    id: str
    title: str
    label: str
    numbers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def rung_table(state: SearchState) -> SearchTable:
    """Count the trials by their length, the shortest first."""
    rows = []
    for fidelity in sorted({trial.fidelity for trial in state.trials}):
        own = [trial for trial in state.trials if trial.fidelity == fidelity]
        counts = Counter(trial.status for trial in own)
        numbers = (f"{counts[status]:,}" for status in (TOLD, RUNNING, WAITING, FAILED))
        best = [trial for trial in ranked(state, own) if trial.fidelity == fidelity]
        rows.append((lengths(state, fidelity), *numbers, value_of(best)))
    return SearchTable("rungs", "rungs", "length", (FINISHED, RUNNING, WAITING, FAILED, BEST), rows)


def part_table(state: SearchState) -> SearchTable:
    """List the disjoint parts of the space; no rows if there is one part."""
    rows = []
    for index, name in enumerate(state.record.parts if len(state.record.parts) > 1 else ()):
        own = [trial for trial in state.trials if trial.part == index]
        times_s = [trial.time_s for trial in own if trial.status == TOLD and trial.time_s is not None]
        rows.append(
            (
                name,
                f"{len(own):,}",
                f"{len(times_s):,}",
                f"{sum(trial.status == FAILED for trial in own):,}",
                format_duration(sum(times_s) / len(times_s)) if times_s else "-",
                value_of(ranked(state, own)),
            )
        )
    return SearchTable("parts", "parts of the space", "part", ("trials", FINISHED, FAILED, "mean time", BEST), rows)


def class_table(state: SearchState) -> SearchTable:
    """List the use of every class of workers."""
    heads = ("workers", "never used", "busy", RUNNING, FINISHED, "failed attempts", state.record.currency)
    rows = [
        (
            use.name,
            f"{use.workers:,}",
            f"{use.workers - len(use.used):,}",
            format_share(use.busy),
            f"{len(use.running):,}",
            f"{use.told:,}",
            f"{use.failed:,}",
            format_money(use.money),
        )
        for use in class_uses(state)
    ]
    return SearchTable("machines", "use of the machines", "class", heads, rows)


def running_table(state: SearchState) -> SearchTable:
    """List every worker's running trial, its time so far and its predicted time."""
    running = [(each, each.running) for use in class_uses(state) for each in use.used if each.running is not None]
    rows = [
        (
            each.worker,
            f"{trial.number}",
            lengths(state, trial.fidelity),
            format_duration(length_s(state, trial.attempts[-1])),
            format_duration(trial.predicted_s),
            f"{len(trial.attempts)}",
            metric_words([trial.curve[-1][1]])[0] if trial.curve else "-",
        )
        for each, trial in running
    ]
    return SearchTable("running", RUNNING, "worker", ("trial", "to", "for", "predicted", "attempt", "last"), rows)


def value_of(trials: Sequence[TrialState]) -> str:
    """Return the value and the number of the first trial; "-" if there is none."""
    value = trials[0].value if trials else None
    return "-" if value is None else f"{metric_words([value])[0]}, trial {trials[0].number}"
