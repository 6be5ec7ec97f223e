"""Criteo's text format as a source: a label, 13 whole numbers, 26 categories a line, with tabs between.

::

    label  number 0 ... number 12   category 0 ... category 25
    1      5        ... (missing)   68fd1e64   ... (missing)        hexadecimal, up to 8 digits

Columns: ``label`` float32 [n] (absent where lines have 39 fields, as in the test set), ``dense`` float32 [n, 13],
``sparse`` int64 [n, 26]. A missing number is 0. A missing category is id 0 of its field; every other is hashed into
ids 1 to rows - 1, by a rule that depends on the field and the category alone, so every rank and every run agrees.

A field is parsed for all lines at once, digit by digit. The file is never held as a whole. ``pyarrow.csv`` is not used:
it has no hexadecimal numbers, says of no faulty field in which line it stands, and with the conversion around it reads
0.3 times as many lines a second in batches of 512 and as many in batches of 4096 (``tools/bench_runtime_data.py``).

Left out: vocabularies (ids by frequency), logarithms and clipping of the numbers: what is learned belongs to the user's
``prepare``.
"""

import os
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps_compile.errors import InputError
from heterps_compile.escape import printable

from .data_file import DataFile, ends
from .find_files import find_files
from .hashed_ids import splitmix64
from .identity import Part, digest_of
from .line_index import LINES_A_STEP, kept_at, line_index
from .sample_source import check_range

NUMBERS = 13
CATEGORIES = 26
_SUFFIX = ".tsv"
CATEGORIES_COLUMN = "sparse"
HASH_ROWS = 100_000
"""Rows of every table that categories are hashed into, unless told otherwise."""

_TAB, _NEWLINE, _RETURN, _MINUS, _ZERO = 9, 10, 13, 45, 48
_MOST_DIGITS = 18  # decimal digits that fit int64
_HEX_DIGITS = 8
_NO_DIGIT = 255
_SHOWN = 24  # characters of a wrong field

_HEX = np.full(256, _NO_DIGIT, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = range(16)
_HEX[np.frombuffer(b"ABCDEF", np.uint8)] = range(10, 16)


class CriteoSource:
    """Samples in a file of Criteo's format."""

    def __init__(
        self, path: str | Path, *, rows: int | Sequence[int] = HASH_ROWS, index_folder: Path | None = None
    ) -> None:
        """Find the lines, or take the index that was kept.

        Args:
            path: The file.
            rows: Of the tables, one number for all or one for each of the 26.
            index_folder: Where the index of lines is kept for the next time; None keeps none.

        Raises:
            InputError: where the file cannot be read or its first line is none of the format, or a table has too few
                rows.
        """
        sizes = [rows] * CATEGORIES if isinstance(rows, int) else list(rows)
        if len(sizes) != CATEGORIES or min(sizes) < 2:
            raise InputError(
                f"the {CATEGORIES} categories need tables of 2 rows or more (one for missing values), not {sizes}"
            )
        self._rows = np.array(sizes, np.uint64)
        (self._file,) = find_files(os.fspath(path), _SUFFIX)
        self._index = line_index(self._file, kept_at(self._file, index_folder))
        first = self._index.read(0, 1).split(b"\n", 1)[0]
        self._fields = first.count(b"\t") + 1
        if self._fields not in (NUMBERS + CATEGORIES, 1 + NUMBERS + CATEGORIES):
            raise InputError(
                f"{self._file.shown} has {self._fields} fields in its first line; expected a label, {NUMBERS} numbers "
                f"and {CATEGORIES} categories with tabs between, or these without the label"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return (
            ("dense", CATEGORIES_COLUMN)
            if self._fields == NUMBERS + CATEGORIES
            else ("label", "dense", CATEGORIES_COLUMN)
        )

    @property
    def samples(self) -> int:
        """Return the number of lines."""
        return self._index.lines

    @property
    def files(self) -> Sequence[DataFile]:
        """Return the file."""
        return (self._file,)

    def parts(self) -> tuple[Part, ...]:
        """Return the file."""
        how = self._file.size_bytes, self._rows.tolist()
        return (Part(self.samples, digest_of(*how, content=ends(self._file))),)

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Read and parse a range of lines."""
        check_range(self, self._file.shown, first, count, columns)
        text = self._index.read(first, count)
        if not text.endswith(b"\n"):
            text += b"\n"
        begin = first - first % LINES_A_STEP
        lines = _Lines(self._file.shown, text, text_first=begin, first=first, count=count, fields=self._fields)
        label = self._fields - NUMBERS - CATEGORIES
        made: dict[str, Tensor] = {}
        for name in columns:
            if name == "label":
                made[name] = torch.from_numpy(lines.numbers(0, 1)[:, 0].astype(np.float32))
            elif name == "dense":
                made[name] = torch.from_numpy(lines.numbers(label, NUMBERS).astype(np.float32))
            else:
                made[name] = torch.from_numpy(_hashed(*lines.hexadecimal(label + NUMBERS, CATEGORIES), self._rows))
        return made


class _Lines:
    """Some lines of text, their fields found."""

    def __init__(self, shown: str, text: bytes, *, text_first: int, first: int, count: int, fields: int) -> None:
        """Find the fields of lines ``first`` on in a text that begins with line ``text_first``."""
        self._shown, self._first = shown, first
        self._bytes = np.frombuffer(text, np.uint8)
        line_ends = np.flatnonzero(self._bytes == _NEWLINE)
        skip = first - text_first
        begin = int(line_ends[skip - 1]) + 1 if skip else len(BOM_UTF8) * (first == 0 and text.startswith(BOM_UTF8))
        end = int(line_ends[skip + count - 1]) + 1
        part = self._bytes[begin:end]
        stops = np.flatnonzero((part == _TAB) | (part == _NEWLINE)) + begin
        in_line = np.diff(np.searchsorted(stops, line_ends[skip : skip + count], side="right"), prepend=0)
        ragged = np.flatnonzero(in_line != fields)
        if len(ragged):
            raise InputError(
                f"line {first + int(ragged[0]) + 1:,} of {shown} has {in_line[ragged[0]]} fields, the first line has "
                f"{fields}; mend or remove it"
            )
        self._stops = stops.reshape(count, fields)
        self._starts = np.concatenate([[begin], stops[:-1] + 1]).reshape(count, fields)
        has_return = self._bytes[self._stops[:, -1] - 1] == _RETURN
        self._stops[:, -1] -= has_return & (self._stops[:, -1] > self._starts[:, -1])

    def numbers(self, first_field: int, count: int) -> NDArray[np.int64]:
        """Return decimal fields [lines, count]; 0 where one is missing."""
        starts, lengths = self._span(first_field, count)
        is_negative = (lengths > 0) & (self._bytes[starts] == _MINUS)
        starts, lengths = starts + is_negative, lengths - is_negative
        self._refuse((lengths == 0) & is_negative | (lengths > _MOST_DIGITS), first_field, "whole number")
        value = np.zeros(starts.shape, np.int64)
        for digit in range(int(lengths.max())):
            is_there = lengths > digit
            read = self._at(starts + digit).astype(np.int64) - _ZERO
            self._refuse(is_there & ((read < 0) | (read > 9)), first_field, "whole number")
            value = np.where(is_there, value * 10 + read, value)
        return np.where(is_negative, -value, value)

    def hexadecimal(self, first_field: int, count: int) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Return hexadecimal fields [lines, count], and which of them are missing."""
        starts, lengths = self._span(first_field, count)
        self._refuse(lengths > _HEX_DIGITS, first_field, "hexadecimal number of up to 8 digits")
        value = np.zeros(starts.shape, np.uint64)
        for digit in range(int(lengths.max())):
            is_there = lengths > digit
            read = _HEX[self._at(starts + digit)]
            self._refuse(is_there & (read == _NO_DIGIT), first_field, "hexadecimal number of up to 8 digits")
            value = np.where(is_there, (value << np.uint64(4)) | read, value)
        return value, lengths == 0

    def _span(self, first_field: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        fields = slice(first_field, first_field + count)
        starts = self._starts[:, fields]
        return starts, self._stops[:, fields] - starts

    def _at(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self._bytes[np.minimum(places, len(self._bytes) - 1)]

    def _refuse(self, is_wrong: NDArray[np.bool_], first_field: int, expected: str) -> None:
        if is_wrong.any():
            line, field = (int(i) for i in np.argwhere(is_wrong)[0])
            start, stop = self._starts[line, first_field + field], self._stops[line, first_field + field]
            found = bytes(self._bytes[start:stop])[:_SHOWN].decode("utf-8", "replace")
            raise InputError(
                f"line {self._first + line + 1:,}, field {first_field + field + 1} of {self._shown} is "
                f"{printable(found)!r}; expected a {expected}, or nothing"
            )


def _hashed(values: NDArray[np.uint64], is_missing: NDArray[np.bool_], rows: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return ids [lines, fields]: 0 where missing, else 1 + mix(category, field) mod (rows - 1)."""
    mixed = splitmix64(values + (np.arange(1, CATEGORIES + 1, dtype=np.uint64) << np.uint64(32)))
    return np.where(is_missing, 0, 1 + mixed % (rows - np.uint64(1))).astype(np.int64)
