"""What a run is to do, for people and for programs: a sentence, a table of all courses, and one JSON document.

Left out: the decision (``resumed.py``).
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_compile.columns.column import FIGURES, LABEL, MONEY_PER_HOUR, Column
from heterps_compile.columns.terminal import terminal_table
from heterps_compile.escape import printable
from heterps_compile.offers.offer import CURRENCY
from heterps_compile.transient.decide import MOVE, Outcome
from heterps_compile.units import counted, format_duration, format_money, format_percent

from .chosen_file import machine_records
from .goal import HOUR_S
from .machines_words import DURATION, MONEY, RATE
from .resumed import PLANNING_S, Resumption, Way, described_loss, price_changes

FORMAT = "heterps-compile resumption"
VERSION = 1

_Row = tuple[Outcome, Way]

_COLUMNS: list[Column[_Row]] = [
    Column("", lambda row: row[0].course.kind, LABEL),
    Column("machines", lambda row: row[1].machines.title),
    Column("price", lambda row: row[1].machines.price_per_hour, MONEY_PER_HOUR),
    Column("samples/s", lambda row: row[0].course.samples_per_s, RATE),
    Column("first", lambda row: row[0].course.before_s or None, DURATION),
    Column("time", lambda row: row[0].time_s.median, DURATION),
    Column("9 of 10", lambda row: row[0].time_s.most, DURATION),
    Column(f"{CURRENCY} in all", lambda row: row[0].money.median, MONEY),
    Column("9 of 10", lambda row: row[0].money.most, MONEY),
]


def print_resumption(console: Console, resumption: Resumption) -> None:
    """Print what is to be done and why, and what every course comes to."""
    for line in told(resumption):
        console.print(Text(printable(line)))
    console.print()
    console.print(_table(resumption, console.width))
    for note in resumption.notes:
        console.print(Text(printable(f"note: {note}")))


def told(resumption: Resumption) -> Iterator[str]:
    """Yield in sentences how the run stands, what it is to do, and what a move would cost first."""
    standing, goal = resumption.standing, resumption.goal
    limits = [] if goal.deadline_s is None else [f"within {format_duration(goal.deadline_s)} from now"]
    limits += [] if goal.budget is None else [f"for {format_money(goal.budget)} {CURRENCY} in all"]
    yield (
        f"left: {counted(round(goal.samples), 'sample')} behind {standing.checkpoint}, which had seen "
        f"{standing.samples:,}, {' and '.join(limits)}; {format_money(standing.spent)} {CURRENCY} are spent"
    )
    if loss := described_loss(standing):
        yield f"lost: {loss}"
    own = next((way.machines for way in resumption.ways if way.option is None and way.step is None), None)
    for title, (old, new) in () if own is None else price_changes(standing.chosen.machines, own).items():
        yield f"price: {title} is {format_money(new)} {CURRENCY}/h, and was {format_money(old)}"
    yield resumption.decision.why
    yield from _cost_of_moving(resumption)


def _cost_of_moving(resumption: Resumption) -> Iterator[str]:
    """Yield what the best move costs before it runs."""
    for outcome, way in _pairs(resumption):
        if outcome.course.kind == MOVE:
            start_s = way.course.recovery.start_up_s
            first = _first_money(outcome)
            starting = way.machines.price_per_hour * start_s / HOUR_S
            checkpoint_s = max(0.0, outcome.course.before_s - PLANNING_S)
            before = f"{format_duration(PLANNING_S)} of planning"
            if first > 0:
                before = f"a checkpoint of {format_duration(checkpoint_s)} and {before} on the old machines"
            yield (
                f"moving: {format_duration(outcome.course.before_s + start_s)} and "
                f"{format_money(first + starting)} {CURRENCY} without a step: {before}, {format_duration(start_s)} of "
                "starting up on the new ones"
            )
            return


def _pairs(resumption: Resumption) -> Iterator[_Row]:
    return zip(resumption.decision.outcomes, resumption.ways, strict=True)


def _first_money(outcome: Outcome) -> float:
    return outcome.course.before_per_hour * outcome.course.before_s / HOUR_S


def _table(resumption: Resumption, width: int) -> Table:
    has_deadline = resumption.goal.deadline_s is not None

    def keeps(row: _Row) -> str:
        if row[0].failing:
            return "no"
        return format_percent(100 * row[0].chance) if has_deadline else "yes"

    columns: list[Column[_Row]] = [*_COLUMNS, Column("keeps", keeps, FIGURES)]
    return terminal_table(columns, list(_pairs(resumption)), width, currency=CURRENCY)


def resumption_document(resumption: Resumption, directory: str | None = None) -> str:
    """Return what is to be done as one JSON document; times in seconds, money in US dollars."""
    goal, standing = resumption.goal, resumption.standing
    document = {
        "format": FORMAT,
        "version": VERSION,
        "decision": resumption.decision.taken.course.kind,
        "why": resumption.decision.why,
        "left": {
            "samples": goal.samples,
            "seen": standing.samples,
            "checkpoint": standing.checkpoint,
            "deadline_s": goal.deadline_s,
            "budget_usd": goal.budget,
            "spent_usd": standing.spent,
            "lost": list(standing.lost),
            "wait_s": standing.wait_s,
        },
        "courses": [_course(outcome, way) for outcome, way in _pairs(resumption)],
        "told": list(told(resumption)),
        "notes": list(resumption.notes),
        "folder": directory,
    }
    return json.dumps(document, indent=2)


def _course(outcome: Outcome, way: Way) -> dict[str, Any]:
    course = outcome.course
    return {
        "kind": course.kind,
        "machines": machine_records(way.machines),
        "batch": way.batch,
        "samples_per_s": course.samples_per_s,
        "first": {"time_s": course.before_s, "usd": _first_money(outcome)},
        "time_s": asdict(outcome.time_s),
        "usd": asdict(outcome.money),
        "losses": outcome.run.losses,
        "chance": outcome.chance,
        "breaks": outcome.failing,
    }


def nothing_to_write(resumption: Resumption) -> str:
    """Say why no folder is written for a run that does not move."""
    way = resumption.ways[0]
    fewer = "; let it go on with fewer replicas (launch --elastic, or resize)" if way.step is not None else ""
    return f"nothing is written: the run keeps {counted(way.machines.count, 'machine')} and its plan{fewer}"
