"""A text file of records as a stream of bytes that is checked while another parser reads it.

Records are those of RFC 4180: lines, in which fields between quotation marks may have line ends::

    id,note            record 0
    1,"two             record 1, from line 2
    lines"
    2,"5"" pipe"       record 2, from line 4

Refused, with the line: an empty line, a quotation mark that neither begins nor ends a field, one that is never closed.
"""

import io
from codecs import BOM_UTF8
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import InputError

from .data_file import DataFile

BLOCK_BYTES = 4 * 2**20
"""Parsed at a time; the longest record."""

_MOST_HEADER_BYTES = 2**20
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'


class CheckedText(io.RawIOBase):
    """A text file as a stream of bytes, checked while it is read.

    Attributes:
        records: That were read, a header among them.
    """

    def __init__(self, file: DataFile, delimiter: str, *, allows_empty: bool) -> None:
        """Begin at the start of a file; ``allows_empty`` accepts empty lines."""
        self.records = 0
        self._file = file
        self._allows_empty = allows_empty
        self._beside_field = np.array([ord(delimiter), _NEWLINE, _RETURN, _QUOTE], np.uint8)
        self._position = 0
        self._record_start = 0
        self._lines = 0
        self._is_inside = False
        self._opened_line = 0
        self._last = _NEWLINE  # the byte before the next ones

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, target: Any) -> int:
        """Read and check the next bytes; the last line gets a line end if it has none.

        Raises:
            InputError: if the text is not CSV, with the line.
        """
        size_bytes = self._file.size_bytes
        end = min(self._position + len(target) - 1, size_bytes)
        if end == self._position:
            return 0
        chunk = self._file.read(self._position, end)
        chunk += b"" if end < size_bytes or chunk.endswith(b"\n") else b"\n"
        self._check(np.frombuffer(chunk, np.uint8), is_last=end == size_bytes)
        self._position = end
        target[: len(chunk)] = chunk
        return len(chunk)

    def _check(self, letters: NDArray[np.uint8], *, is_last: bool) -> None:
        quotes = np.flatnonzero(letters == _QUOTE)
        self._check_marks(letters, quotes)
        ends = _record_ends(letters, is_inside=self._is_inside)
        self._is_inside ^= bool(len(quotes) % 2)
        if is_last and self._is_inside:
            raise InputError(
                f"the quotation mark that opens a field in line {self._opened_line:,} of {self._file.shown} is never "
                f"closed; mend the file, or write it again if it was cut off"
            )
        if len(ends) and not self._allows_empty:
            self._check_filled(letters, ends)
        self.records += len(ends)
        self._record_start = self._position + int(ends[-1]) + 1 if len(ends) else self._record_start
        self._lines += _newlines(letters)
        self._last = int(letters[-1])

    def _check_marks(self, letters: NDArray[np.uint8], quotes: NDArray[np.int64]) -> None:
        """Refuse a quotation mark that neither begins nor ends a field."""
        opening, after = quotes[int(self._is_inside) :: 2], quotes[int(not self._is_inside) :: 2] + 1
        if self._last == _QUOTE and not self._is_inside:  # the last bytes ended with the mark that closes a field
            after = np.concatenate([[0], after])
        after = after[after < len(letters)]
        is_stray = ~np.isin(np.where(opening > 0, letters[opening - 1], self._last), self._beside_field)
        if self._position == 0 and letters[: len(BOM_UTF8)].tobytes() == BOM_UTF8:
            is_stray &= opening != len(BOM_UTF8)
        stray = np.concatenate([opening[is_stray], after[~np.isin(letters[after], self._beside_field)]])
        if len(stray):
            line = self._lines + 1 + _newlines(letters[: int(stray.min())])
            raise InputError(
                f"line {line:,} of {self._file.shown} has a quotation mark that neither begins nor ends a field; put "
                f'the whole field in marks and write the one inside twice ("5"" pipe")'
            )
        if len(opening):
            self._opened_line = self._lines + 1 + _newlines(letters[: int(opening[-1])])

    def _check_filled(self, letters: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        starts = np.concatenate([[self._record_start - self._position], ends[:-1] + 1])
        is_return = np.where(ends > 0, letters[ends - 1], self._last) == _RETURN
        empty = np.flatnonzero(ends - starts == is_return)
        if len(empty):
            line = self._lines + 1 + _newlines(letters[: int(ends[empty[0]])])
            raise InputError(f"line {line:,} of {self._file.shown} is empty; remove it")


def line_of(file: DataFile, record: int) -> int:
    """Find the line, from 1, in which a record begins; reads the file up to it."""
    lines, records, is_inside = 1, 0, False
    for begin in range(0, file.size_bytes if record else 0, BLOCK_BYTES):
        letters = np.frombuffer(file.read(begin, min(begin + BLOCK_BYTES, file.size_bytes)), np.uint8)
        ends = _record_ends(letters, is_inside=is_inside)
        if records + len(ends) >= record:
            return lines + _newlines(letters[: int(ends[record - records - 1]) + 1])
        lines, records = lines + _newlines(letters), records + len(ends)
        is_inside ^= bool(np.count_nonzero(letters == _QUOTE) % 2)
    return lines


def _record_ends(letters: NDArray[np.uint8], *, is_inside: bool) -> NDArray[np.int64]:
    """Find the newlines that end records; ``is_inside``: the text begins between quotation marks."""
    ends = np.flatnonzero(letters == _NEWLINE)
    quotes = np.flatnonzero(letters == _QUOTE)
    if not len(quotes):
        return ends[:0] if is_inside else ends
    even: NDArray[np.int64] = ends[(np.searchsorted(quotes, ends) + is_inside) % 2 == 0]
    return even


def first_record(file: DataFile) -> bytes:
    """Read the first record of a file, with its line end; of one longer than 1 MiB the begin."""
    head = file.read(0, min(_MOST_HEADER_BYTES, file.size_bytes))
    ends = _record_ends(np.frombuffer(head, np.uint8), is_inside=False)
    return head[: int(ends[0]) + 1] if len(ends) else head


def _newlines(letters: NDArray[np.uint8]) -> int:
    return int(np.count_nonzero(letters == _NEWLINE))
