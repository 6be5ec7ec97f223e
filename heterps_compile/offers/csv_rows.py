"""Rows of a CSV file that may come from a stranger, read one after the other, and their cells.

Refused are files beyond a size, rows beyond a number, lines and cells beyond a length, other encodings, rows with more
or fewer cells than the header, and text that is not printable.

Left out: what the columns mean (``formats.py``).
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO

from heterps_compile.conflict_markers import unmerged
from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short
from heterps_compile.plain_file import open_plain
from heterps_compile.units import NUMBER, format_count

MOST_BYTES = 256 << 20
MOST_ROWS = 250_000
_MOST_LINE = 1 << 16  # characters
_MOST_TEXT = 200  # characters of a cell
_NUMBER = re.compile(NUMBER, re.ASCII)
_WILD = re.compile(r"[*?\[\]]")
_WORD = re.compile(r"[A-Z]{3}\b|[€£¥₹]")


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        where: File and number, as messages begin; the header is row 1.
        cells: By column, without spaces around them.
    """

    where: str
    cells: Mapping[str, str]

    def wrong(self, fault: str) -> InputError:
        """Return an error about this row."""
        return InputError(f"{self.where}: {fault}")

    def has(self, column: str) -> bool:
        """Return whether there is something in a column."""
        return self.cells.get(column, "") != ""

    def name(self, column: str, what: str) -> str:
        """Return a name: text that is there, printable, and no pattern.

        Raises:
            InputError: with the row.
        """
        text = self.text(column, what)
        if _WILD.search(text):
            raise self.wrong(f"{column} {short(text)} has a wild card in it; {what} must be a plain name")
        return text

    def text(self, column: str, what: str) -> str:
        """Return text that is there and printable.

        Raises:
            InputError: with the row.
        """
        text = self.cells.get(column, "")
        if not text:
            raise self.wrong(f"{column} is empty; expected {what}")
        if len(text) > _MOST_TEXT:
            raise self.wrong(f"{column} has {len(text):,} characters; expected {what}, at most {_MOST_TEXT}")
        if not text.isprintable():
            raise self.wrong(f"{column} {short(printable(text))} has characters that are not printable")
        return text

    def number(self, column: str, what: str, *, least: float = 0.0, most: float = 1e9) -> float:
        """Return a number above ``least`` and at most ``most``; an empty cell is refused.

        Raises:
            InputError: with the row.
        """
        text = self.cells.get(column, "")
        if not text:
            raise self.wrong(f"{column} is empty; expected {what}")
        if not _NUMBER.fullmatch(text):
            unit = _WORD.search(text)
            told = f" (it names {unit[0]})" if unit and text[:3].lower() not in ("nan", "inf") else ""
            raise self.wrong(f"{column} {short(text)} is no plain number{told}; expected {what}")
        value = float(text)
        if not least < value <= most:
            raise self.wrong(f"{column} {short(text)} must lie above {least:g} and be at most {most:g}; it is {what}")
        return value

    def whole(self, column: str, what: str, *, most: int = 100_000) -> int:
        """Return a whole number of 1 or more, be it written ``8.0``.

        Raises:
            InputError: with the row.
        """
        value = self.number(column, what, most=most)
        if value != int(value):
            raise self.wrong(f"{column} {short(self.cells[column])} is not whole; expected {what}")
        return int(value)


def read_rows(path: Path, where: str) -> Iterator[Row]:
    """Yield the rows of a file.

    Args:
        path: A CSV file in UTF-8 whose first row names the columns.
        where: What to call it in messages.

    Raises:
        InputError: in one sentence, with the number of the row where it is a row's.
    """
    try:
        status = path.stat()
        if status.st_size > MOST_BYTES:
            raise InputError(
                f"{where} has {status.st_size >> 20:,} MiB, and a catalogue at most {MOST_BYTES >> 20}; keep the "
                "rows of the providers and regions that you may rent in"
            )
        with TextIOWrapper(open_plain(path), encoding="utf-8-sig", newline="") as file:
            yield from parse_rows(file, where)
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise InputError(f"{where} is no UTF-8 text; expected a CSV file") from error
        raise InputError(
            f"cannot read {where}: {getattr(error, 'strerror', None) or 'no file has this name'}"
        ) from error


def check_size(path: Path, where: str, what: str, most_bytes: int = 16 << 20) -> None:
    """Refuse a file that is too large to be what it should; one that cannot be read is left to who reads it.

    Args:
        path: Of the file.
        where: What messages call it.
        what: It should have, such as ``measurements``.
        most_bytes: Of the file.

    Raises:
        InputError: where it is larger.
    """
    try:
        size = path.stat().st_size
    except (OSError, ValueError):
        return
    if size > most_bytes:
        raise InputError(
            f"{where} has {format_count(size)}B, and {what} at most {most_bytes >> 20} MiB; keep the newest rows"
        )


def parse_rows(file: IO[str], where: str) -> Iterator[Row]:
    """Yield the rows of an open file.

    Raises:
        InputError: as :func:`read_rows`, but for what the file itself is.
    """
    lines = csv.reader(_lines(file, where), strict=True)
    header: list[str] | None = None
    count = 0
    try:
        for cells in lines:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if header is None:
                header = _columns(cells, where)
                continue
            count += 1
            row = f"{where}, row {lines.line_num}"
            if count > MOST_ROWS:
                raise InputError(f"{row}: a catalogue has at most {MOST_ROWS:,} rows; keep those that you may rent")
            if len(cells) != len(header):
                raise InputError(f"{row} has {len(cells)} cells, and the header {len(header)}; expected one a column")
            yield Row(row, dict(zip(header, (cell.strip() for cell in cells), strict=True)))
    except csv.Error as error:
        raise InputError(f"{where}, row {lines.line_num}: not a row of a CSV file: {error}") from error
    if header is None:
        raise InputError(f"{where} is empty; expected a CSV file whose first row names the columns")


def _lines(file: IO[str], where: str) -> Iterator[str]:
    """Yield lines, none of which fills the memory."""
    read: Callable[[], str] = lambda: file.readline(_MOST_LINE + 1)  # noqa: E731 - for iter
    for number, line in enumerate(iter(read, ""), 1):
        if len(line) > _MOST_LINE:
            raise InputError(f"{where}, line {number} has more than {_MOST_LINE:,} characters; a row has some hundreds")
        if "\0" in line:
            raise InputError(f"{where}, line {number} has a zero byte; expected a CSV file")
        yield line


def _columns(cells: list[str], where: str) -> list[str]:
    if len(cells) == 1 and (fault := unmerged(cells[0])):
        raise InputError(f"{where} {fault}")
    header = [cell.strip() for cell in cells]
    for name in header:
        if header.count(name) > 1:
            raise InputError(f"{where} has {header.count(name)} columns {short(name)}; names must differ")
    return header
