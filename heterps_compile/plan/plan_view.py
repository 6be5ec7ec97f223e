"""A plan for people: at a glance, in full, and in one line.

The default output of the commands, ``print`` and notebooks are the same view.

Left out: what it lists (``stage_columns.py``, ``total_columns.py``), pictures (``report/``).
"""

from functools import partial
from io import StringIO

from rich.console import RenderableType
from rich.text import Text

from heterps_compile.columns.column import Medium, pairs
from heterps_compile.columns.glance import Glance, print_glance
from heterps_compile.columns.terminal import terminal_table
from heterps_compile.console import PlainConsole, make_console, note_text, pairs_table, warning_text

from .plan import notes_of
from .plan_notes import is_warning
from .stage_columns import STAGES, stage_rows
from .total_columns import HEAD, TOTALS, Summary

_WIDTH = 80  # columns of what print shows
_COMMAND = "heterps-compile show -v"


def print_at_a_glance(console: PlainConsole, summary: Summary, *, in_python: bool = False) -> None:
    """Print model, stages, throughput, price, bound, verification, warnings and three notes, in 25 lines.

    Args:
        console: Where to.
        summary: The plan.
        in_python: Name the command that shows the rest, in place of the option -v.
    """
    plan, rows = summary.plan, stage_rows(summary.plan)
    notes = notes_of(plan)
    hints = ("", f": {_COMMAND}") if in_python else ("; -v shows all", ": -v")
    glance = Glance(
        head=list(pairs(HEAD, summary, Medium.GLANCE, plan.currency)),
        table=partial(
            terminal_table, STAGES, rows, console.width, currency=plan.currency, medium=Medium.GLANCE, hint=hints[0]
        ),
        rows=len(rows),
        facts=list(pairs(TOTALS, summary, Medium.GLANCE, plan.currency)),
        warnings=[note for note in notes if is_warning(note)],
        notes=[note for note in notes if not is_warning(note)],
        hint=hints[1],
    )
    print_glance(console, glance)


def print_in_full(
    console: PlainConsole, summary: Summary, *, layers: RenderableType | None, file_sha256: str | None = None
) -> None:
    """Print every layer, stage, total and note.

    Args:
        console: Where to.
        summary: The plan.
        layers: Table of the layers; None where they are not known.
        file_sha256: SHA-256 of ``plan.json``; None where there is none.
    """
    plan = summary.plan
    shown = partial(pairs, row=summary, medium=Medium.DETAILS, currency=plan.currency)
    if layers is not None:
        console.print(layers)
        console.print()
    console.print(terminal_table(STAGES, stage_rows(plan), console.width, currency=plan.currency))
    console.print()
    console.print(pairs_table([*shown(HEAD), *shown(TOTALS)]))
    for note in notes_of(plan):
        console.print(warning_text(note) if is_warning(note) else note_text(note))
    if file_sha256 is not None:
        console.print(Text(f"SHA-256 of plan.json, for --expect-sha256: {file_sha256}"))


def plan_text(summary: Summary) -> str:
    """Return the view at a glance, 80 columns wide."""
    stream = StringIO()
    print_at_a_glance(make_console(stream, _WIDTH), summary, in_python=True)
    return stream.getvalue().rstrip("\n")
