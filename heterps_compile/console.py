"""Tables on a terminal: a console that prints text as it is, no space at the end of a line, and tables without frames.

Names come from models; each goes through :func:`~heterps_compile.escape.printable` into a ``Text``, so that neither
escape sequences nor rich's own markup reach the terminal.

A ``Text`` that is printed by itself is a sentence, which is broken as ``fit_lines.py`` says.

Left out: what is in the tables; progress (``cli/output.py``).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO
from textwrap import wrap
from typing import Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from .escape import printable, shorten
from .fit_lines import LEAST_WIDTH, PLAIN_WIDTH, fit_lines

_BETWEEN = 2  # columns of the terminal, from one of a table to the next
_LONGEST_WORD = 20  # that a column of text makes room for
_PIECES = re.compile(r"[^\s-]+-*")  # of a heading, which is broken between them


def make_console(stream: TextIO, terminal_width: int | None) -> "PlainConsole":
    """Make a console that prints text as it is, without spaces at the end of a line.

    Args:
        stream: Where to.
        terminal_width: Columns of the terminal, or None where the stream is none.
    """
    width = PLAIN_WIDTH if terminal_width is None else max(terminal_width, LEAST_WIDTH)
    console = PlainConsole(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)
    console.sentence_width = None if terminal_width is None else width
    console.push_render_hook(_FitEveryLine(console.sentence_width))
    return console


class PlainConsole(Console):
    """Prints a line that is longer than the console is wide: a sentence where there is no terminal, a long path.

    Attributes:
        sentence_width: Columns of the terminal, at which sentences break; None where the stream is none.
    """

    sentence_width: int | None = None

    def height_of(self, *parts: RenderableType) -> int:
        """Count the lines that parts take."""
        stream = StringIO()
        measure = make_console(stream, self.sentence_width)
        for part in parts:
            measure.print(part)
        return stream.getvalue().count("\n")

    def print(self, *objects: Any, **options: Any) -> None:
        """Print what fits by itself."""
        super().print(*objects, **{"crop": False, **options})


@dataclass(frozen=True, slots=True)
class _FitEveryLine(RenderHook):
    """Breaks sentences, and takes from every line the spaces that a table pads its last column with.

    Attributes:
        width: Columns of the terminal, or None where the output is none.
    """

    width: int | None

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Trimmed(self._sentence(one) if isinstance(one, Text) else one) for one in renderables]

    def _sentence(self, text: Text) -> Text:
        return Text(fit_lines(text.plain, self.width), text.style, no_wrap=True, overflow="ignore")


@dataclass(frozen=True, slots=True)
class _Trimmed:
    whole: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        line: list[Segment] = []
        for segment in console.render(self.whole, options):
            if segment.control:
                line.append(segment)
                continue
            head, *others = segment.text.split("\n")
            line.append(Segment(head, segment.style))
            for text in others:
                yield from _without_spaces_behind(line)
                yield Segment.line()
                line = [Segment(text, segment.style)]
        yield from _without_spaces_behind(line)


def _without_spaces_behind(line: list[Segment]) -> list[Segment]:
    """Return a line without the spaces that nothing stands behind."""
    kept = list(line)
    while kept and not kept[-1].control:
        last = kept.pop()
        if text := last.text.rstrip(" "):
            return [*kept, Segment(text, last.style)]
    return kept


def plain_table() -> Table:
    """Return a table without a frame, its head ruled off, that breaks no word and cuts off no number.

    Where it is too wide, headings break between words, then texts do; where that is not enough either, every row is
    printed as a paragraph.
    """
    return _FittingTable(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold"
    )


class _FittingTable(Table):
    """Decides on the widths of its columns itself: rich breaks words, and cuts numbers off, to make a table fit."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - _BETWEEN * (len(self.columns) - 1)
        for breaks_headings in (False, True):
            drawn = [_Drawn.of(column, breaks_headings=breaks_headings) for column in self.columns]
            most = sum(column.most for column in drawn)
            if most <= room:
                break
        if sum(column.least for column in drawn) > room:
            yield from _paragraphs([column.header for column in self.columns], [[*c.cells] for c in self.columns])
            return
        widths = [column.most for column in drawn]
        while sum(widths) > room:
            widest = max(
                (i for i, column in enumerate(drawn) if widths[i] > column.least), key=lambda i: (widths[i], -i)
            )
            widths[widest] -= 1
        for column, shown, width in zip(self.columns, drawn, widths, strict=True):
            column.width, column.header = width, shown.heading
        yield from super().__rich_console__(console, options)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A column: its heading as it is drawn, the columns of the terminal that it would like, and those that it needs."""

    heading: Text
    most: int
    least: int

    @classmethod
    def of(cls, column: Column, *, breaks_headings: bool) -> "_Drawn":
        """Measure a column; a name that is longer than others may be broken."""
        heading, cells = _text(column.header), [_text(cell).plain for cell in column.cells]
        lines = [line for cell in cells for line in cell.split("\n")]
        if breaks_headings and column.no_wrap:
            room = max(map(cell_len, [*lines, *_PIECES.findall(heading.plain)]), default=1)
            heading = Text("\n".join(wrap(heading.plain, room)), heading.style)
        lines += heading.plain.split("\n")
        most = max(map(cell_len, lines), default=0)
        if column.no_wrap:
            return cls(heading, most, most)
        words = [word for line in lines for word in line.split()]
        least = min(_LONGEST_WORD, max(map(cell_len, words), default=0))
        return cls(heading, most, max(least, *map(cell_len, heading.plain.split("\n"))))


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def _paragraphs(headings: list[RenderableType], columns: list[list[RenderableType]]) -> Iterator[ConsoleRenderable]:
    """Yield a paragraph a row: its first cell, then what stands under the other headings."""
    first, *others = (_text(heading).plain for heading in headings)
    for lead, *cells in zip(*columns, strict=True):
        told = (
            f"{heading} {cell}".strip()
            for heading, cell in zip(others, (_text(cell).plain for cell in cells), strict=True)
            if cell
        )
        yield Text(f"{first} {_text(lead).plain}".strip(), style="bold")
        yield Padding(Text(", ".join(told)), (0, 0, 0, 2))


def pairs_table(pairs: Iterable[tuple[str, str]], label_width: int = 0) -> Table:
    """Make a table of labels and texts.

    Args:
        pairs: Labels and texts.
        label_width: Columns that labels take at least.
    """
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True, min_width=label_width)
    table.add_column(overflow="fold")
    for name, words in pairs:
        table.add_row(Text(printable(name)), Text(printable(words)))
    return table


def note_text(note: str) -> Text:
    """Indent a note's further lines."""
    return Text(f"note: {printable(note)}")


def warning_text(warning: str) -> Text:
    """Indent a warning's further lines."""
    return Text(f"warning: {printable(warning)}")


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
