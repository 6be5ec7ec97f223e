"""Columns on a terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, plain_table
from heterps_compile.fit_lines import cells

from .column import FILES, NAMES, TEXT, Column, Medium, Row, shown, texts

_GAP = 2  # between two columns
_LEAST_NAMES, _MOST_NAMES = 16, 60  # columns of the terminal


def terminal_table(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    width: int,
    most: int | None = None,
    *,
    currency: str,
    medium: Medium = Medium.DETAILS,
    hint: str = "; -v shows all",
) -> Table:
    """Draw a table.

    Args:
        columns: Of the table.
        rows: Of the table.
        width: Columns of the terminal.
        most: Rows that are shown: of more, the first and the last ones, and the number of those between. None shows
            all.
        currency: Of prices.
        medium: GLANCE or DETAILS.
        hint: Follows the number of rows that are not shown.
    """
    used = shown(columns, medium, width)
    headings = [column.heading(currency) for column in used]
    drawn = {i: texts(column, rows, max(8, width // 4)) for i, column in enumerate(used) if column.unit is not NAMES}
    taken = sum(max(map(cells, [headings[i], *drawn[i]])) + _GAP for i in drawn if used[i].unit not in (FILES, TEXT))
    room = min(max(_LEAST_NAMES, width - taken), _MOST_NAMES)
    drawn |= {i: texts(column, rows, room) for i, column in enumerate(used) if column.unit is NAMES}
    table = plain_table()
    for column, heading in zip(used, headings, strict=True):
        if column.unit.is_number:
            add_numbers(table, heading)
        else:
            add_text(table, heading, no_wrap=column.unit not in (NAMES, FILES, TEXT))
    first, hidden = _split(len(rows), most)
    for place in range(first):
        table.add_row(*(Text(drawn[i][place]) for i in range(len(used))))
    if hidden:
        widest = next((i for i, column in enumerate(used) if column.unit is NAMES), 0)
        more = Text(f"… {hidden} more{hint}", style="dim")
        table.add_row(*(more if i == widest else Text("") for i in range(len(used))))
    for place in range(first + hidden, len(rows)):
        table.add_row(*(Text(drawn[i][place]) for i in range(len(used))))
    return table


def _split(count: int, most: int | None) -> tuple[int, int]:
    """Return how many rows stand first, and how many are hidden; two are the fewest that are shown."""
    if most is None or count <= max(most, 2) or count <= 3:
        return count, 0
    kept = max(most, 2)
    return (kept + 1) // 2, count - kept
