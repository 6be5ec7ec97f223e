"""What ranks without a launcher report of their steps, carried to rank 0 through the run's store.

::

    rank 2                                         rank 0
    own folder/rank-0002.jsonl  -> chunk 0, 1, ..  -> its folder/rank-0002.jsonl -> live view, log, trace, summary

So rank 0 follows the same files wherever ranks are. Not covered: what is in them (``telemetry/``).
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.runtime.telemetry.rank_recorder import FILE_NAME

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_EVERY_S = 0.5
_LAST_S = 5.0  # ranks end the last step at much the same time


class TelemetrySender:
    """Sends the lines of one rank as it writes them, from a thread of its own."""

    def __init__(
        self,
        store: "Store",
        folder: Path,
        rank: int,
        *,
        chunk_bytes: int = 2**20,
    ) -> None:
        """Begin; the file need not be there yet.

        Args:
            store: A connection that nobody else uses: the rank may wait in its own for long.
            folder: That the rank writes to.
            rank: Its number.
            chunk_bytes: Of the file that travel at once, at most.
        """
        self._chunk_bytes = chunk_bytes
        self._store = store
        self._file = folder / FILE_NAME.format(rank=rank)
        self._rank = rank
        self._chunks = self._sent_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send what is left and say that it was the last."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(RuntimeError):  # the store is gone, which the watcher tells
            while not self._over.wait(_EVERY_S):
                self._send()
            self._send()
            self._store.set(_end_key(self._rank), "1")

    def _send(self) -> None:
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._sent_bytes)
            while chunk := file.read(self._chunk_bytes):
                self._store.set(_chunk_key(self._rank, self._chunks), chunk.decode("ascii"))
                self._chunks += 1
                self._sent_bytes += len(chunk)


class TelemetryCollector:
    """Puts what other ranks send into files of rank 0."""

    def __init__(self, store: "Store", folder: Path, ranks: Sequence[int]) -> None:
        """Set up.

        Args:
            store: A connection that nobody else uses.
            folder: Where the files of all ranks are followed.
            ranks: Those that send.
        """
        self._store = store
        self._files = {rank: folder / FILE_NAME.format(rank=rank) for rank in ranks}
        self._taken = dict.fromkeys(ranks, 0)

    def collect(self) -> None:
        """Take in what is there."""
        with suppress(RuntimeError):  # as above
            for rank, file in self._files.items():
                while self._store.check([key := _chunk_key(rank, self._taken[rank])]):
                    with file.open("ab") as opened:
                        opened.write(self._store.get(key))
                    self._store.delete_key(key)
                    self._taken[rank] += 1

    def wait_for_last(self) -> None:
        """Wait a moment until all ranks have sent their last line."""
        with suppress(RuntimeError):  # one is late: what it tells of the last steps is not shown
            self._store.wait([_end_key(rank) for rank in self._files], timedelta(seconds=_LAST_S))


def _chunk_key(rank: int, number: int) -> str:
    return f"told/{rank}/{number}"


def _end_key(rank: int) -> str:
    return f"told/{rank}/end"
