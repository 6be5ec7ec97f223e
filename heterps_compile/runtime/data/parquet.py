"""Parquet files as a source: one file, or a folder of them in the order of their names.

The footers say how many rows every row group has, so a range of samples is a few row groups, and of these only the
columns asked for. Decoded columns are kept while there is room, since a micro-batch is mostly smaller than a group::

    file 0   | group 0: rows 0-99 | group 1: rows 100-199 |
    file 1   | group 0: rows 200-249 |
    samples 150 to 219        group 1 of file 0 from row 50, group 0 of file 1 to row 20

Pages that were written with checksums are checked by them as they are read.

Numbers, booleans and text, which is hashed to ids, make a column [n]; lists of a fixed length make [n, length], lists
of lists one more dimension.

Left out: times, decimals (no tensor holds them), partitioned folders (``year=2026/...``).
"""

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from torch import Tensor

from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, printable
from heterps_compile.packages import need

from .arrow import AS_THEY_ARE, Conversion, Place, column_tensor, element_type, is_text, pyarrow_with
from .data_file import DataFile, ends
from .find_files import find_files
from .identity import Part, digest_of
from .sample_source import check_range, join

CACHE_BYTES = 256 * 2**20
"""Of decoded groups, unless told otherwise; the group read last is kept in any case."""


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """A group: its file, its number there, its first row there, its first sample, how many rows it has."""

    file: int
    index: int
    first_row: int
    first: int
    rows: int


class ParquetSource:
    """Samples in Parquet files.

    Attributes:
        of_model: Rows of the model's tables that columns of text are hashed into, by name, where nobody said any.
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | Sequence[DataFile],
        *,
        how: Conversion = AS_THEY_ARE,
        tables: Mapping[str, int] = MappingProxyType({}),
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Read the footers.

        Args:
            where: A file, a folder of ``*.parquet`` files, or files that were found before.
            how: Values become numbers.
            tables: Rows of the table that a column is looked up in, by its name; for text of which ``how`` says none.
            cache_bytes: Decoded row groups that are kept.

        Raises:
            InputError: where a file is missing, damaged or empty, or files of one folder have different columns.
            MissingPackageError: where pyarrow is not installed.
        """
        need("reading Parquet files", "data")
        self._arrow = pyarrow_with("parquet")
        self._files = find_files(os.fspath(where), ".parquet") if isinstance(where, str | os.PathLike) else [*where]
        self._footers: list[Any] = []
        self._groups: list[_RowGroup] = []
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[tuple[int, str], Tensor] = OrderedDict()
        for file in self._files:
            self._add(file)
        shown, schema = self._files[0].shown, self._footers[0].schema.to_arrow_schema()
        self._columns = tuple(schema.names)
        how.rows.check_columns(shown, self._columns)
        texts = [field.name for field in schema if is_text(element_type(field.type))]
        self._how = replace(how, rows=how.rows.with_tables(shown, texts, tables))
        self.of_model = self._how.rows.added_to(how.rows)
        if not self.samples:
            raise InputError(f"{shown} has no rows; expected samples")

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self._columns

    @property
    def samples(self) -> int:
        """Return the number of rows of all files."""
        return self._groups[-1].first + self._groups[-1].rows if self._groups else 0

    @property
    def files(self) -> Sequence[DataFile]:
        """Return the files."""
        return self._files

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return a range of rows; a file of them that was changed is refused, even where it was decoded before."""
        check_range(self, self._files[0].shown, first, count, columns)
        parts = []
        place = bisect_right(self._groups, first, key=lambda group: group.first) - 1
        while count > 0:
            group = self._groups[place]
            low = first - group.first
            here = min(count, group.rows - low)
            if here > 0:
                self._files[group.file].check_decoded()
                decoded = self._decoded(place, columns)
                parts.append({name: decoded[name][low : low + here] for name in columns})
            place, first, count = place + 1, first + here, count - here
        return join(parts)

    def parts(self) -> tuple[Part, ...]:
        """Return the files."""
        return self._parts()

    def _parts(self, *words: object) -> tuple[Part, ...]:
        """Return the files, known by how they are read as well."""
        return tuple(
            Part(footer.num_rows, digest_of(file.size_bytes, *words, *self._how.words(), content=ends(file)))
            for file, footer in zip(self._files, self._footers, strict=True)
        )

    def _add(self, file: DataFile) -> None:
        """Read the footer of a file, and list its row groups."""
        try:
            footer = self._arrow.parquet.read_metadata(self._for_arrow(file))
            schema = footer.schema.to_arrow_schema()
        except (OSError, self._arrow.ArrowException) as error:
            raise self._damaged(file, error) from error
        file.check_decoded()  # pyarrow opened it by its path
        if self._footers:
            first = self._footers[0].schema.to_arrow_schema()
            if not schema.equals(first, check_metadata=False):
                raise InputError(
                    f"{file.shown} has the columns {_shown(schema)} and {self._files[0].shown} has {_shown(first)}; "
                    f"one folder holds files of one kind"
                )
        if len(set(schema.names)) < len(schema.names):
            raise InputError(f"{file.shown} has two columns of one name ({_shown(schema)}); rename one")
        before, row = self.samples, 0
        for index in range(footer.num_row_groups):
            rows = footer.row_group(index).num_rows
            self._groups.append(_RowGroup(len(self._footers), index, row, before + row, rows))
            row += rows
        self._footers.append(footer)

    def _decoded(self, place: int, columns: Sequence[str]) -> Mapping[str, Tensor]:
        """Return the columns of a group as tensors, from the cache or the file."""
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

    def _decode(self, group: _RowGroup, columns: Sequence[str]) -> dict[str, Tensor]:
        file = self._files[group.file]
        file.check()
        try:
            with self._arrow.parquet.ParquetFile(
                self._for_arrow(file), metadata=self._footers[group.file], page_checksum_verification=True
            ) as opened:
                # one thread: the cores compute, and a thread of ours reads ahead of them
                table = opened.read_row_group(group.index, columns=list(columns), use_threads=False)
        except (OSError, self._arrow.ArrowException) as error:
            file.check()
            raise self._damaged(file, f"row group {group.index}: {error}") from error
        file.check_decoded()  # pyarrow opened it by its path
        tensors = {}
        for name in columns:
            place = Place(file.shown, name, group.first_row)
            tensors[name] = column_tensor(table.column(name), place, self._how)
            if len(tensors[name]) != group.rows:
                raise self._damaged(file, f"column {printable(name)!r} has {len(tensors[name])} rows of {group.rows}")
        return tensors

    def _for_arrow(self, file: DataFile) -> Any:
        """Return the path or file object that pyarrow reads a file from."""
        return file.for_arrow()

    def _damaged(self, file: DataFile, error: object) -> InputError:
        return InputError(
            f"{file.shown} is no Parquet file, or a damaged one ({file.size_bytes:,} bytes): "
            f"{one_line(str(error))[:200]}; write or copy it again"
        )


def _shown(schema: Any) -> str:
    return ", ".join(f"{printable(field.name)} ({printable(str(field.type))})" for field in schema)
