"""The cold tier: records of rows in a memory-mapped file without a name.

The file is deleted as soon as it is open, so that nothing is left behind, however the server ends. Its whole size is
reserved before the first row is written: a disk that is full is an error at the start, not a signal in the middle.

The operating system keeps pages of the file in memory as long as it has some to spare; that memory is its own to give
and to take, and is not counted as the server's.

Left out: which rows are cold (``tiers.py``).
"""

import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import RunError
from heterps_compile.units import format_bytes

from .spec import FLOAT_BYTES

_SLOW_ROW_S = 5e-6  # from memory a row takes 0.1 us, from the disk 9 us at the best
_ENOUGH_ROWS = 64  # to judge by


class ColdFile:
    """Records of float32 numbers on disk.

    Attributes:
        records: [rows, numbers], the file itself; for neighbours. Scattered rows are read and written by the methods.
    """

    def __init__(self, directory: Path, rows: int, numbers: int, table: str) -> None:
        """Make the file.

        Args:
            directory: Where; it must exist.
            rows: How many records.
            numbers: In each.
            table: Whose rows they are, for messages.

        Raises:
            RunError: where the folder is missing, full or not to be written to.
        """
        size_bytes = rows * numbers * FLOAT_BYTES
        try:
            with tempfile.TemporaryFile(dir=directory, prefix="heterps-cold-") as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
                self._map = mmap.mmap(file.fileno(), size_bytes)
        except OSError as error:
            free = f"; {format_bytes(shutil.disk_usage(directory).free)} are free" if directory.is_dir() else ""
            raise RunError(
                f"the cold rows of table {table} need {format_bytes(size_bytes)} in {os.fspath(directory)!r}: "
                f"{error.strerror or error}{free}; name another folder, or give the servers more memory"
            ) from error
        self._map.madvise(mmap.MADV_RANDOM)  # rows are read singly: reading ahead would fetch what nobody asked for
        self._record_bytes = numbers * FLOAT_BYTES
        self._is_on_disk = False
        self.records: NDArray[np.float32] = np.frombuffer(self._map, np.float32).reshape(rows, numbers)

    def read(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Copy the records of rows, in the order given."""
        with self._fetched(rows):
            return np.take(self.records, rows, axis=0, mode="clip")

    def write(self, rows: NDArray[np.integer[Any]], records: NDArray[np.float32]) -> None:
        """Put records in place of those of rows."""
        with self._fetched(rows):  # a page that is written in part has to be read
            self.records[rows] = records

    @contextmanager
    def _fetched(self, rows: NDArray[np.integer[Any]]) -> Iterator[None]:
        """Have the operating system read all the pages of rows at once, where it seems not to have them in memory.

        Touching one after the other reads one after the other: 6,000 rows took 430 to 930 ms from the disk so, and 50
        to 80 ms when they were asked for beforehand. But asking costs 0.4 us a page even where it is in memory, four
        times what copying a row costs. So the time that rows take decides whether the next ones are asked for.
        """
        began_s = time.perf_counter()
        if self._is_on_disk:
            start = rows.astype(np.int64) * self._record_bytes
            ends = np.concatenate((start, start + self._record_bytes - 1))
            for page in np.unique(ends // mmap.PAGESIZE).tolist():
                at = page * mmap.PAGESIZE
                self._map.madvise(mmap.MADV_WILLNEED, at, min(mmap.PAGESIZE, len(self._map) - at))
        yield
        if len(rows) >= _ENOUGH_ROWS:
            self._is_on_disk = time.perf_counter() - began_s > _SLOW_ROW_S * len(rows)
