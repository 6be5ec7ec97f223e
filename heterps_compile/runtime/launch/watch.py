"""Watching over the ranks of a run: a heartbeat from each, and an end for all when one is at fault.

Every rank has a watcher, a thread with a connection to the store of its own. Four times a second it::

    beat       says that it lives, and what its rank does
    look       whether somebody has found a fault: prints it and ends the process
    judge      whether its own rank hangs
    monitor    whether the ranks it is to watch still beat

Whoever finds a fault writes it into the store; the first one stays. The launcher watches too: it sees how processes
end. Under torchrun nobody does, so that rank 0 monitors all ranks, and all ranks monitor rank 0.

A stop that somebody asks for (Ctrl-C) must come after the same step on every rank, while ranks may be steps apart.
So every watcher answers with the step its rank is in and holds the rank back from the next; the latest of these steps
is the last one. It costs nothing where nobody asks::

    rank 0    | step 7   | 8 held back .......| 8 |  stops
    rank 1    | step 7 | step 8                |  stops
    answers          7         8  -> the last step is 8

Left out: what is printed besides, exit codes (``worker.py``, ``local.py``).
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.escape import one_line

from .faults import (
    WAITING,
    Fault,
    Place,
    Progress,
    exception_cause,
    fault_from_json,
    innermost,
    is_from_a_peer,
    is_out_of_memory,
    progress_from_json,
    progress_to_json,
)
from .progress import ProgressRecorder

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

FAULT_KEY = "fault"
STOP_KEY = "stop"

BEAT_S = 0.25
_OVERSLEPT_S = 2.0  # a watcher that slept longer was stopped with its machine: the time does not count
_SILENT_SHARE = 0.75  # of hang_after: without a heartbeat a rank counts as gone
_DEADLOCK_TIMES = 30.0  # hang_after: how long all ranks may wait for one another
_EXIT_FAULT = 1
_SIGNALLED = 128  # shells' exit code of what a signal ended
_STOPPING = (signal.SIGINT, signal.SIGTERM)
_SIGNALS_READ = 64


def beat_key(rank: int) -> str:
    """Give where a rank's heartbeat stands in the store."""
    return f"beat/{rank}"


def done_key(rank: int) -> str:
    """Give where a rank says that its run is over."""
    return f"done/{rank}"


def post_fault(store: "Store", fault: Fault) -> Fault:
    """Write a fault into the store, unless there is one; give the one that stands there."""
    return fault_from_json(store.compare_set(FAULT_KEY, "", fault.to_json()))


class Monitor:
    """Finds ranks that no longer beat, and a run in which everybody waits."""

    def __init__(
        self,
        store: "Store",
        places: Sequence[Place],
        hang_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch over some ranks; those that have not begun to beat are not judged."""
        self._clock = clock
        self._store = store
        self._places = {place.rank: place for place in places}  # those to watch
        self._hang_after_s = hang_after_s
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._looked_s = clock()

    def know(self, places: Sequence[Place]) -> None:
        """Learn what the ranks are."""
        self._places = {place.rank: place for place in places if place.rank in self._places}

    def last_progress(self, rank: int) -> Progress:
        """Give what a rank last said it did."""
        text, _ = self._seen.get(rank, (b"", 0.0))
        return progress_from_json(text.partition(b" ")[2]) if text else Progress()

    def find_fault(self) -> Fault | None:
        """Look at every heartbeat once."""
        now = self._clock()
        if now - self._looked_s > _OVERSLEPT_S:
            self._seen = {rank: (text, now) for rank, (text, _) in self._seen.items()}
        self._looked_s = now
        progress: dict[int, Progress] = {}
        for rank, place in self._places.items():
            if not self._store.check([beat_key(rank)]) or self._store.check([done_key(rank)]):
                continue
            text = self._store.get(beat_key(rank))
            if rank not in self._seen or self._seen[rank][0] != text:
                self._seen[rank] = text, now
            progress[rank] = self.last_progress(rank)
            silent_s = now - self._seen[rank][1]
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


class Watch:
    """The watcher of one rank.

    Attributes:
        stopped_by: The signal that somebody asked to stop with, once known.
    """

    def __init__(
        self,
        store: "Store",
        places: Sequence[Place],
        rank: int,
        progress: ProgressRecorder,
        *,
        hang_after_s: float,
        monitored: Sequence[int] = (),
        parent: int | None = None,
    ) -> None:
        """Set up; :meth:`start` begins.

        Args:
            store: A connection that nobody else uses: a thread that waits in it would hold up the heartbeat.
            places: Of all ranks.
            rank: This one.
            progress: What it does.
            hang_after_s: Seconds without progress that count as a hang.
            monitored: Ranks whose heartbeat this watcher looks at.
            parent: The launcher's process; None where it is not ours to follow.
        """
        self.stopped_by: int | None = None
        self._store = store
        self._places = {place.rank: place for place in places}
        self._rank = rank
        self._progress = progress
        self._hang_after_s = hang_after_s
        self._monitor = Monitor(store, [self._places[other] for other in monitored], hang_after_s)
        self._parent = parent
        self._signals: int | None = None
        self._listening = threading.Lock()
        self._asked_s: float | None = None
        self._counts_from_s = time.monotonic()
        self._beats = 0
        self._gate = threading.Condition()
        self._step = -1
        self._held = False
        self._last_step: int | None = None
        self._is_done = False
        self._tidies: list[Callable[[], object]] = []
        self._over = threading.Event()
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def know(self, places: Sequence[Place]) -> None:
        """Learn what the ranks are, once the plan has been read."""
        self._monitor.know(places)
        self._places = {place.rank: place for place in places}

    def before_end(self, tidy: Callable[[], object]) -> None:
        """Have something tidied away should the run end by a fault."""
        self._tidies.append(tidy)

    def listen(self, signals: int | None) -> None:
        """Take signals from this pipe from now on; None for no longer."""
        with self._listening:
            self._signals = signals

    def ask_to_stop(self, number: int) -> None:
        """Ask all ranks to stop after the step they are in; ends this process where they were asked before."""
        if self._asked_s is not None:
            os._exit(_SIGNALLED + number)
        self._asked_s = time.monotonic()
        self._store.compare_set(STOP_KEY, "", str(number))

    def may_begin(self, step: int) -> bool:
        """Wait where ranks agree on the last step; tell whether this one still belongs to the run."""
        with self._gate:
            while self._held and self._last_step is None and step > self._step:
                self._gate.wait()
            if self._last_step is not None and step > self._last_step:
                return False
            self._step = max(self._step, step)
            return True

    def finish(self) -> None:
        """Say that this rank's run is over, and wait until all are; nobody leaves while others still read from it."""
        self._is_done = True
        self._store.set(done_key(self._rank), "1")
        while not self._over.wait(BEAT_S):
            pass
        self._thread.join()
        with suppress(RuntimeError):  # where it is, the rank that hosts the store has not waited for it
            self._store.set(_left_key(self._rank), "1")

    def outstay(self, patience_s: float) -> None:
        """Wait until the others have left; for the rank that hosts the store."""
        deadline_s = time.monotonic() + patience_s
        keys = [_left_key(rank) for rank in self._places]
        while not self._store.check(keys) and time.monotonic() < deadline_s:
            time.sleep(BEAT_S)

    def fail(self, error: BaseException) -> None:
        """End the run for what this rank's work raised; does not return.

        Where it only saw the end of somebody else, it leaves that to whoever finds the guilty one.
        """
        if is_from_a_peer(error):
            deadline_s = time.monotonic() + self._hang_after_s + 2
            while time.monotonic() < deadline_s:
                time.sleep(BEAT_S)  # the watcher ends this process when the fault is known
        cause = exception_cause(error)
        fault = self._post(cause)
        error = innermost(error)
        is_bug = not isinstance(error, HeterpsError) and not is_out_of_memory(error)
        if is_bug and (fault.place.rank, fault.cause) == (self._rank, cause):
            traceback.print_exception(error)  # of the training file or of ours; once is enough
        self._end(fault)

    def _post(self, cause: str) -> Fault:
        fault = Fault(self._places[self._rank], self._progress.now(not_before_s=self._counts_from_s), cause)
        try:
            return post_fault(self._store, fault)
        except (RuntimeError, RunError):  # the store is gone: the fault is still ours
            return fault

    def _end(self, fault: Fault) -> None:
        with self._ending:
            sys.stdout.flush()
            print(f"Error: {one_line(str(fault))}", file=sys.stderr, flush=True)
            for tidy in self._tidies:
                tidy()
            os._exit(_EXIT_FAULT)

    def _run(self) -> None:
        try:
            woke_s = time.monotonic()
            while not self._over.is_set():
                self.look(woke_s)
                woke_s = time.monotonic()
                time.sleep(BEAT_S)
        except Exception as error:  # noqa: BLE001 - a thread that ended in silence would leave its rank unwatched
            if self._is_done:  # the rank that hosted the store has left, since all are done
                self._over.set()
                return
            cause = exception_cause(error)
            if isinstance(error, RuntimeError):  # what torch raises where a connection breaks
                cause = f"lost the store of the run: its launcher or host is gone ({type(error).__name__})"
            self._end(Fault(self._places[self._rank], self._progress.now(), cause))

    def look(self, woke_s: float) -> None:
        """Beat, look, judge and monitor once, as the thread does again and again.

        Args:
            woke_s: When it last did, on the monotonic clock.
        """
        now = time.monotonic()
        if now - woke_s > _OVERSLEPT_S:
            self._counts_from_s = now
        if self._parent is not None and os.getppid() != self._parent:
            self._end(self._post("lost its launcher, which is gone"))
        progress = self._progress.now(not_before_s=self._counts_from_s)
        self._beats += 1
        self._store.set(beat_key(self._rank), f"{self._beats} {progress_to_json(progress)}")
        if self._store.check([FAULT_KEY]):
            self._end(fault_from_json(self._store.get(FAULT_KEY)))
        limit_s = self._progress.limit_s(progress.doing, self._hang_after_s)
        if limit_s is not None and progress.for_s > limit_s:
            self._end(self._post(f"hangs: no progress for {progress.for_s:.0f} s"))
        fault = self._monitor.find_fault()
        if fault is not None:
            self._end(post_fault(self._store, fault))
        self._read_signals()
        self._answer_stop()
        if self._store.check([done_key(rank) for rank in self._places]):
            self._over.set()

    def _read_signals(self) -> None:
        with self._listening, suppress(BlockingIOError):
            for number in os.read(self._signals, _SIGNALS_READ) if self._signals is not None else b"":
                if number in _STOPPING:
                    self.ask_to_stop(number)

    def _answer_stop(self) -> None:
        if self._asked_s is not None and self._last_step is None:
            asked_s = time.monotonic() - self._asked_s
            if asked_s > self._hang_after_s:  # a rank that never began gives no answer
                self._end(
                    self._post(f"was asked to stop, and not all ranks agreed on the last step in {asked_s:.0f} s")
                )
        keys = [_stop_answer(rank) for rank, place in self._places.items() if place.stages]
        if self._last_step is not None or not keys or not self._store.check([STOP_KEY]):
            return  # before the plan has been read, nobody knows yet whose answers are needed
        with self._gate:
            if not self._held:
                self._held = True
                self.stopped_by = int(self._store.get(STOP_KEY))
                self._store.set(_stop_answer(self._rank), str(self._step))
        if self._store.check(keys):
            with self._gate:
                self._last_step = max(int(answer) for answer in self._store.multi_get(keys))
                self._gate.notify_all()


def _left_key(rank: int) -> str:
    return f"left/{rank}"


def _stop_answer(rank: int) -> str:
    return f"stop/{rank}"


@contextmanager
def stopping_on_signals(watch: Watch) -> Iterator[None]:
    """Have SIGINT and SIGTERM stop the run after the step; a second one ends the process at once.

    Python runs handlers in the main thread alone, which may wait in torch for long. So the numbers go through a pipe,
    which the system's own handler writes to at once, to the watcher.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python allows no handlers elsewhere: whoever has the main thread has the signals
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, lambda _number, _frame: None) for number in _STOPPING}
    before_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watch.listen(reader)
    try:
        yield
    finally:
        watch.listen(None)
        signal.set_wakeup_fd(before_fd)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
