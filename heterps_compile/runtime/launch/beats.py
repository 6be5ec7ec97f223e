"""Heartbeats: that a rank lives, and what it does.

Ranks of one machine with a launcher write to a page that all of them map, others to the store of the run::

    page     rank 0 | rank 1 | ...    a slot is: count, sequence, step, stage, micro-batch, since when, activity
    store    beat/RANK                count and progress as JSON; the next one replaces it

The watcher of a rank writes the count. Its main thread writes the rest of the slot as soon as it changes, so that the
page shows the last micro-batch of a process that was killed. It adds 1 to the sequence before and after: a slot with an
odd sequence is being written, and is read again.

Left out: what follows from a heartbeat that does not come (``heartbeats.py``).
"""

import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from heterps_compile.strict_json import received

from .faults import Progress
from .store_values import to_send

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_PROGRESS = struct.Struct("=qqqq32s")  # step, stage, micro-batch, monotonic microseconds, activity
_WORD_BYTES = 8
_COUNT, _SEQUENCE, _FIRST = 0, 1, 2  # words of a slot
_SLOT_BYTES = _FIRST * _WORD_BYTES + _PROGRESS.size
_NONE = -1
_READS, _REST_S = 100, 0.001  # of a slot that is being written; its process may have been killed


@dataclass(frozen=True, slots=True)
class Beat:
    """The last heartbeat of a rank.

    Attributes:
        count: Heartbeats so far.
        progress: What the rank does.
    """

    count: int
    progress: Progress


class Beats(Protocol):
    """The heartbeats of all ranks."""

    def beat(self, rank: int, progress: Progress) -> None:
        """Report that a rank lives."""

    def last(self, rank: int) -> Beat | None:
        """Return the last heartbeat of a rank; None before the first."""


class StoreBeats:
    """Heartbeats in the store of a run; a connection that no other thread uses."""

    def __init__(self, store: "Store") -> None:
        self._store, self._count = store, 0

    def beat(self, rank: int, progress: Progress) -> None:
        """Report that a rank lives."""
        self._count += 1
        self._store.set(_key(rank), to_send(Beat(self._count, progress)))

    def last(self, rank: int) -> Beat | None:
        """Return the last heartbeat of a rank; None before the first.

        Raises:
            RunError: if the value is no heartbeat.
        """
        key = _key(rank)
        return received(Beat, self._store.get(key), "a heartbeat") if self._store.check([key]) else None


class BeatPage:
    """Heartbeats in a file that the ranks of a machine and their launcher map."""

    def __init__(self, file: Path, ranks: int | None = None) -> None:
        """Map the page.

        Args:
            file: Of the page.
            ranks: If the page is to be made, their number.
        """
        if ranks is not None:
            file.write_bytes(bytes(ranks * _SLOT_BYTES))
        with file.open("r+b") as opened:
            self._bytes = mmap.mmap(opened.fileno(), 0)
        self._words = memoryview(self._bytes).cast("q")

    def write(self, rank: int, progress: Progress, since_s: float) -> None:
        """Write what a rank does.

        Args:
            rank: Its number.
            progress: What it does.
            since_s: When it began, on the monotonic clock.
        """
        numbers = (_NONE if n is None else n for n in (progress.step, progress.stage, progress.micro_batch))
        slot = rank * _SLOT_BYTES // _WORD_BYTES
        since_us, doing = int(since_s * 1e6), progress.doing.encode("ascii")
        self._words[slot + _SEQUENCE] += 1
        _PROGRESS.pack_into(self._bytes, (slot + _FIRST) * _WORD_BYTES, *numbers, since_us, doing)
        self._words[slot + _SEQUENCE] += 1

    def beat(self, rank: int, progress: Progress) -> None:
        """Report that a rank lives; its progress is on the page already."""
        del progress
        self._words[rank * _SLOT_BYTES // _WORD_BYTES + _COUNT] += 1

    def last(self, rank: int) -> Beat | None:
        """Return the last heartbeat of a rank; None before the first."""
        slot = rank * _SLOT_BYTES // _WORD_BYTES
        count = self._words[slot + _COUNT]
        if not count:
            return None
        reads = 0
        while True:
            sequence = self._words[slot + _SEQUENCE]
            *numbers, since_us, doing = _PROGRESS.unpack_from(self._bytes, (slot + _FIRST) * _WORD_BYTES)
            reads += 1
            if (sequence % 2 == 0 and sequence == self._words[slot + _SEQUENCE]) or reads == _READS:
                break
            time.sleep(_REST_S)
        if not since_us:
            return Beat(count, Progress())
        step, stage, micro_batch = (None if n == _NONE else n for n in numbers)
        for_s = max(0.0, time.monotonic() - since_us / 1e6)
        return Beat(count, Progress(doing.rstrip(b"\0").decode("ascii"), step, stage, micro_batch, for_s))


def _key(rank: int) -> str:
    return f"beat/{rank}"
