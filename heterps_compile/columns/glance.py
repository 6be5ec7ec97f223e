"""The default output of a plan: at most 25 lines at 80 columns.

::

    head      model, defaults
    table     a row a stage; of many the first and the last ones
    facts     throughput, price, bound, verification, folder
    warnings  in full
    notes     three at most, two lines of each, and the number of the others

What is hidden is counted, and ``-v`` shows it. The table has six rows before notes have any line. Only warnings and
names of files that are longer than the rest leaves room for exceed the 25 lines.

Left out: the facts (``plan/total_columns.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from heterps_compile.console import PlainConsole, note_text, pairs_table, warning_text
from heterps_compile.escape import printable, shorten
from heterps_compile.fit_lines import fit_lines
from heterps_compile.units import counted

Pairs = Sequence[tuple[str, str]]

LINES = 25
_ROWS_BEFORE_NOTES = 6
_MOST_NOTES = 3
_LINES_OF_A_NOTE = 2
_CUT = " …"


@dataclass(frozen=True, slots=True)
class Glance:
    """Parts of the output.

    Attributes:
        head: Lines above the table: label and text.
        table: Draws the table with a number of its rows.
        rows: Of the table.
        facts: Lines below the table.
        warnings: Printed in full.
        notes: Printed as far as they fit.
        hint: Follows the number of notes that are not shown.
    """

    head: Pairs
    table: Callable[[int], RenderableType]
    rows: int
    facts: Pairs
    warnings: Sequence[str]
    notes: Sequence[str]
    hint: str = ": -v"


def print_glance(console: PlainConsole, glance: Glance) -> None:
    """Print what fits 25 lines."""
    head, table, rows, facts, notes = glance.head, glance.table, glance.rows, glance.facts, glance.notes
    label = max(len(name) for name, _ in (*head, *facts))
    above: list[RenderableType] = [pairs_table(head, label), Text("")]
    below: list[RenderableType] = [Text(""), pairs_table(facts, label), *map(warning_text, glance.warnings)]
    room = LINES - console.height_of(*above, *below)
    width = console.sentence_width
    brief = notes if width is None else [_brief(note, width) for note in notes]
    least = console.height_of(table(min(rows, _ROWS_BEFORE_NOTES)))
    kept = next(
        (
            n
            for n in range(min(_MOST_NOTES, len(notes)), 0, -1)
            if least + console.height_of(*_lines(brief, n, glance.hint)) <= room
        ),
        0,
    )
    last = _lines(brief, kept, glance.hint)
    room -= console.height_of(*last)
    most = next((n for n in range(min(rows, room), 2, -1) if console.height_of(table(n)) <= room), 2)
    for part in (*above, table(most), *below, *last):
        console.print(part)


def _lines(notes: Sequence[str], kept: int, hint: str) -> list[Text]:
    """Return the notes that are kept, the number of the others, and how to see what is left out."""
    hidden, last = len(notes) - kept, ""
    if hidden:
        last = (f"and {counted(hidden, 'more note')}" if kept else counted(hidden, "note")) + hint
    elif any(note.endswith(_CUT) for note in notes):
        last = f"notes in full{hint}"
    return [*map(note_text, notes[:kept]), *([Text(last, style="dim")] if last else [])]


def _brief(note: str, width: int) -> str:
    """Cut a note behind the words that fit two lines."""
    words = [shorten(word, width // 2) for word in printable(note).split(" ")]
    text, kept = " ".join(words), len(words)
    while kept > 1 and fit_lines(f"note: {text}", width).count("\n") >= _LINES_OF_A_NOTE:
        kept -= 1
        text = f"{' '.join(words[:kept])}{_CUT}"
    return text
