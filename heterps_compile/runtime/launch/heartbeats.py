"""Who has gone silent: ranks that no longer beat, a run in which everybody waits, a store that gives no answer.

The watcher of a rank asks the run's store, which lies on the first host. Where the network to it breaks, the answer
never comes, and no time limit of the store's client ends the wait: a :class:`WatchdogTimer` does.

Left out: the heartbeat itself (``beats.py``), and what is done about a fault (``watch.py``, ``local_machine.py``).
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .beats import Beat, Beats
from .faults import WAITING, Fault, Place, Progress

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store


OVERSLEPT_S = 2.0
"""A watcher that slept longer was stopped with its machine: the time does not count."""

_SILENT_SHARE = 0.75  # of hang_after: without a heartbeat a rank counts as gone
_DEADLOCK_TIMES = 30.0  # hang_after: how long all ranks may wait for one another


def done_key(rank: int) -> str:
    """Return where a rank says that its run is over."""
    return f"done/{rank}"


def left_key(rank: int) -> str:
    """Return where a rank says that it no longer needs the store."""
    return f"left/{rank}"


def heard_key(rank: int) -> str:
    """Return where a rank says that it has told a fault."""
    return f"heard/{rank}"


class Monitor:
    """Finds ranks that no longer beat, and a run in which everybody waits."""

    def __init__(
        self,
        store: "Store",
        beats: Beats,
        places: Sequence[Place],
        hang_after_s: float,
    ) -> None:
        """Watch over some ranks; those that have not begun to beat are not judged."""
        self._store = store
        self._beats = beats
        self._places = {place.rank: place for place in places}  # those to watch
        self._hang_after_s = hang_after_s
        self._seen: dict[int, tuple[Beat, float]] = {}
        self._looked_s = math.inf
        self._counts_from_s = -math.inf

    def know(self, places: Sequence[Place]) -> None:
        """Learn what the ranks are."""
        self._places = {place.rank: place for place in places if place.rank in self._places}

    def last_progress(self, rank: int) -> Progress:
        """Return what a rank last said it did."""
        return self._seen[rank][0].progress if rank in self._seen else Progress()

    def find_fault(self, now: float) -> Fault | None:
        """Look at every heartbeat once.

        Args:
            now: On the monotonic clock.
        """
        if now - self._looked_s > OVERSLEPT_S:
            self._counts_from_s = now
            self._seen = {rank: (beat, now) for rank, (beat, _) in self._seen.items()}
        self._looked_s = now
        progress: dict[int, Progress] = {}
        for rank, place in self._places.items():
            beat = self._beats.last(rank)
            if beat is None or self._store.check([done_key(rank)]):
                continue
            before, since_s = self._seen.get(rank, (None, now))
            if before is None or before.count != beat.count:
                since_s = now
            for_s = min(beat.progress.for_s, now - self._counts_from_s)
            progress[rank] = replace(beat.progress, for_s=for_s)
            self._seen[rank] = beat, since_s
            silent_s = now - since_s
            if silent_s > _SILENT_SHARE * self._hang_after_s:
                cause = (
                    f"gave no sign of life for {silent_s:.0f} s: its process is dead or stopped, or its machine is gone"
                )
                return Fault(place, progress[rank], cause)
        waits = [p.for_s for rank, p in progress.items() if p.doing == WAITING and self._places[rank].stages]
        computing = sum(1 for place in self._places.values() if place.stages)
        if computing and len(waits) == computing and min(waits) > _DEADLOCK_TIMES * self._hang_after_s:
            rank = min(rank for rank in progress if self._places[rank].stages)
            cause = f"has waited for {min(waits):.0f} s, and so have all others: a message got lost"
            return Fault(self._places[rank], progress[rank], cause)
        return None


class WatchdogTimer:
    """Calls somebody, from a thread of its own, where it has not been told for a while that all is well."""

    def __init__(self, after_s: float, on_silence: Callable[[], object], *, count_every_s: float = 0.25) -> None:
        """Set up; :meth:`start` begins.

        Args:
            after_s: Seconds of silence; those in which this process itself was stopped do not count.
            on_silence: Called once.
            count_every_s: Seconds between two counts.
        """
        self._count_every_s = count_every_s
        self._counts = max(1, round(after_s / count_every_s))
        self._on_silence = on_silence
        self._left = self._counts
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="silence", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def restart(self) -> None:
        """Begin to count anew."""
        self._left = self._counts

    def stop(self) -> None:
        """Listen no longer."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._count_every_s):
            self._left -= 1
            if self._left < 0:
                self._on_silence()
                return
