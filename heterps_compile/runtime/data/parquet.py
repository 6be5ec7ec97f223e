"""Parquet files as a source: one file, or a folder of them in the order of their names.

The footers say how many rows every row group has, so a range of samples is a few row groups (``row_groups.py``), and of
these only the columns asked for.

Pages that were written with checksums are checked by them as they are read.

Numbers, booleans and text, which is hashed to ids, make a column [n]; lists of a fixed length make [n, length], lists
of lists one more dimension.

Left out: times, decimals (no tensor holds them), partitioned folders (``year=2026/...``).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from torch import Tensor

from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, printable
from heterps_compile.packages import need

from .arrow import AS_THEY_ARE, Conversion, Place, column_tensor, element_type, is_text
from .data_file import DataFile, ends
from .find_files import find_files
from .identity import Part, digest_of
from .row_groups import CACHE_BYTES, RowGroup, RowGroups
from .sample_source import check_range


class ParquetSource:
    """Samples in Parquet files.

    Attributes:
        of_model: Rows of the model's tables that columns of text are hashed into, by name, where nobody said any.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        how: Conversion = AS_THEY_ARE,
        tables: Mapping[str, int] = MappingProxyType({}),
        cache_bytes: int = CACHE_BYTES,
        files: Sequence[DataFile] = (),
    ) -> None:
        """Read the footers.

        Args:
            path: A file, or a folder of ``*.parquet`` files.
            how: Values become numbers.
            tables: Rows of the table that a column is looked up in, by its name; for text of which ``how`` says none.
            cache_bytes: Decoded row groups that are kept.
            files: At the path, if they were found before.

        Raises:
            InputError: where a file is missing, damaged or empty, or files of one folder have different columns.
            MissingPackageError: where pyarrow is not installed.
        """
        need("reading Parquet files", "data")
        import pyarrow  # noqa: ICN001, PLC0415 - an extra
        import pyarrow.parquet  # noqa: PLC0415

        self._arrow: Any = pyarrow
        self._how = how
        self._files: list[DataFile] = []
        self._footers: list[Any] = []
        groups: list[RowGroup] = []
        self._columns: tuple[str, ...] = ()
        for file in files or find_files(os.fspath(path), ".parquet"):
            groups += self._add(file, sum(group.rows for group in groups))
        shown, schema = self._files[0].shown, self._footers[0].schema.to_arrow_schema()
        how.rows.check_columns(shown, self._columns)
        texts = [field.name for field in schema if is_text(element_type(field.type))]
        self._how = replace(how, rows=how.rows.with_tables(shown, texts, tables))
        self.of_model = self._how.rows.added_to(how.rows)
        self._rows = RowGroups(groups, self._files, self._decode, cache_bytes)
        if not self._rows.samples:
            raise InputError(f"{printable(os.fspath(path))!r} has no rows; expected samples")

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self._columns

    @property
    def samples(self) -> int:
        """Return the number of rows of all files."""
        return self._rows.samples

    @property
    def files(self) -> Sequence[DataFile]:
        """Return the files."""
        return self._files

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return a range of rows."""
        check_range(self, self._files[0].shown, first, count, columns)
        return self._rows.read(first, count, columns)

    def parts(self) -> tuple[Part, ...]:
        """Return the files."""
        rows = [footer.num_rows for footer in self._footers]
        digests = [digest_of(file.size_bytes, *self._how.words(), content=ends(file)) for file in self._files]
        return tuple(map(Part, rows, digests))

    def _add(self, file: DataFile, before: int) -> Iterator[RowGroup]:
        """Read the footer of a file; yield its row groups, the first of which begins with sample ``before``."""
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
        self._columns = tuple(schema.names)
        if len(set(self._columns)) < len(self._columns):
            raise InputError(f"{file.shown} has two columns of one name ({_shown(schema)}); rename one")
        rows = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
        for index, (start, count) in enumerate(zip(accumulate(rows, initial=0), rows, strict=False)):
            yield RowGroup(len(self._files), index, start, before + start, count)
        self._files.append(file)
        self._footers.append(footer)

    def _decode(self, group: RowGroup, columns: Sequence[str]) -> dict[str, Tensor]:
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
