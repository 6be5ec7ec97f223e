"""Columns of a table, each declared once: a name, a value, a unit.

Every medium has one renderer, and all of them read the same list::

    Column("time", lambda row: row.stage.time_s, SECONDS)

    terminal, page, README, notebook    time    17.9 ms
    JSON                                "time_s": 0.0179

A table has rows and a heading a column. A summary is a list of columns of one row: a line a column.

Left out: the renderers (``terminal.py``, ``columns/html.py``, ``markdown.py``, ``columns/document.py``).
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from heterps_compile.escape import printable
from heterps_compile.fit_lines import cells
from heterps_compile.units import format_bytes, format_count, format_money, format_seconds, rate_number

from .short_names import short_names


class Medium(enum.Enum):
    """Outputs that tables are rendered to."""

    GLANCE = "the default output of a command, and print"
    DETAILS = "the output of a command with -v"
    PAGE = "the report"
    README = "the README of a compiled folder"
    NOTEBOOK = "a cell of a notebook"
    DOCUMENT = "JSON"


BRIEF = frozenset({Medium.GLANCE, Medium.NOTEBOOK})
THOROUGH = frozenset({Medium.DETAILS, Medium.PAGE, Medium.README})
TEXTS = BRIEF | THOROUGH
DOCUMENT = frozenset({Medium.DOCUMENT})
EVERYWHERE = TEXTS | DOCUMENT


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """The format of a column's values.

    Attributes:
        text: Formats one value.
        suffix: Ends the key of a JSON document.
        heading: Replaces the name above a column of a table, whose cells then lack the unit; ``{currency}`` is
            replaced.
        is_number: Aligns the column right.
    """

    text: Callable[[Any], str]
    suffix: str = ""
    heading: str = ""
    is_number: bool = True


TEXT = Unit(str, is_number=False)
LABEL = Unit(str, is_number=False)
"""A short text that no line breaks."""

FIGURES = Unit(str)
"""Numbers that are text already: ``1 + 2``."""

COUNT = Unit("{:,}".format)
NUMBER = Unit("{:.3g}".format)
SECONDS = Unit(format_seconds, "_s")
BYTES = Unit(format_bytes, "_bytes")
FLOPS = Unit(format_count)
SAMPLES_PER_S = Unit(rate_number, "_samples_per_s", "samples/s")
MONEY_PER_HOUR = Unit(format_money, "_per_hour", "{currency}/h")
NAME = Unit(str, is_number=False)
"""The name of a layer, shortened so that any two of a table differ."""

DEVICE = Unit(str, is_number=False)
"""A device type; the page gives each a colour."""

FILES = Unit(", ".join, is_number=False)
NAMES = Unit(", ".join, is_number=False)
"""Names in order, shown as the first, the last and their number, shortened so that any two of a table differ."""

NARROW = 100
"""Columns of a terminal; tables of narrower ones lack columns that the rest of the output has too."""

ABSENT = object()
"""The value of a row that does not have the column: no line of a summary, no key of a document."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table, or a line of a summary.

    Attributes:
        name: Heading, or label.
        value: Returns the value of a row; None for an unknown one, ABSENT where the row has none.
        unit: Of the value.
        on: Media that show it.
        least_width: Columns of the narrowest terminal that shows it.
    """

    name: str
    value: Callable[[Row], Any]
    unit: Unit = TEXT
    on: frozenset[Medium] = EVERYWHERE
    least_width: int = 0

    @property
    def key(self) -> str:
        """Return the key of JSON documents: ``"time_s"`` of a time in seconds."""
        return self.name.replace(" ", "_").replace("-", "_") + self.unit.suffix

    def heading(self, currency: str) -> str:
        """Return the heading of a table."""
        return self.unit.heading.format(currency=currency) or self.name

    def text(self, row: Row) -> str:
        """Format the value of a row, printable."""
        value = self.value(row)
        return "-" if value is None or value is ABSENT else printable(self.unit.text(value))


def shown(columns: Sequence[Column[Row]], medium: Medium, width: int | None = None) -> list[Column[Row]]:
    """Select the columns of a medium, and of a terminal's width."""
    return [each for each in columns if medium in each.on and (width is None or width >= each.least_width)]


def texts(column: Column[Row], rows: Sequence[Row], room: int) -> list[str]:
    """Format the values of all rows, printable.

    Args:
        column: The column.
        rows: Of the table.
        room: Characters of a terminal that names may take.
    """
    if column.unit is NAMES:
        return ends_of([column.value(row) for row in rows], room)
    if column.unit in (NAME, DEVICE):
        told = [column.text(row) for row in rows]
        short = short_names(dict.fromkeys(told, room))
        return [short[text] for text in told]
    return [column.text(row) for row in rows]


def ends_of(names: Sequence[Sequence[str]], room: int) -> list[str]:
    """Show lists of names as their ends and their numbers: ``fc1 … fc9 (9)``.

    Args:
        names: One list a row.
        room: Characters of a terminal for each row.
    """
    counts = [f" ({len(each)})" if len(each) > 1 else "" for each in names]
    shown_ends = [_ends(each, room - len(count)) for each, count in zip(names, counts, strict=True)]
    rooms: dict[str, int] = {}
    for ends, count in zip(shown_ends, counts, strict=True):
        left = room - len(count) - len(_BETWEEN) * (len(ends) - 1)
        fits = sum(cells(printable(name)) for name in ends) <= left
        for name in ends:
            own = cells(printable(name)) if fits else left // max(1, len(ends))
            rooms[name] = min(rooms.get(name, room), own)
    short = short_names(rooms)
    return [
        _joined([short[name] for name in ends], len(each)) + count
        for each, ends, count in zip(names, shown_ends, counts, strict=True)
    ]


_BETWEEN = " … "
_LEAST_ROOM = 8


def _ends(names: Sequence[str], room: int) -> Sequence[str]:
    """Return the first and the last name, or the first alone where both do not fit."""
    if len(names) < 2:
        return names
    both, left = (names[0], names[-1]), room - len(_BETWEEN)
    return both if left >= min(2 * _LEAST_ROOM, sum(cells(printable(name)) for name in both)) else names[:1]


def _joined(ends: Sequence[str], count: int) -> str:
    if len(ends) == 2:
        return (_BETWEEN if count > 2 else ", ").join(ends)
    return f"{ends[0]} …" if count > 1 else "".join(ends) or "-"


def pairs(columns: Sequence[Column[Row]], row: Row, medium: Medium, currency: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a summary: label and text, which names its unit."""
    for column in shown(columns, medium):
        if column.value(row) is not ABSENT:
            unit = column.unit.heading.format(currency=currency)
            yield column.name, f"{column.text(row)}{f' {unit}' if unit else ''}"
