"""A text file of records as a Parquet file in a cache of this machine, converted when it is first used.

::

    clicks.csv  --checked text-->  pyarrow.csv  --columns of bytes-->  typed columns  -->  KEY.parquet
                4 MiB at a time                                        nulls, first faults

The key is a hash of the file's version and fingerprint and of the layout. Ranks that start together wait for one lock:
the first converts, the others find the result. A file is written under a temporary name and renamed, so a run that is
killed leaves no half of one. A copy whose footer cannot be read is written again.

pyarrow accepts text that was cut off between two quotation marks, text after the mark that closes a field, and empty
lines. :class:`CheckedText` refuses them while pyarrow reads, and counts the records for comparison.

A field of another type than its column does not end the conversion, since the run may not read that column: the
column is null from that batch on, and the first fault is noted in the Parquet file. So is the first missing value of
each column.

Whoever opens or reads a copy sets its time of change. A conversion after which the copies take more than
:data:`KEPT_BYTES` removes those that were not read for :data:`UNREAD_S`, oldest first, until the others take less.

Not covered: records above 4 MiB.
"""

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.strict_json import STRICT, checked, parsed

from .arrow import pyarrow_with
from .block_cache import VARIABLE
from .checked_text import BLOCK_BYTES, CheckedText, line_of
from .data_file import DataFile, local_file

KINDS: Mapping[str, str] = MappingProxyType(
    {"int": "int64", "float": "float32", "double": "float64", "bool": "bool_", "text": "large_string"}
)
"""Types of columns that a user names, and their types in Arrow."""

HEXADECIMAL = "hexadecimal"
"""The type of columns of up to 8 hexadecimal digits: whole numbers, -1 for a missing one."""

INFERRED_RECORDS = 4095
"""The types of columns follow from the first records of the data."""

KEPT_BYTES = 64 * 2**30
"""Of all copies, above which those that are not read any more are removed."""

UNREAD_S = 7 * 24 * 3600.0
"""A copy that was not read for so long is not read any more."""

_GROUP_ROWS = 32_768
_INFERRED = ("int", "bool", "float")  # in this order; else text
_FORMAT = 1  # of the copies
_NOTES = "heterps"
_SHOWN = 100  # characters of a wrong field


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """How the records of a file become columns.

    Attributes:
        header: Names of the fields, in the order of the file.
        delimiter: Between them, one ASCII character.
        kinds: Names and types (:data:`KINDS`, :data:`HEXADECIMAL`) of the columns, in the order of the Parquet file.
        header_records: Before the first record with values: 1, or 0 in a file without a header.
    """

    header: tuple[str, ...]
    delimiter: str
    kinds: tuple[tuple[str, str], ...] = ()
    header_records: int = 1


@dataclass(frozen=True, slots=True)
class Notes:
    """Faults of a converted file, by column. Record 0 is the first one, a header too.

    Attributes:
        wrong: Record and text of the first field of another type.
        missing: Record of the first missing value.
    """

    wrong: dict[str, tuple[int, str]]
    missing: dict[str, int]

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


def infer_kinds(files: Sequence[DataFile], layouts: Sequence[CsvLayout], names: Sequence[str]) -> dict[str, str]:
    """Infer the types of columns from the first records.

    Args:
        files: In the order of their samples.
        layouts: Of the files.
        names: Of the columns.

    Raises:
        InputError: if the first records cannot be parsed.
    """
    arrow = pyarrow_with()
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
    """Return the Parquet copy of a text file; the first use writes it and reports so.

    Raises:
        InputError: if a record cannot be parsed, or a server reports no version of the file.
        RunError: if the copy cannot be written, or the file was changed meanwhile.
    """
    if not file.version:
        raise InputError(
            f"the server reports neither an ETag nor a time of change of {file.shown}; expected one, so that a copy "
            f"in Parquet is of this file. Fix: copy the file to a disk"
        )
    folder = _cache_folder()
    version = file.size_bytes, file.version, file.fingerprint()
    key = hashlib.sha256(repr((_FORMAT, *version, asdict(layout))).encode()).hexdigest()[:40]
    copy = folder / f"{key}.parquet"
    if not _is_readable(copy):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _one_writer(folder):
                if not _is_readable(copy):
                    _write(file, layout, copy)
                    _remove_unread(folder)
        except OSError as error:
            raise RunError(
                f"{file.shown} cannot be converted to Parquet in {printable(str(folder))!r}: "
                f"{one_line(error.strerror or str(error))[:200]}. Fix: make room there, or set {VARIABLE} to another "
                f"folder"
            ) from error
    mark_read(copy)
    return copy


def mark_read(copy: Path) -> None:
    """Note that a copy is read."""
    with suppress(OSError):  # a folder that cannot be written, from which nothing is removed
        os.utime(copy)


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
    arrow = pyarrow_with("parquet")
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


def _remove_unread(folder: Path) -> None:
    """Remove the copies that are not read any more, oldest first, while all take more than :data:`KEPT_BYTES`."""
    found = sorted((copy.stat().st_mtime, copy.stat().st_size, copy) for copy in folder.glob("*.parquet"))
    size_bytes = sum(size for _, size, _ in found)
    removed_bytes = 0
    for read_at, size, copy in found:
        if size_bytes - removed_bytes > KEPT_BYTES and time.time() - read_at > UNREAD_S:
            copy.unlink()
            removed_bytes += size
    if removed_bytes:
        print(
            f"note: copies in {printable(str(folder))!r} that were not read for {UNREAD_S / 86400:g} days were "
            f"removed, {removed_bytes:,} bytes",
            file=sys.stderr,
        )


def _convert(file: DataFile, layout: CsvLayout, sink: Any) -> None:
    """Write the columns of a file as Parquet."""
    arrow = pyarrow_with("parquet")
    made = [_Column(name, kind) for name, kind in layout.kinds]
    schema = arrow.schema([(column.name, column.type) for column in made])
    record = layout.header_records
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
    arrow = pyarrow_with("csv")
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
                use_threads=False,
                block_size=BLOCK_BYTES,
                column_names=names,
                skip_rows_after_names=layout.header_records,
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
            f"line {line_of(file, odd[0].number - 1):,} of {file.shown} has {odd[0].actual_columns} fields; expected "
            f"{len(names)}, as in the first line. Fix: mend or remove it"
        )
    if rows != text.records - layout.header_records:
        raise InputError(
            f"{file.shown} has {rows + layout.header_records:,} records, and its line ends make {text.records:,}; "
            f"expected lines that end in a newline. Fix: remove carriage returns without one"
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
        arrow = pyarrow_with()
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
        arrow = pyarrow_with("compute")
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
    arrow = pyarrow_with("compute")
    text = raw.cast(_arrow_type("text"))
    if kind == HEXADECIMAL:
        prefix, none = (arrow.scalar(word, text.type) for word in ("0x", ""))  # as Arrow writes such numbers
        digits = arrow.compute.binary_join_element_wise(prefix, text, none)
        return digits.cast(arrow.uint32()).cast(arrow.int64()).fill_null(-1)
    return text if kind == "text" else arrow.compute.ascii_trim_whitespace(text).cast(_arrow_type(kind))


def _kind_of(raw: Any) -> str:
    """Infer the type of fields; without values it is that of floats."""
    arrow = pyarrow_with()
    for kind in ("float",) if raw.null_count == len(raw) else _INFERRED:
        try:
            _converted(raw, kind)
        except arrow.ArrowException:
            continue
        return kind
    return "text"


def _arrow_type(kind: str) -> Any:
    return getattr(pyarrow_with(), "int64" if kind == HEXADECIMAL else KINDS[kind])()


def _first(mask: Any) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])
