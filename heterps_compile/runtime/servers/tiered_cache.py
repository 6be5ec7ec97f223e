"""Where the rows of a shard lie: all in memory, or the frequent ones in memory and the others in a file.

A row is its weights and its optimiser state. To work on rows is to ask for their *slots* in memory; the tiered kind
brings in from the file what is missing, and puts others out to make room. Which ones, a clock hand says: it sweeps over
the slots, looks at a window four times as large as what is needed, and puts out those of it with the fewest accesses::

    slots    a:9  b:1  c:4  d:0 | e:2 ...        two rows are wanted
             ^ hand
    after    a:9  X    c:4  Y   | e:2 ...        d and b went to the file, X and Y came
                                  ^ hand

All counts are halved after every four accesses a slot, so that what was frequent long ago is forgotten. On ids after
Zipf's law (s = 1.05, a fifth of a million rows hot) 32 % of the distinct rows of a batch are missing, where 25 % would
be if the most frequent rows were known beforehand; halving what the hand passes over instead, as a second-chance clock
does, 36 %.

Only rows that were changed are written back. What is in a row does not depend on where it lies.

Left out: what is done to rows (``shard.py``).
"""

import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import RunError
from heterps_compile.units import format_bytes

from .spec import FLOAT_BYTES

_SLOW_ROW_S = 5e-6  # from memory a row takes 0.1 us, from the disk 9 us at the best
_ENOUGH_ROWS = 64  # to judge by
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_ROW_INDEX_BYTES = 4  # of every row: its slot
_SLOT_INDEX_BYTES = 4 + 1 + 1 + 1  # of every slot: its row, its count, whether it was changed, whether it is in use
_MOST_ACCESSES = 255
_WINDOW = 4
_ACCESSES_TO_AGE = 4  # of every slot
_LEAST_WINDOW = 1024


class Tier(Protocol):
    """Rows by their slots.

    Attributes:
        weights: [slots, width].
        state: [slots, states * width].
    """

    weights: Floats
    state: Floats

    @property
    def limit(self) -> int:
        """Return how many rows can be worked on at once."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Return what the tier holds in memory, its index included."""
        ...

    def slots(self, rows: Ints, *, changes: bool) -> Ints:
        """Return the slots of distinct rows; they hold until the next call.

        Args:
            rows: Of this shard, no more than ``limit``.
            changes: Whether the caller will write to the slots.
        """
        ...

    def flush(self, first: int, count: int) -> Floats:
        """Return rows as records [count, width * (1 + states)]."""
        ...

    def fill(self, first: int, records: Floats) -> None:
        """Put records where rows begin; before the first use of ``slots``."""
        ...


class MemoryTier:
    """Every row in memory: a row's slot is its number."""

    def __init__(self, rows: int, width: int, states: int) -> None:
        self.weights: Floats = np.zeros((rows, width), np.float32)
        self.state: Floats = np.zeros((rows, states * width), np.float32)

    @property
    def limit(self) -> int:
        """Return the number of rows."""
        return len(self.weights)

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of weights and state."""
        return self.weights.nbytes + self.state.nbytes

    def slots(self, rows: Ints, *, changes: bool) -> Ints:
        """Return the rows themselves."""
        return rows

    def flush(self, first: int, count: int) -> Floats:
        """Return rows as records."""
        return np.concatenate((self.weights[first : first + count], self.state[first : first + count]), axis=1)

    def fill(self, first: int, records: Floats) -> None:
        """Put records where rows begin."""
        width = self.weights.shape[1]
        self.weights[first : first + len(records)] = records[:, :width]
        self.state[first : first + len(records)] = records[:, width:]


class ColdFile:
    """Records of float32 numbers on disk, in a memory-mapped file without a name.

    The file is deleted as soon as it is open, so that nothing is left behind, however the server ends. Its whole size
    is reserved before the first row is written: a disk that is full is an error at the start, not a signal in the
    middle. The operating system keeps pages of it in memory as long as it has some to spare; that memory is its own to
    give and to take, and is not counted as the server's. ``np.memmap`` would do but for ``madvise``, which it hides.

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
        self._is_on_disk, self._slow_row_s = False, _SLOW_ROW_S
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
            self._is_on_disk = time.perf_counter() - began_s > self._slow_row_s * len(rows)


class TieredCache:
    """Frequent rows in memory, the others in a file."""

    def __init__(self, rows: int, width: int, states: int, hot: int, cold: ColdFile) -> None:
        self._cold = cold
        self.weights: Floats = np.zeros((hot, width), np.float32)
        self.state: Floats = np.zeros((hot, states * width), np.float32)
        self._slot_of = np.full(rows, -1, np.int32)
        self._row_of = np.zeros(hot, np.int32)
        self._count = np.zeros(hot, np.uint8)
        self._is_changed = np.zeros(hot, np.bool_)
        self._is_held = np.zeros(hot, np.bool_)
        self._used = self._hand = self._accesses = 0
        self.reads = self.writes = 0

    @property
    def limit(self) -> int:
        """Return the number of slots."""
        return len(self.weights)

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of rows and index; the file is not among them."""
        index = (self._slot_of, self._row_of, self._count, self._is_changed, self._is_held)
        return self.weights.nbytes + self.state.nbytes + sum(array.nbytes for array in index)

    def slots(self, rows: Ints, *, changes: bool) -> Ints:
        """Return the slots of distinct rows, the missing ones brought in."""
        slots = self._slot_of[rows].astype(np.int64)
        is_missing = slots < 0
        missing = rows[is_missing]
        if len(missing):
            here = slots[~is_missing]
            self._is_held[here] = True
            slots[is_missing] = self._bring_in(missing)
            self._is_held[here] = False
        if changes:  # a push follows a pull, which was counted
            self._is_changed[slots] = True
        else:
            self._access(slots)
        return slots

    def flush(self, first: int, count: int) -> Floats:
        """Return rows as records; those in memory count, not what the file has of them."""
        records = self._cold.records[first : first + count].copy()
        slots = self._slot_of[first : first + count]
        is_hot = slots >= 0
        records[is_hot] = self._records(slots[is_hot])
        return records

    def fill(self, first: int, records: Floats) -> None:
        """Put records where rows begin, all in the file."""
        self._cold.records[first : first + len(records)] = records

    def _access(self, slots: Ints) -> None:
        counts = self._count[slots]
        self._count[slots] = counts + (counts < _MOST_ACCESSES)
        self._accesses += len(slots)
        if self._accesses > _ACCESSES_TO_AGE * self.limit:
            self._count >>= 1
            self._accesses = 0

    def _bring_in(self, rows: Ints) -> Ints:
        fresh = np.arange(self._used, min(self._used + len(rows), self.limit), dtype=np.int64)
        self._used += len(fresh)
        self._is_held[fresh] = True
        slots = fresh
        if len(fresh) < len(rows):
            slots = np.concatenate((fresh, self._put_out(len(rows) - len(fresh))))
        self._is_held[fresh] = False
        records = self._cold.read(rows)
        width = self.weights.shape[1]
        self.weights[slots] = records[:, :width]
        self.state[slots] = records[:, width:]
        self._slot_of[rows] = slots
        self._row_of[slots] = rows
        self._count[slots] = 0
        self._is_changed[slots] = False
        self.reads += len(rows)
        return slots

    def _put_out(self, count: int) -> Ints:
        window = min(max(_WINDOW * count, _LEAST_WINDOW), self.limit)
        while True:
            seen = (self._hand + np.arange(window, dtype=np.int64)) % self.limit
            candidates = seen[~self._is_held[seen]]
            if len(candidates) >= count:
                break
            window = min(2 * window, self.limit)  # as far as the whole circle, in which count slots are free to go
        least = np.argpartition(self._count[candidates], count - 1)[:count]
        chosen = candidates[least]
        self._hand = int(seen[-1] + 1) % self.limit
        changed = np.sort(chosen[self._is_changed[chosen]])
        rows = self._row_of[changed]
        order = np.argsort(rows)  # neighbours in the file are written together
        self._cold.write(rows[order], self._records(changed[order]))
        self._slot_of[self._row_of[chosen]] = -1
        self.writes += len(changed)
        return chosen

    def _records(self, slots: NDArray[np.integer[Any]]) -> Floats:
        return np.concatenate((take_rows(self.weights, slots), take_rows(self.state, slots)), axis=1)


def take_rows(array: Floats, rows: NDArray[np.integer[Any]], out: Floats | None = None) -> Floats:
    """Copy rows; numpy is a third faster so than by an index, because it need not check them again."""
    return np.take(array, rows, axis=0, out=out, mode="clip")


def hot_rows(rows: int, width: int, states: int, memory_bytes: int, table: str) -> int:
    """Return how many rows can be hot in that much memory, the index counted.

    Raises:
        RunError: where not one can.
    """
    if rows > np.iinfo(np.int32).max:
        raise RunError(
            f"table {table} has {rows:,} rows on a server, of which at most 2^31 can be told apart; add servers"
        )
    index_bytes = rows * _ROW_INDEX_BYTES
    slot_bytes = width * (1 + states) * FLOAT_BYTES + _SLOT_INDEX_BYTES
    hot = (memory_bytes - index_bytes) // slot_bytes
    if hot < 1:
        raise RunError(
            f"table {table} has {rows:,} rows on a server, whose index alone takes {format_bytes(index_bytes)} of the "
            f"{format_bytes(memory_bytes)} that the table may use; give the servers more memory, or use more servers"
        )
    return hot
