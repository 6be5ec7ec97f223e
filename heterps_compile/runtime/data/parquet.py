"""Parquet files as a source: one file, or a folder of them in the order of their names.

The footers say how many rows every row group has, so a range of samples is a few row groups and nothing else is read;
of these only the columns asked for. Decoded row groups are kept while there is room, since a micro-batch is mostly
smaller than one::

    file 0   | group 0: rows 0-99 | group 1: rows 100-199 |
    file 1   | group 0: rows 200-249 |
    samples 150 to 219        group 1 of file 0 from row 50, group 0 of file 1 to row 20

Pages that were written with checksums are checked by them as they are read.

Numbers, booleans and text, which is hashed to ids, make a column [n]; lists of a fixed length make [n, length], lists
of lists one more dimension.

Left out: times, decimals (no tensor holds them), partitioned folders (``year=2026/...``), files far away.
"""

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch import Tensor

from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, printable
from heterps_compile.packages import need

from .arrow import AS_THEY_ARE, Conversion, Place, column_tensor
from .data_file import DataFile, data_file
from .identity import Part, digest_of
from .sample_source import check_range, join

CACHE_BYTES = 256 * 2**20
"""Of decoded row groups, unless told otherwise; the group read last is kept in any case."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group: where it lies, its number in its file, its first row there, its first sample, how many it has."""

    file: int
    index: int
    first_row: int
    first: int
    rows: int


class ParquetSource:
    """Samples in Parquet files."""

    def __init__(
        self, path: str | os.PathLike[str], *, how: Conversion = AS_THEY_ARE, cache_bytes: int = CACHE_BYTES
    ) -> None:
        """Read the footers.

        Args:
            path: A file, or a folder of ``*.parquet`` files.
            how: Values become numbers.
            cache_bytes: Decoded row groups that are kept.

        Raises:
            InputError: where a file is missing, damaged or empty, or files of one folder have different columns.
            MissingPackageError: where pyarrow is not installed.
        """
        need("reading Parquet files", "data")
        import pyarrow  # noqa: ICN001, PLC0415 - an extra
        import pyarrow.parquet  # noqa: PLC0415

        self._arrow: Any = pyarrow
        self._how = how
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[tuple[int, str], Tensor] = OrderedDict()
        self._files: list[DataFile] = []
        self._footers: list[Any] = []
        self._groups: list[_Group] = []
        self._columns: tuple[str, ...] = ()
        for file in _files_of(Path(path)):
            self._add(data_file(file))
        how.rows.check_columns(self._files[0].shown, self._columns)
        self._starts = [group.first for group in self._groups]
        self._samples = sum(group.rows for group in self._groups)
        if not self._samples:
            raise InputError(f"{printable(os.fspath(path))!r} has no rows; expected samples")

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self._columns

    @property
    def samples(self) -> int:
        """Return the number of rows of all files."""
        return self._samples

    @property
    def files(self) -> Sequence[DataFile]:
        """Return the files."""
        return self._files

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return a range of rows."""
        check_range(self, self._files[0].shown, first, count, columns)
        parts = []
        place = bisect_right(self._starts, first) - 1
        while count > 0:
            group = self._groups[place]
            low = first - group.first
            here = min(count, group.rows - low)
            if here > 0:
                decoded = self._decoded(place, columns)
                parts.append({name: decoded[name][low : low + here] for name in columns})
            place, first, count = place + 1, first + here, count - here
        return join(parts)

    def parts(self) -> tuple[Part, ...]:
        """Return the files."""
        rows = [footer.num_rows for footer in self._footers]
        digests = [digest_of(file.size_bytes, *self._how.words(), content=file.ends()) for file in self._files]
        return tuple(map(Part, rows, digests))

    def _add(self, file: DataFile) -> None:
        """Read the footer of a file."""
        try:
            footer = self._arrow.parquet.read_metadata(file.path)
            schema = footer.schema.to_arrow_schema()
        except (OSError, self._arrow.ArrowException) as error:
            raise self._damaged(file, error) from error
        if self._footers:
            first = self._footers[0].schema.to_arrow_schema()
            if not schema.equals(first, check_metadata=False):
                raise InputError(
                    f"{file.shown} has the columns {_shown(schema)} and {self._files[0].shown} has {_shown(first)}; "
                    f"one folder holds files of one kind"
                )
        self._columns = tuple(schema.names)
        if len(set(self._columns)) < len(self._columns):
            raise InputError(f"{file.shown} has two columns of one name ({_shown(schema)}); rename one")
        rows = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
        before = self._groups[-1].first + self._groups[-1].rows if self._groups else 0
        for index, (start, count) in enumerate(zip(accumulate(rows, initial=0), rows, strict=False)):
            self._groups.append(_Group(len(self._files), index, start, before + start, count))
        self._files.append(file)
        self._footers.append(footer)

    def _decoded(self, place: int, columns: Sequence[str]) -> Mapping[str, Tensor]:
        """Return the columns of a row group as tensors, from the cache or the file."""
        missing = [name for name in dict.fromkeys(columns) if (place, name) not in self._cached]
        fresh = self._decode(self._groups[place], missing) if missing else {}
        self._cached |= {(place, name): tensor for name, tensor in fresh.items()}
        found = {name: self._cached[place, name] for name in columns}
        for name in columns:
            self._cached.move_to_end((place, name))
        held_bytes = sum(tensor.nbytes for tensor in self._cached.values())
        while held_bytes > self._cache_bytes and len(self._cached) > len(found):
            held_bytes -= self._cached.popitem(last=False)[1].nbytes
        return found

    def _decode(self, group: _Group, columns: Sequence[str]) -> dict[str, Tensor]:
        file = self._files[group.file]
        file.check()
        try:
            with self._arrow.parquet.ParquetFile(
                file.path, metadata=self._footers[group.file], page_checksum_verification=True
            ) as opened:
                # one thread: the cores compute, and a thread of ours reads ahead of them
                table = opened.read_row_group(group.index, columns=list(columns), use_threads=False)
        except (OSError, self._arrow.ArrowException) as error:
            file.check()
            raise self._damaged(file, f"row group {group.index}: {error}") from error
        tensors = {}
        for name in columns:
            place = Place(file.shown, name, group.first_row)
            tensors[name] = column_tensor(table.column(name), place, self._how)
            if len(tensors[name]) != group.rows:
                raise self._damaged(file, f"column {printable(name)!r} has {len(tensors[name])} rows of {group.rows}")
        return tensors

    def _damaged(self, file: DataFile, error: object) -> InputError:
        return InputError(
            f"{file.shown} is no Parquet file, or a damaged one ({file.size_bytes:,} bytes): "
            f"{one_line(str(error))[:200]}; write or copy it again"
        )


def _files_of(path: Path) -> list[Path]:
    """Return the file that a path is, or the Parquet files of the folder it is, by name."""
    if not path.is_dir():
        return [path]
    try:
        files = sorted(file for file in path.iterdir() if file.suffix == ".parquet")
    except OSError as error:
        raise InputError(f"cannot read the folder {printable(os.fspath(path))!r}: {error.strerror}") from error
    if not files:
        raise InputError(f"the folder {printable(os.fspath(path))!r} has no files that end in .parquet")
    return files


def _shown(schema: Any) -> str:
    return ", ".join(f"{printable(field.name)} ({printable(str(field.type))})" for field in schema)
