"""Tables on a terminal: a console that prints text as it is, and tables without frames.

Names come from models; each goes through :func:`~heterps_compile.escape.printable` into a ``Text``, so that neither
escape sequences nor rich's own markup reach the terminal.

Left out: what is in the tables; progress (``cli/output.py``).
"""

from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .escape import printable, shorten

PLAIN_WIDTH = 120  # columns, where the output is no terminal
LEAST_WIDTH = 80  # columns; a narrower terminal breaks the lines


def make_console(stream: TextIO, terminal_width: int | None) -> Console:
    """Make a console that prints text as it is.

    Args:
        stream: Where to.
        terminal_width: Columns of the terminal, or None where the stream is none.
    """
    width = PLAIN_WIDTH if terminal_width is None else max(terminal_width, LEAST_WIDTH)
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def plain_table() -> Table:
    """Return a table without a frame, its head ruled off."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")


def add_text(table: Table, *headings: str, min_width: int | None = None, no_wrap: bool = False) -> None:
    """Add columns of text."""
    for heading in headings:
        table.add_column(heading, overflow="fold", min_width=min_width, no_wrap=no_wrap)


def add_numbers(table: Table, *headings: str) -> None:
    """Add columns of numbers, which stand right."""
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)


def name_text(name: str, width: int) -> Text:
    """Return a name, its middle cut out where it is longer than a quarter of the width."""
    return Text(shorten(printable(name), max(8, width // 4)))
