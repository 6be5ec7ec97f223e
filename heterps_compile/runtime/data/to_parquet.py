"""A CSV file as a Parquet file in a cache of this machine, converted when it is first used.

::

    clicks.csv  --checked text-->  pyarrow.csv  --columns of bytes-->  typed columns  -->  KEY.parquet
                4 MiB at a time                                        nulls, first faults

The key is a hash of the file's version and fingerprint and of the layout. Ranks that start together wait for one lock:
the first converts, the others find the result. A file is written under a temporary name and renamed, so a run that is
killed leaves no half of one. A copy whose footer cannot be read is written again.

pyarrow accepts text that was cut off between two quotation marks, and empty lines. :class:`CheckedText` refuses both
while pyarrow reads, and counts the records for comparison.

A field of another type than its column does not end the conversion, since the run may not read that column: the
column is null from that batch on, and the first fault is noted in the Parquet file. So is the first missing value of
each column.

Not covered: removal of old copies (delete the folder); records above 4 MiB.
"""

import fcntl
import hashlib
import io
import json
import os
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.strict_json import STRICT, checked, parsed

from .block_cache import VARIABLE
from .data_file import DataFile, local_file

KINDS: Mapping[str, str] = MappingProxyType(
    {"int": "int64", "float": "float32", "double": "float64", "bool": "bool_", "text": "large_string"}
)
"""Types of columns, and their types in Arrow."""

INFERRED_RECORDS = 4095
"""The types of columns follow from the first records of the data."""

BLOCK_BYTES = 4 * 2**20
"""Parsed at a time; the longest record."""

_GROUP_ROWS = 32_768
_INFERRED = ("int", "bool", "float")  # in this order; else text
_FORMAT = 1  # of the copies
_NOTES = "heterps"
_SHOWN = 100  # characters of a wrong field
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """How the records of a file become columns.

    Attributes:
        header: Names of the fields, in the order of the file.
        delimiter: Between them, one ASCII character.
        kinds: Names and types (:data:`KINDS`) of the columns, in the order of the Parquet file.
    """

    header: tuple[str, ...]
    delimiter: str
    kinds: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Notes:
    """Faults of a converted file, by column. Record 0 is the header.

    Attributes:
        wrong: Record and text of the first field of another type.
        missing: Record of the first missing value.
    """

    wrong: dict[str, tuple[int, str]]
    missing: dict[str, int]

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


class CheckedText(io.RawIOBase):
    """A CSV file as a stream of bytes, checked while it is read.

    Attributes:
        records: That were read, with the header.
    """

    def __init__(self, file: DataFile, delimiter: str, *, allows_empty: bool) -> None:
        """Begin at the start of a file; ``allows_empty`` accepts empty lines."""
        self.records = 0
        self._file = file
        self._allows_empty = allows_empty
        self._before_field = np.array([ord(delimiter), _NEWLINE, _RETURN, _QUOTE], np.uint8)
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
        self._check_marks(letters, quotes[int(self._is_inside) :: 2])
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

    def _check_marks(self, letters: NDArray[np.uint8], opening: NDArray[np.int64]) -> None:
        """Refuse a quotation mark that opens a field anywhere but at its beginning."""
        if not len(opening):
            return
        is_stray = ~np.isin(np.where(opening > 0, letters[opening - 1], self._last), self._before_field)
        if self._position == 0 and letters[: len(BOM_UTF8)].tobytes() == BOM_UTF8:
            is_stray &= opening != len(BOM_UTF8)
        if is_stray.any():
            line = self._lines + 1 + _newlines(letters[: int(opening[is_stray][0])])
            raise InputError(
                f"line {line:,} of {self._file.shown} has a quotation mark inside a field that does not begin with one"
                f'; put the whole field in marks and write the one inside twice ("5"" pipe")'
            )
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


def infer_kinds(files: Sequence[DataFile], layouts: Sequence[CsvLayout], names: Sequence[str]) -> dict[str, str]:
    """Infer the types of columns from the first records.

    Args:
        files: In the order of their samples.
        layouts: Of the files.
        names: Of the columns.

    Raises:
        InputError: if the first records cannot be parsed.
    """
    import pyarrow  # noqa: ICN001, PLC0415 - an extra

    arrow: Any = pyarrow
    for file, layout in zip(files, layouts, strict=True) if names else ():
        batches: list[Any] = []
        for batch in _batches(file, layout):
            batches.append(batch)
            if sum(one.num_rows for one in batches) >= INFERRED_RECORDS:
                break
        if batches:
            table = arrow.Table.from_batches(batches).slice(0, INFERRED_RECORDS)
            columns = dict(zip(layout.header, table.columns, strict=True))
            return {name: _kind_of(columns[name].combine_chunks()) for name in names}
    return dict.fromkeys(names, "float")


def parquet_of(file: DataFile, layout: CsvLayout) -> Path:
    """Return the Parquet copy of a CSV file; the first use writes it and reports so.

    Raises:
        InputError: if a record cannot be parsed, or a server reports no version of the file.
        RunError: if the copy cannot be written, or the file was changed meanwhile.
    """
    if not file.is_versioned:
        raise InputError(
            f"the server reports neither an ETag nor a time of change of {file.shown}; expected one, so that a copy "
            f"in Parquet is of this file. Fix: copy the file to a disk"
        )
    folder = _cache_folder()
    version = file.size_bytes, file.version_number, file.fingerprint()
    key = hashlib.sha256(repr((_FORMAT, *version, asdict(layout))).encode()).hexdigest()[:40]
    copy = folder / f"{key}.parquet"
    if not _is_readable(copy):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _one_writer(folder):
                if not _is_readable(copy):
                    _write(file, layout, copy)
        except OSError as error:
            raise RunError(
                f"{file.shown} cannot be converted to Parquet in {printable(str(folder))!r}: "
                f"{one_line(error.strerror or str(error))[:200]}. Fix: make room there, or set {VARIABLE} to another "
                f"folder"
            ) from error
    return copy


def notes_of(footer: Any) -> Notes:
    """Read the notes in the footer of a copy.

    Raises:
        InputError: if there are none.
    """
    text = (footer.metadata or {}).get(_NOTES.encode(), b"").decode("utf-8", "replace")
    return checked(Notes, parsed(text, "the notes of a Parquet copy"), "the notes of a Parquet copy")


def _cache_folder() -> Path:
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named, "csv")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "heterps-compile", "csv")


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process converts."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_readable(copy: Path) -> bool:
    import pyarrow  # noqa: ICN001, PLC0415 - an extra
    import pyarrow.parquet  # noqa: PLC0415

    arrow: Any = pyarrow
    try:
        local_file(copy)  # a plain file
        notes_of(arrow.parquet.read_metadata(copy))
    except (OSError, arrow.ArrowException, InputError):
        return False
    return True


def _write(file: DataFile, layout: CsvLayout, copy: Path) -> None:
    aside = copy.with_suffix(".part")  # one writer at a time
    try:
        aside.unlink(missing_ok=True)
        with open(aside, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as sink:
            _convert(file, layout, sink)
        file.check()
        size_bytes = aside.stat().st_size
        aside.replace(copy)
    finally:
        aside.unlink(missing_ok=True)
    where = printable(str(copy))
    print(f"note: {file.shown} was converted to Parquet at {where!r}, {size_bytes:,} bytes", file=sys.stderr)


def _convert(file: DataFile, layout: CsvLayout, sink: Any) -> None:
    """Write the columns of a file as Parquet."""
    import pyarrow  # noqa: ICN001, PLC0415 - an extra
    import pyarrow.parquet  # noqa: PLC0415

    arrow: Any = pyarrow
    made = [_Column(name, kind) for name, kind in layout.kinds]
    schema = arrow.schema([(column.name, column.type) for column in made])
    record = 1
    with arrow.parquet.ParquetWriter(sink, schema, write_page_checksum=True) as writer:
        for batch in _batches(file, layout):
            raw = dict(zip(layout.header, batch.columns, strict=True))
            columns = [column.converted(raw[column.name], record) for column in made]
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema), row_group_size=_GROUP_ROWS)
            record += batch.num_rows
        wrong = {column.name: column.wrong for column in made if column.wrong is not None}
        missing = {column.name: column.missing for column in made if column.missing is not None}
        writer.add_key_value_metadata({_NOTES: json.dumps(asdict(Notes(wrong, missing)))})


def _batches(file: DataFile, layout: CsvLayout) -> Iterator[Any]:
    """Yield the records as batches of Arrow with columns of bytes; null is a missing value.

    Raises:
        InputError: if the text is not CSV, or a record has another number of fields than the header, with the line.
    """
    import pyarrow  # noqa: ICN001, PLC0415 - an extra
    import pyarrow.csv  # noqa: PLC0415

    arrow: Any = pyarrow
    odd: list[Any] = []

    def skip(row: Any) -> str:
        odd.append(row)
        return "skip"

    names = list(layout.header)
    text, rows = CheckedText(file, layout.delimiter, allows_empty=len(names) == 1), 0
    try:
        reader = arrow.csv.open_csv(
            text,
            read_options=arrow.csv.ReadOptions(
                use_threads=False, block_size=BLOCK_BYTES, column_names=names, skip_rows_after_names=1
            ),
            parse_options=arrow.csv.ParseOptions(
                delimiter=layout.delimiter,
                newlines_in_values=True,
                ignore_empty_lines=False,
                invalid_row_handler=skip,
            ),
            convert_options=arrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, arrow.large_binary()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        with reader:
            for batch in reader:
                if odd:
                    break
                rows += batch.num_rows
                if batch.num_rows:
                    yield batch
    except arrow.ArrowException as error:
        raise InputError(
            f"{file.shown} is no CSV ({one_line(str(error))[:120]}); expected records of at most {BLOCK_BYTES:,} bytes"
        ) from error
    if odd:
        raise InputError(
            f"line {line_of(file, odd[0].number - 1):,} of {file.shown} has {odd[0].actual_columns} fields and the "
            f"header {len(names)}; mend or remove it"
        )
    if rows != text.records - 1:
        raise InputError(
            f"{file.shown} has {rows:,} records, and its line ends make {text.records - 1:,}; expected lines that end "
            f"in a newline. Fix: remove carriage returns without one"
        )


class _Column:
    """A column while it is converted; its first faults as in :class:`Notes`."""

    def __init__(self, name: str, kind: str) -> None:
        """Begin before its first field."""
        self.name = name
        self.type = _arrow_type(kind)
        self.wrong: tuple[int, str] | None = None
        self.missing: int | None = None
        self._kind = kind

    def converted(self, raw: Any, record: int) -> Any:
        """Convert the next fields, of which the first is in ``record``; null from the first wrong one on."""
        import pyarrow  # noqa: ICN001, PLC0415 - an extra

        arrow: Any = pyarrow
        if self.missing is None and raw.null_count:
            self.missing = record + _first(raw.is_null())
        if self.wrong is None:
            column, row = self._until_wrong(raw)
            if row is None:
                return column
            self.wrong = record + row, raw[row].as_py().decode("utf-8", "backslashreplace")[:_SHOWN]
        return arrow.nulls(len(raw), self.type)

    def _until_wrong(self, raw: Any) -> tuple[Any, int | None]:
        """Return the fields as a column, and the first of another type if there is one."""
        import pyarrow  # noqa: ICN001, PLC0415 - an extra
        import pyarrow.compute  # noqa: PLC0415

        arrow: Any = pyarrow
        wrong = None
        try:
            column = _converted(raw, self._kind)
        except arrow.ArrowException:
            wrong, stop = 0, len(raw)
            while stop - wrong > 1:  # the first half that fails has the first fault
                middle = (wrong + stop) // 2
                try:
                    _converted(raw.slice(wrong, middle - wrong), self._kind)
                    wrong = middle
                except arrow.ArrowException:
                    stop = middle
            column = _converted(raw.slice(0, wrong), self._kind)
        if self._kind in ("float", "double"):
            is_wild = arrow.compute.invert(arrow.compute.is_finite(column)).fill_null(False)
            wrong = _first(is_wild) if arrow.compute.any(is_wild).as_py() else wrong
        return column, wrong


def _converted(raw: Any, kind: str) -> Any:
    """Convert fields; raises ArrowException if one is of another type."""
    import pyarrow.compute  # noqa: PLC0415 - an extra

    compute: Any = pyarrow.compute
    text = raw.cast(_arrow_type("text"))
    return text if kind == "text" else compute.ascii_trim_whitespace(text).cast(_arrow_type(kind))


def _kind_of(raw: Any) -> str:
    """Infer the type of fields; without values it is that of floats."""
    import pyarrow  # noqa: ICN001, PLC0415 - an extra

    arrow: Any = pyarrow
    for kind in ("float",) if raw.null_count == len(raw) else _INFERRED:
        try:
            _converted(raw, kind)
        except arrow.ArrowException:
            continue
        return kind
    return "text"


def _arrow_type(kind: str) -> Any:
    import pyarrow  # noqa: ICN001, PLC0415 - an extra

    return getattr(pyarrow, KINDS[kind])()


def _record_ends(letters: NDArray[np.uint8], *, is_inside: bool) -> NDArray[np.int64]:
    """Find the newlines that end records; ``is_inside``: the text begins between quotation marks."""
    ends = np.flatnonzero(letters == _NEWLINE)
    quotes = np.flatnonzero(letters == _QUOTE)
    if not len(quotes):
        return ends[:0] if is_inside else ends
    even: NDArray[np.int64] = ends[(np.searchsorted(quotes, ends) + is_inside) % 2 == 0]
    return even


def header_end(head: bytes) -> int:
    """Return the length of the first record, with its line end."""
    ends = _record_ends(np.frombuffer(head, np.uint8), is_inside=False)
    return int(ends[0]) + 1 if len(ends) else len(head)


def _newlines(letters: NDArray[np.uint8]) -> int:
    return int(np.count_nonzero(letters == _NEWLINE))


def _first(mask: Any) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])
