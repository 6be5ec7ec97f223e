"""Criteo's text format as a source: a label, 13 whole numbers, 26 categories a line, with tabs between.

::

    label  number 0 ... number 12   category 0 ... category 25
    1      5        ... (missing)   68fd1e64   ... (missing)        hexadecimal, up to 8 digits

Columns: ``label`` float32 [n] (absent where lines have 39 fields, as in the test set), ``dense`` float32 [n, 13],
``sparse`` int64 [n, 26]. A missing number is 0. A missing category is id 0 of its field; every other is hashed into
ids 1 to rows - 1, by a rule that depends on the field and the category alone, so every rank and every run agrees.

The file is converted to Parquet when it is first used, a column for each field, as a CSV file without a header is
(``csv_file.py``). Categories are hashed when they are read, so one copy serves every number of rows.

Not covered: vocabularies (ids by frequency), logarithms and clipping of the numbers: what is learned belongs to the
user's ``prepare``.
"""

import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from heterps_compile.errors import InputError
from heterps_compile.packages import need

from .arrow import Conversion
from .checked_text import first_record
from .csv_file import ConvertedSource
from .data_file import DataFile, ends
from .find_files import find_files
from .hashed_ids import splitmix64
from .identity import Part, digest_of
from .sample_source import check_range
from .to_parquet import HEXADECIMAL, CsvLayout

NUMBERS = 13
CATEGORIES = 26
_SUFFIX = ".tsv"
CATEGORIES_COLUMN = "sparse"
HASH_ROWS = 100_000
"""Rows of every table that categories are hashed into, unless told otherwise."""


class CriteoSource:
    """Samples in a file of Criteo's format."""

    def __init__(self, path: str | os.PathLike[str], *, rows: int = HASH_ROWS) -> None:
        """Convert the file, or find the copy of an earlier use.

        Args:
            path: The file.
            rows: Of each of the 26 tables, 2 or more.

        Raises:
            InputError: if the file cannot be read, or a line has another number of fields than the format.
            RunError: if the copy cannot be written.
            MissingPackageError: if pyarrow is not installed.
        """
        need("reading Criteo's text", "data")
        self._rows = rows
        (file,) = find_files(os.fspath(path), _SUFFIX)
        count = first_record(file).count(b"\t") + 1
        if count not in (NUMBERS + CATEGORIES, 1 + NUMBERS + CATEGORIES):
            raise InputError(
                f"{file.shown} has {count} fields in its first line; expected a label, {NUMBERS} numbers and "
                f"{CATEGORIES} categories with tabs between, or these without the label"
            )
        names = tuple(f"field {number}" for number in range(1, count + 1))
        numbers = count - CATEGORIES
        self._fields = {"label": names[: numbers - NUMBERS]} if numbers > NUMBERS else {}
        self._fields |= {"dense": names[numbers - NUMBERS : numbers], CATEGORIES_COLUMN: names[numbers:]}
        kinds = dict.fromkeys(names, "int") | dict.fromkeys(names[numbers:], HEXADECIMAL)
        layout = CsvLayout(names, "\t", tuple(kinds.items()), header_records=0)
        self._source = ConvertedSource([file], [layout], how=Conversion(fill=0), advice=", or nothing. Fix: mend it")

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(self._fields)

    @property
    def samples(self) -> int:
        """Return the number of lines."""
        return self._source.samples

    @property
    def files(self) -> Sequence[DataFile]:
        """Return the file."""
        return self._source.files

    def parts(self) -> tuple[Part, ...]:
        """Return the file."""
        (file,) = self.files
        return (Part(self.samples, digest_of(file.size_bytes, [self._rows] * CATEGORIES, content=ends(file))),)

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Read a range of lines."""
        check_range(self, self.files[0].shown, first, count, columns)
        found = self._source.read(first, count, [field for name in columns for field in self._fields[name]])
        return {name: self._column(name, [found[field] for field in self._fields[name]]) for name in columns}

    def _column(self, name: str, fields: Sequence[Tensor]) -> Tensor:
        if name == CATEGORIES_COLUMN:
            return self._hashed(torch.stack(list(fields), dim=1))
        numbers = torch.stack(list(fields), dim=1).to(torch.float32)
        return numbers if name == "dense" else numbers[:, 0]

    def _hashed(self, categories: Tensor) -> Tensor:
        """Return ids [lines, fields]: 0 where missing, else 1 + mix(category, field) mod (rows - 1)."""
        values = categories.numpy()
        fields = np.arange(1, CATEGORIES + 1, dtype=np.uint64) << np.uint64(32)
        ids = 1 + splitmix64(values.view(np.uint64) + fields) % np.uint64(self._rows - 1)
        return torch.from_numpy(np.where(values < 0, 0, ids).astype(np.int64))
