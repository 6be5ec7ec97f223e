"""CSV files with a header as a source: one file, or a folder of them in the order of their names.

The text is UTF-8 and as in RFC 4180: fields may stand in quotation marks, with delimiters and line ends inside. The
file is gone through once for where its records begin (``line_index.py``); a range of samples is then a few groups of
4,096 records, and of these only the columns asked for are converted, by ``pyarrow.csv``::

    kind      tensor    a field
    int       int64     -17
    float     float32   0.5, 1e3; finite
    double    float64   the same
    bool      bool      true or false, 1 or 0
    text      int64     any, hashed to an id

A column's kind is what ``types`` says; else float where the model takes floats of that name; else what its first group
of records looks like. A later field of another kind is refused with its line. Nothing between two delimiters is a
missing value: id 0 for text; for numbers ``fill``, or refused. ``""`` is text of no letters.

Left out: dates, decimal commas, comments, other encodings, compressed files.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import one_line, printable, short
from heterps_compile.packages import need

from .arrow import AS_THEY_ARE, Conversion, Place, column_tensor
from .data_file import DataFile, ends
from .find_files import find_files
from .identity import Part, digest_of
from .line_index import LINES_A_STEP, LineIndex, kept_at, line_index
from .model_inputs import InputSpec
from .row_groups import CACHE_BYTES, RowGroup, RowGroups
from .sample_source import check_range

KINDS: Mapping[str, str] = MappingProxyType(
    {"int": "int64", "float": "float32", "double": "float64", "bool": "bool_", "text": "large_string"}
)
"""What a column may be, and its type in Arrow."""

_EXPECTED: Mapping[str, str] = MappingProxyType(
    {
        "int": "a whole number of 64 bits",
        "float": "a finite number with a point for decimals",
        "double": "a finite number with a point for decimals",
        "bool": "true or false",
        "text": "text in UTF-8",
    }
)
_DELIMITERS = ",;\t|"
_GROUP_RECORDS = 16 * LINES_A_STEP
_NAMES_SHOWN = 8


class CsvSource:
    """Samples in CSV files.

    Attributes:
        of_model: Rows of the model's tables that columns of text are hashed into, by name, where nobody said any.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        how: Conversion = AS_THEY_ARE,
        types: Mapping[str, str] = MappingProxyType({}),
        delimiter: str | None = None,
        wanted: Mapping[str, InputSpec] = MappingProxyType({}),
        index_folder: Path | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Find the records, or take the indices that were kept, and what the columns are.

        Args:
            path: A file, or a folder of ``*.csv`` files.
            how: Values become numbers.
            types: Kinds of columns (:data:`KINDS`) by name.
            delimiter: One letter; None for what is in the header: a comma, else most of ``;``, tab, ``|``.
            wanted: What the model takes, by name.
            index_folder: Where indices are kept for the next time; None keeps none.
            cache_bytes: Decoded groups that are kept.

        Raises:
            InputError: where a file is missing or empty or is no such text, or files have different columns.
            UnknownNameError: where ``types`` names a column or a kind that does not exist.
            MissingPackageError: where pyarrow is not installed.
        """
        need("reading CSV files", "data")
        import pyarrow  # noqa: ICN001, PLC0415 - an extra
        import pyarrow.compute  # noqa: PLC0415
        import pyarrow.csv  # noqa: PLC0415

        self._arrow: Any = pyarrow
        self._how = how
        self._files = find_files(os.fspath(path), ".csv")
        self._headers: list[tuple[str, ...]] = []
        self._indices: list[LineIndex] = []
        groups: list[RowGroup] = []
        self._delimiter = delimiter or ""
        for file in self._files:
            groups += self._add(file, sum(group.rows for group in groups), index_folder)
        self._rows = RowGroups(groups, self._files, self._decode, cache_bytes)
        if not self._rows.samples:
            raise InputError(f"{printable(os.fspath(path))!r} has a header and no records; expected samples")
        how.rows.check_columns(self._files[0].shown, self.columns)
        self._kinds = self._kinds_of(next(group for group in groups if group.rows), types, wanted)
        texts = [name for name, kind in self._kinds.items() if kind == "text"]
        tables = {name: spec.rows for name, spec in wanted.items() if spec.rows is not None}
        self._how = replace(how, rows=how.rows.with_tables(self._files[0].shown, texts, tables))
        self.of_model = self._how.rows.added_to(how.rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self._headers[0]

    @property
    def samples(self) -> int:
        """Return the number of records of all files."""
        return self._rows.samples

    @property
    def files(self) -> Sequence[DataFile]:
        """Return the files."""
        return self._files

    def parts(self) -> tuple[Part, ...]:
        """Return the files."""
        words = self._delimiter, sorted(self._kinds.items()), *self._how.words()
        return tuple(
            Part(index.lines - 1, digest_of(file.size_bytes, *words, content=ends(file)))
            for file, index in zip(self._files, self._indices, strict=True)
        )

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return a range of records."""
        check_range(self, self._files[0].shown, first, count, columns)
        return self._rows.read(first, count, columns)

    def _add(self, file: DataFile, before: int, index_folder: Path | None) -> Iterator[RowGroup]:
        """Index a file and read its header; yield its groups, the first of which begins with sample ``before``."""
        if not self._delimiter:
            self._delimiter = _delimiter_of(file.read(0, min(_MOST_HEADER_BYTES, file.size_bytes)))
        index = line_index(file, kept_at(file, index_folder), delimiter=ord(self._delimiter))
        header = self._header(file, index.records(0, 1)[0])
        if self._headers and set(header) != set(self._headers[0]):
            odd = sorted(set(header) ^ set(self._headers[0]))[0]
            raise InputError(
                f"{file.shown} and {self._files[0].shown} do not both have the column {printable(odd)!r}; one folder "
                f"holds files of one kind"
            )
        place = len(self._indices)
        self._headers.append(header)
        self._indices.append(index)
        for number, start in enumerate(range(0, index.lines, _GROUP_RECORDS)):
            low, high = max(start, 1), min(start + _GROUP_RECORDS, index.lines)
            yield RowGroup(place, number, low - 1, before + low - 1, high - low)

    def _header(self, file: DataFile, text: bytes) -> tuple[str, ...]:
        """Return the names in the first record of a file."""
        import csv  # noqa: PLC0415 - beside its one use

        try:
            (names,) = csv.reader([text.decode("utf-8-sig").rstrip("\r\n")], delimiter=self._delimiter)
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
        self, group: RowGroup, types: Mapping[str, str], wanted: Mapping[str, InputSpec]
    ) -> Mapping[str, str]:
        """Return the kind of every column: what is said, what the model takes, or what the first records look like."""
        for name, kind in types.items():
            if name not in self.columns:
                shown = self._files[0].shown
                raise UnknownNameError(f"column of {shown} (types=):", printable(name), map(printable, self.columns))
            if kind not in KINDS:
                raise UnknownNameError(f"type of column {printable(name)!r}", printable(kind), KINDS)
        kinds = {name: "float" for name, spec in wanted.items() if (spec.dtype or "").startswith(("float", "bfloat"))}
        kinds |= types
        unknown = [name for name in self.columns if name not in kinds]
        if unknown:
            table = self._parse(group, self._records(group), dict.fromkeys(unknown))
            kinds |= {name: _kind_of(self._arrow, table.column(name).type) for name in unknown}
        return {name: kinds[name] for name in self.columns}

    def _records(self, group: RowGroup) -> list[bytes]:
        return self._indices[group.file].records(group.first_row + 1, group.rows)

    def _decode(self, group: RowGroup, columns: Sequence[str]) -> dict[str, Tensor]:
        file = self._files[group.file]
        kinds = {name: self._kinds[name] for name in columns}
        records = self._records(group)
        table = self._parse(group, records, kinds)
        tensors = {}
        for name, kind in kinds.items():
            column = table.column(name)
            if kind != "text" and column.null_count and self._how.fill is None:
                raise self._wrong(group, column.is_null(), records, name, "has no value; fill such fields (fill=0)")
            if kind in ("float", "double"):
                is_wild = self._arrow.compute.invert(self._arrow.compute.is_finite(column)).fill_null(False)
                if self._arrow.compute.any(is_wild).as_py():
                    raise self._wrong(group, is_wild, records, name, f"expected {_EXPECTED[kind]}")
            tensors[name] = column_tensor(column, Place(file.shown, name, group.first_row), self._how)
        return tensors

    def _parse(self, group: RowGroup, records: list[bytes], kinds: Mapping[str, str | None]) -> Any:
        """Return columns of some records as a table of Arrow; a kind that is None is looked at.

        Raises:
            InputError: naming line and column of the first field that is something else.
        """
        try:
            return self._table(group, records, kinds)
        except self._arrow.ArrowException as error:
            if len(records) > 1:  # the first half that fails has the first fault
                half = len(records) // 2
                later = RowGroup(group.file, group.index, group.first_row + half, group.first + half, group.rows - half)
                self._parse(group, records[:half], kinds)
                self._parse(later, records[half:], kinds)
            raise self._fault(group, records[0], kinds, error) from error

    def _table(self, group: RowGroup, records: list[bytes], kinds: Mapping[str, str | None]) -> Any:
        csv = self._arrow.csv
        text = b"".join(records)
        read = csv.ReadOptions(
            use_threads=False, block_size=len(text) + 1, column_names=list(self._headers[group.file])
        )
        parse = csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True, ignore_empty_lines=False)
        convert = csv.ConvertOptions(
            include_columns=list(kinds),
            column_types={name: getattr(self._arrow, KINDS[kind])() for name, kind in kinds.items() if kind},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        table = csv.read_csv(BytesIO(text), read_options=read, parse_options=parse, convert_options=convert)
        if len(self.columns) > 1 and not all(record.rstrip(b"\r\n") for record in records):
            raise self._arrow.ArrowInvalid("an empty line")
        if table.num_rows != len(records):
            raise self._arrow.ArrowInvalid(f"{table.num_rows} records where line ends make {len(records)}")
        return table

    def _fault(self, group: RowGroup, record: bytes, kinds: Mapping[str, str | None], error: Exception) -> InputError:
        """Return what is wrong with a record that cannot be parsed."""
        file, line = self._files[group.file], self._indices[group.file].first_line(group.first_row + 1)
        for name, kind in kinds.items():
            try:
                self._table(group, [record], {name: kind})
            except self._arrow.ArrowException:
                try:
                    self._table(group, [record], {})
                except self._arrow.ArrowException:
                    break
                return self._wrong(group, None, [record], name, f"expected {_EXPECTED[kind or 'text']}")
        if not record.rstrip(b"\r\n"):
            return InputError(f"line {line:,} of {file.shown} is empty; remove it")
        fields = record.decode("utf-8", "replace").rstrip("\r\n").split(self._delimiter)
        count = len(self._headers[group.file])
        if len(fields) != count and '"' not in "".join(fields):
            return InputError(
                f"line {line:,} of {file.shown} has {len(fields)} fields and the header {count}; mend or remove it"
            )
        return InputError(
            f"line {line:,} of {file.shown} is no record of {count} fields ({one_line(str(error))[:120]}); "
            f"mend or remove it"
        )

    def _wrong(self, group: RowGroup, is_wrong: Any, records: list[bytes], name: str, expected: str) -> InputError:
        """Return what is wrong with the first field of a column that is marked, or with the only one."""
        file = self._files[group.file]
        row = 0 if is_wrong is None else int(np.flatnonzero(is_wrong.to_numpy())[0])
        line = self._indices[group.file].first_line(group.first_row + row + 1)
        field = self._field(group, records[row], name)
        where = f"line {line:,}, column {printable(name)!r} of {file.shown}"
        if not field:
            return InputError(f"{where} {expected}, or leave such records out")
        return InputError(
            f"{where} is {short(field)}; {expected} (by the model or the first records; say otherwise with types=)"
        )

    def _field(self, group: RowGroup, record: bytes, name: str) -> str:
        import csv  # noqa: PLC0415 - beside its one use

        fields = next(csv.reader([record.decode("utf-8", "backslashreplace")], delimiter=self._delimiter), [])
        return fields[self._headers[group.file].index(name)] if fields else ""


_MOST_HEADER_BYTES = 2**20


def _delimiter_of(head: bytes) -> str:
    """Return what separates the names of a header: a comma where there is one."""
    line = head.partition(b"\n")[0].decode("utf-8", "replace")
    outside = "".join(line.split('"')[::2])
    return "," if "," in outside else max(_DELIMITERS, key=outside.count)


def _kind_of(arrow: Any, found: Any) -> str:
    """Return the kind of a column that looks like a type of Arrow; without values it is one of floats."""
    kinds = arrow.types
    if kinds.is_boolean(found):
        return "bool"
    if kinds.is_integer(found):
        return "int"
    return "float" if kinds.is_floating(found) or kinds.is_null(found) else "text"
