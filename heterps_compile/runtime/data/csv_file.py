"""CSV files with a header as a source: one file, or a folder of them in the order of their names.

The text is UTF-8 as in RFC 4180. Every file is converted to Parquet when it is first used (``to_parquet.py``), and its
samples are read from there (``parquet.py``). Checks, fingerprints and messages are of the CSV file::

    type      tensor    field
    int       int64     -17
    float     float32   0.5, 1e3; finite
    double    float64   the same
    bool      bool      true or false, 1 or 0
    text      int64     any, hashed to an id

A column's type is that of ``types``; else float if the model takes floats of that name; else it is inferred from the
first records. No text between two delimiters is a missing value: id 0 for text; for numbers ``fill``, or refused.
``""`` is empty text.

Not covered: dates, decimal commas, comments, other encodings, compressed files.
"""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from torch import Tensor

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import one_line, printable, short
from heterps_compile.packages import need

from .arrow import AS_THEY_ARE, Conversion
from .checked_text import first_record, line_of
from .data_file import DataFile
from .find_files import find_files
from .identity import Part
from .model_inputs import InputSpec
from .parquet import CACHE_BYTES, ParquetSource
from .to_parquet import HEXADECIMAL, KINDS, CsvLayout, infer_kinds, mark_read, notes_of, parquet_of

_EXPECTED: Mapping[str, str] = MappingProxyType(
    {
        "int": "a whole number of 64 bits",
        "float": "a finite number with a point for decimals",
        "double": "a finite number with a point for decimals",
        "bool": "true or false",
        "text": "text in UTF-8",
        HEXADECIMAL: "a hexadecimal number of up to 8 digits",
    }
)
_DELIMITERS = ",;\t|"


class ConvertedSource(ParquetSource):
    """Samples in text files that are read from their Parquet copies."""

    def __init__(
        self,
        files: Sequence[DataFile],
        layouts: Sequence[CsvLayout],
        *,
        how: Conversion,
        advice: str,
        tables: Mapping[str, int] = MappingProxyType({}),
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Convert the files, or find the copies of an earlier use.

        Args:
            files: In the order of their samples.
            layouts: Of the files, with the same types of columns.
            how: Values become numbers.
            advice: What a message says after the type that was expected of a field.
            tables: As of :class:`ParquetSource`.
            cache_bytes: Decoded groups that are kept.

        Raises:
            InputError: if a file is no such text.
            RunError: if a copy cannot be written.
        """
        self._delimiter, self._kinds, self._advice = layouts[0].delimiter, dict(layouts[0].kinds), advice
        self._copies = {file.shown: parquet_of(file, layout) for file, layout in zip(files, layouts, strict=True)}
        super().__init__(files, how=how, tables=tables, cache_bytes=cache_bytes)
        self._notes = [notes_of(footer) for footer in self._footers]

    def parts(self) -> tuple[Part, ...]:
        """Return the files."""
        return self._parts(self._delimiter, sorted(self._kinds.items()))

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return a range of records.

        Raises:
            InputError: if a field of the columns has another type or, without ``fill``, no value, with the line.
        """
        for file, notes in zip(self._files, self._notes, strict=True):
            for name in columns:
                if name in notes.wrong:
                    record, field = notes.wrong[name]
                    raise InputError(
                        f"{_place(file, record, name)} is {short(field)}; expected {_EXPECTED[self._kinds[name]]}"
                        f"{self._advice}"
                    )
                if name in notes.missing and self._how.fill is None and self._kinds[name] != "text":
                    raise InputError(
                        f"{_place(file, notes.missing[name], name)} has no value; fill such fields (fill=0), or leave "
                        f"such records out"
                    )
        return super().read(first, count, columns)

    def _for_arrow(self, file: DataFile) -> Path:
        copy = self._copies[file.shown]
        mark_read(copy)
        return copy

    def _damaged(self, file: DataFile, error: object) -> InputError:
        copy = printable(str(self._copies[file.shown]))
        return InputError(
            f"the Parquet copy {copy!r} of {file.shown} is damaged or gone: {one_line(str(error))[:200]}. Fix: delete "
            f"it, and start again"
        )


class CsvSource(ConvertedSource):
    """Samples in CSV files."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        how: Conversion = AS_THEY_ARE,
        types: Mapping[str, str] = MappingProxyType({}),
        delimiter: str | None = None,
        wanted: Mapping[str, InputSpec] = MappingProxyType({}),
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Convert the files, or find the copies of an earlier use.

        Args:
            path: A file, or a folder of ``*.csv`` files.
            how: Values become numbers.
            types: Types of columns (:data:`KINDS`) by name.
            delimiter: One letter; None for that of the header: a comma, else most of ``;``, tab, ``|``.
            wanted: Inputs of the model, by name.
            cache_bytes: Decoded groups that are kept.

        Raises:
            InputError: if a file is missing or empty or is no such text, or files have different columns.
            RunError: if the copy cannot be written.
            UnknownNameError: if ``types`` names a column or a type that does not exist.
            MissingPackageError: if pyarrow is not installed.
        """
        need("reading CSV files", "data")
        files = find_files(os.fspath(path), ".csv")
        records = [first_record(file) for file in files]
        delimiter = delimiter or _delimiter_of(records[0])
        layouts = [
            CsvLayout(_header(file, record, delimiter), delimiter) for file, record in zip(files, records, strict=True)
        ]
        for file, layout in zip(files, layouts, strict=True):
            other = sorted({*layout.header} ^ {*layouts[0].header})
            if other:
                raise InputError(
                    f"{file.shown} and {files[0].shown} do not both have the column {printable(other[0])!r}; one "
                    f"folder holds files of one kind"
                )
        kinds = tuple(_kinds_of(files, layouts, types, wanted).items())
        super().__init__(
            files,
            [replace(layout, kinds=kinds) for layout in layouts],
            how=how,
            advice=" (from the model or the first records). Fix: mend it, or name another type with types=",
            tables={name: spec.rows for name, spec in wanted.items() if spec.rows is not None},
            cache_bytes=cache_bytes,
        )


def _place(file: DataFile, record: int, name: str) -> str:
    file.check()
    return f"line {line_of(file, record):,}, column {printable(name)!r} of {file.shown}"


def _header(file: DataFile, text: bytes, delimiter: str) -> tuple[str, ...]:
    """Return the names in the first record of a file."""
    try:
        names = next(csv.reader(io.StringIO(text.decode("utf-8-sig"), newline=""), delimiter=delimiter))
    except (UnicodeDecodeError, ValueError, csv.Error) as error:
        raise InputError(
            f"the header of {file.shown} cannot be read ({one_line(str(error))[:100]}); expected the names of the "
            f"columns in UTF-8"
        ) from error
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{file.shown} has two columns of the name {printable(twice)!r} in its header; rename one")
    return tuple(names)


def _kinds_of(
    files: Sequence[DataFile],
    layouts: Sequence[CsvLayout],
    types: Mapping[str, str],
    wanted: Mapping[str, InputSpec],
) -> dict[str, str]:
    """Choose the type of every column, in the order of the first file."""
    names = layouts[0].header
    for name, kind in types.items():
        if name not in names:
            raise UnknownNameError(f"column of {files[0].shown} (types=):", printable(name), map(printable, names))
        if kind not in KINDS:
            raise UnknownNameError(f"type of column {printable(name)!r}", printable(kind), KINDS)
    kinds = {name: "float" for name, spec in wanted.items() if (spec.dtype or "").startswith(("float", "bfloat"))}
    kinds |= types
    kinds |= infer_kinds(files, layouts, [name for name in names if name not in kinds])
    return {name: kinds[name] for name in names}


def _delimiter_of(record: bytes) -> str:
    """Return the delimiter of a header: a comma if there is one."""
    line = record.partition(b"\n")[0].decode("utf-8", "replace")
    outside = "".join(line.split('"')[::2])
    return "," if "," in outside else max(_DELIMITERS, key=outside.count)
