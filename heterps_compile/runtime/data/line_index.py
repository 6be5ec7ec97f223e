"""Where the lines or the records of a large text file begin, so that a range of them is one read.

The file is gone through once, a few MiB at a time, and every ``LINES_A_STEP``-th line start is kept: 1.4 MB for 45
million lines. The index can be kept in a file beside; it is made anew when the data file is another one.

A record of CSV (RFC 4180) is a line, but a line end between quotation marks belongs to its field: a line ends where the
marks before it are even in number. That holds where marks stand around whole fields alone, which is checked::

    user,title                    record 0
    7,"two
    lines in ""marks"" "          record 1, two lines
    8,5" pipe                     refused: the mark opens nothing

Left out: compressed files.
"""

import os
from codecs import BOM_UTF8
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import InputError

from .data_file import DataFile

LINES_A_STEP = 256
"""Between two line starts that are kept."""

CHUNK_BYTES = 4 * 2**20
"""Read at a time where the index is made, unless told otherwise."""

_HEAD = 6  # numbers before the offsets in an index file: version, lines a step, lines, size, version, delimiter
_VERSION = 3
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_OF_LINES = -1  # in place of a delimiter


@dataclass(frozen=True, slots=True)
class LineIndex:
    """Where lines 0, ``LINES_A_STEP``, 2 * ``LINES_A_STEP`` and so on of a file begin.

    Attributes:
        file: The file.
        lines: How many it has, or how many records; a last one without a line end counts.
        offsets: [steps + 1] in bytes, the end of the file last.
        delimiter: Between the fields of its records; None where it has plain lines.
    """

    file: DataFile
    lines: int
    offsets: NDArray[np.int64]
    delimiter: int | None = None

    def read(self, first: int, count: int) -> bytes:
        """Return whole lines, those ``first`` on among them: from the kept start at or before line ``first``.

        Raises:
            RunError: where the file was changed since the index was made.
        """
        low, high = first // LINES_A_STEP, -(-(first + count) // LINES_A_STEP)
        begin, end = int(self.offsets[low]), int(self.offsets[min(high, len(self.offsets) - 1)])
        self.file.check()
        return self.file.read(begin, end)

    def records(self, first: int, count: int) -> list[bytes]:
        """Return records, those from ``first`` on, each with its line end.

        Raises:
            RunError: where the file was changed since the index was made.
        """
        text = self.read(first, count)
        skip = first % LINES_A_STEP
        stops = [0, *(_record_ends(np.frombuffer(text, np.uint8), is_inside=False) + 1).tolist(), len(text)]
        return [text[begin:end] for begin, end in pairwise(stops[skip : skip + count + 1])]

    def first_line(self, record: int) -> int:
        """Return the number of the line, from 1, that a record begins in; reads the file up to there."""
        step = record // LINES_A_STEP
        stop, lines = int(self.offsets[step]), 1
        for begin in range(0, stop, CHUNK_BYTES):
            lines += self.file.read(begin, min(begin + CHUNK_BYTES, stop)).count(b"\n")
        before = record - step * LINES_A_STEP
        return lines + sum(text.count(b"\n") for text in self.records(record - before, before))


def line_index(
    file: DataFile, kept: Path | None = None, *, delimiter: int | None = None, chunk_bytes: int = CHUNK_BYTES
) -> LineIndex:
    """Make the index of a file, or take the one that was kept.

    Args:
        file: The file.
        kept: Where an index is read from, and written to where there is none that fits; None keeps none.
        delimiter: Between the fields of its records, as a byte; None for an index of plain lines.
        chunk_bytes: Read at a time.

    Raises:
        InputError: where the file cannot be read, or a quotation mark stands inside a field or is never closed.
    """
    found = None if kept is None else _kept_index(file, kept, delimiter)
    if found is not None:
        return found
    index = _make_index(file, delimiter, chunk_bytes)
    if kept is not None:
        _keep(index, kept)
    return index


def kept_at(file: DataFile, folder: Path | None) -> Path | None:
    """Return where a folder keeps the index of a file; None without a folder."""
    return None if folder is None else folder / f"{file.name}.index.npy"


def _make_index(file: DataFile, delimiter: int | None, chunk_bytes: int) -> LineIndex:
    starts: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    marks = None if delimiter is None else _Marks(file, delimiter)
    lines = 0
    last = b""
    for position in range(0, file.size_bytes, chunk_bytes):
        chunk = file.read(position, min(position + chunk_bytes, file.size_bytes))
        letters = np.frombuffer(chunk, np.uint8)
        is_inside = marks is not None and marks.take(letters)
        ends = _record_ends(letters, is_inside=is_inside) if marks else np.flatnonzero(letters == _NEWLINE)
        # the line after the n-th line end is line n
        first = -(lines + 1) % LINES_A_STEP
        starts.append((ends[first::LINES_A_STEP] + position + 1).astype(np.int64))
        lines, last = lines + len(ends), chunk[-1:]
    if marks is not None:
        marks.check_closed()
    offsets = np.concatenate(starts)
    lines += last != b"\n"
    if offsets[-1] != file.size_bytes:  # else a line would begin where the file ends
        offsets = np.append(offsets, file.size_bytes)
    return LineIndex(file, int(lines), offsets, delimiter)


def _record_ends(letters: NDArray[np.uint8], *, is_inside: bool) -> NDArray[np.int64]:
    """Return where records end; ``is_inside`` tells whether the text begins between quotation marks."""
    ends = np.flatnonzero(letters == _NEWLINE)
    quotes = np.flatnonzero(letters == _QUOTE)
    if not len(quotes):
        return ends[:0] if is_inside else ends
    even: NDArray[np.int64] = ends[(np.searchsorted(quotes, ends) + is_inside) % 2 == 0]
    return even


class _Marks:
    """The quotation marks of a file, chunk by chunk."""

    def __init__(self, file: DataFile, delimiter: int) -> None:
        self._file = file
        self._before_field = np.array([delimiter, _NEWLINE, _RETURN, _QUOTE], np.uint8)
        self._is_inside = False
        self._last = _NEWLINE  # the byte before the chunk
        self._lines = 1  # that began before the chunk ends
        self._opened = 0  # line of the last mark that opened a field
        self._is_first = True

    def take(self, letters: NDArray[np.uint8]) -> bool:
        """Check the marks of the next chunk; return whether it begins between two.

        Raises:
            InputError: naming the line of one that stands inside a field.
        """
        was_inside, first_line = self._is_inside, self._lines
        quotes = np.flatnonzero(letters == _QUOTE)
        opening = quotes[int(was_inside) :: 2]
        before = np.where(opening > 0, letters[opening - 1], self._last)
        is_stray = ~np.isin(before, self._before_field)
        if self._is_first and letters[:3].tobytes() == BOM_UTF8:
            is_stray &= opening != len(BOM_UTF8)
        if is_stray.any():
            place = int(opening[is_stray][0])
            line = first_line + int(np.count_nonzero(letters[:place] == _NEWLINE))
            raise InputError(
                f"line {line:,} of {self._file.shown} has a quotation mark inside a field that does not begin with one"
                f'; put the whole field in marks and write the one inside twice ("5"" pipe")'
            )
        if len(opening):
            self._opened = first_line + int(np.count_nonzero(letters[: int(opening[-1])] == _NEWLINE))
        self._is_inside = was_inside ^ bool(len(quotes) % 2)
        self._lines += int(np.count_nonzero(letters == _NEWLINE))
        self._last, self._is_first = int(letters[-1]), False
        return was_inside

    def check_closed(self) -> None:
        """Check that the file does not end between two marks.

        Raises:
            InputError: naming the line of the one that is never closed.
        """
        if self._is_inside:
            raise InputError(
                f"the quotation mark that opens a field in line {self._opened:,} of {self._file.shown} is never closed"
                f"; mend the file, or write it again if it was cut off"
            )


def _kept_index(file: DataFile, kept: Path, delimiter: int | None) -> LineIndex | None:
    """Return the index in a file, or None where there is none or it is of another data file."""
    try:
        numbers = np.load(kept, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if numbers.dtype != np.int64 or numbers.ndim != 1 or len(numbers) < _HEAD + 2:
        return None
    if tuple(numbers[[0, 1, 3, 4, 5]]) != _known_by(file, delimiter):
        return None
    return LineIndex(file, int(numbers[2]), numbers[_HEAD:], delimiter)


def _known_by(file: DataFile, delimiter: int | None) -> tuple[int, ...]:
    separator = _OF_LINES if delimiter is None else delimiter
    return _VERSION, LINES_A_STEP, file.size_bytes, file.version_number, separator


def _keep(index: LineIndex, kept: Path) -> None:
    """Write the index; where that cannot be, the next run makes it again, which costs time and nothing else."""
    version, step, *file = _known_by(index.file, index.delimiter)
    head = (version, step, index.lines, *file)
    own = kept.with_name(f"{kept.name}.{os.getpid()}.npy")  # several ranks may write it at once
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.save(own, np.concatenate([np.array(head, np.int64), index.offsets]), allow_pickle=False)
        own.replace(kept)
