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

Under torchrun the first process that leaves takes its machine's others with it, on the first machine the store too. So
a rank that has printed a fault stays until all others have, those too that are still on their way to the run.

Left out: what is printed besides, exit codes (``worker.py``, ``local_machine.py``).
"""

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.errors import SIGNALLED, HeterpsError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.runtime.checkpoint.folder import find_checkpoints

from .beats import Beats, StoreBeats
from .faults import (
    Fault,
    Place,
    exception_cause,
    fault_from_json,
    innermost,
    is_from_a_peer,
    is_of_data,
    is_out_of_memory,
)
from .heartbeats import OVERSLEPT_S, Monitor, WatchdogTimer, done_key, heard_key, left_key
from .progress import ProgressRecorder
from .stop_signals import RESIZED_BY, STOPPING
from .store_values import read_number
from .training_file import from_training_file

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

FAULT_KEY = "fault"
STOP_KEY = "stop"
FAULT_MARK = "\x1eheterps-fault "
"""Before a fault that a rank prints for its launcher, since it could not write it into the store."""

BEAT_S = 0.25
_LAST_BEAT_S = 0.01  # before the first look of a rank that is done for others that are; then twice as long each time
_EXIT_FAULT = 1
_SIGNALS_READ = 64


def post_fault(store: "Store", fault: Fault) -> Fault:
    """Write a fault into the store, unless there is one; give the one that stands there."""
    return fault_from_json(store.compare_set(FAULT_KEY, "", fault.to_json()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """Who watches over a rank beside itself, and how patient they are.

    Attributes:
        hang_after_s: Seconds without progress that count as a hang.
        beats: The heartbeats; None for those in the store.
        monitored: Ranks whose heartbeat this rank's watcher looks at.
        parent: The process whose end is this rank's too; None where it is not ours to follow.
        late_s: How long to stay, once a fault is known, for ranks that have not come yet; None leaves at once, since a
            launcher stays.
        host: The rank that hosts the store; None if a launcher or an agent does.
        hear_s: In which ranks that are there hear of a fault; they look four times a second.
        checkpoints: The folder that the run writes checkpoints into; None where it writes none.
    """

    hang_after_s: float
    beats: Beats | None = None
    monitored: Sequence[int] = ()
    parent: int | None = None
    late_s: float | None = None
    host: int | None = None
    hear_s: float = 2.0
    checkpoints: Path | None = None

    def resumes_at(self) -> str:
        """Say from which checkpoint the run goes on; nothing where it writes none."""
        if self.checkpoints is None:
            return ""
        try:
            found = find_checkpoints(self.checkpoints)
        except OSError as error:
            return f" (whether {printable(str(self.checkpoints))!r} has a checkpoint cannot be read: {error.strerror})"
        if not found:
            return f" ({printable(str(self.checkpoints))!r} has no checkpoint yet to go on from)"
        return f" (--resume goes on from {printable(str(found[-1]))!r})"


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
        supervision: Supervision,
    ) -> None:
        """Set up; :meth:`start` begins.

        Args:
            store: A connection that nobody else uses: a thread that waits in it would hold up the heartbeat.
            places: Of all ranks.
            rank: This one.
            progress: What it does.
            supervision: Who else watches, and how patient they are.
        """
        self.stopped_by: int | None = None
        self._store = store
        self._places = {place.rank: place for place in places}
        self._rank = rank
        self._progress = progress
        self._hang_after_s = supervision.hang_after_s
        monitored = [self._places[other] for other in supervision.monitored]
        self._beats = supervision.beats or StoreBeats(store)
        self._monitor = Monitor(store, self._beats, monitored, supervision.hang_after_s)
        self._parent = supervision.parent
        self._resumes_at = supervision.resumes_at
        self._late_s = supervision.late_s
        self._host = supervision.host
        self._hear_s = supervision.hear_s
        self._signals: int | None = None
        self._listening = threading.Lock()
        self._asked_s: float | None = None
        self._counts_from_s = time.monotonic()
        self._gate = threading.Condition()
        self._step = -1
        self._held = False
        self._last_step: int | None = None
        self._done = threading.Event()
        self._tidies: list[Callable[[], object]] = []
        self._over = threading.Event()
        self._ending = threading.Lock()
        self._tracing = threading.Lock()  # once its rank has posted a fault, the watcher waits until its trace is out
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._silence = WatchdogTimer(supervision.hang_after_s, self._end_alone)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()
        if self._late_s is not None:  # a launcher is of this machine, and may be stopped for a while
            self._silence.start()

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
            if number == signal.SIGHUP:  # a terminal that goes away may say so twice
                return
            os._exit(SIGNALLED + number)
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
        self._store.set(done_key(self._rank), "1")
        self._done.set()
        while not self._over.wait(BEAT_S):
            pass
        self._thread.join()
        self._silence.stop()
        with suppress(RuntimeError):  # where it is, the rank that hosts the store has not waited for it
            self._store.set(left_key(self._rank), "1")

    def outstay(self, patience_s: float) -> None:
        """Wait until the others have left; for the rank that hosts the store."""
        deadline_s = time.monotonic() + patience_s
        keys = [left_key(rank) for rank in self._places]
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
        error = innermost(error)
        is_told = isinstance(error, HeterpsError) or is_out_of_memory(error) or is_of_data(error)
        trace = "" if is_told else "".join(traceback.format_exception(from_training_file(error)))
        with self._tracing:
            fault = self._post(cause)
            if (fault.place.rank, fault.cause) == (self._rank, cause):  # or of ours; once is enough
                with suppress(OSError):  # nobody reads it any more
                    print(trace, end="", file=sys.stderr, flush=True)
        self._end(fault)

    def _fault(self, cause: str) -> Fault:
        """Return what this rank is at fault for."""
        return Fault(self._places[self._rank], self._progress.now(not_before_s=self._counts_from_s), cause)

    def _post(self, cause: str) -> Fault:
        fault = self._fault(cause)
        try:
            return post_fault(self._store, fault)
        except (RuntimeError, RunError):  # the store is gone: the fault is still ours
            return fault

    def _end(self, fault: Fault) -> None:
        with self._tracing, self._ending:
            try:
                self._tell(fault)
                if self._late_s is not None:
                    with suppress(RuntimeError):  # the store is gone, and with it those who could hear
                        self.stay_until_heard(self._late_s)
            finally:  # whoever read what this process prints may be gone
                self._tidy_and_exit()

    def _end_alone(self) -> None:
        """End this process where the store gives no answer, so that nobody can be told, or hear."""
        try:
            if self._ending.acquire(blocking=False):
                cause = (
                    f"had no answer from the store of the run for {self._hang_after_s:.0f} s: the first host, or the "
                    f"network to it, is gone"
                )
                self._tell(Fault(self._places[self._rank], self._progress.now(), cause), is_alone=True)
        finally:
            self._tidy_and_exit()

    def _tidy_and_exit(self) -> None:
        """Tidy away what those who came late had to find, and end this process whatever happens."""
        try:
            for tidy in self._tidies:
                tidy()
        finally:
            os._exit(_EXIT_FAULT)

    def _tell(self, fault: Fault, *, is_alone: bool = False) -> None:
        with suppress(OSError):  # nobody reads it any more
            sys.stdout.flush()
            if is_alone or self._is_to_tell():
                text = f"{FAULT_MARK}{fault.to_json()}" if self._late_s is None else f"Error: {one_line(str(fault))}"
                print(text, file=sys.stderr, flush=True)

    def _is_to_tell(self) -> bool:
        """Tell whether this rank is the one that prints a fault: one of a machine, none where a launcher does."""
        try:
            if not self._store.check([FAULT_KEY]):
                return True  # nobody else knows
            if self._late_s is None:
                return False
            starter = f"tells/{socket.gethostname()}/{_network()}/{os.getppid()}"
            return self._store.compare_set(starter, "", str(self._rank)) == str(self._rank).encode()
        except RuntimeError:  # the store is gone, and with it those who could tell
            return True

    def stay_until_heard(self, late_s: float) -> None:
        """Wait until every rank has told the fault: a moment for those that are there, longer for those to come."""
        self._store.set(heard_key(self._rank), "1")
        others = [rank for rank in self._places if rank != self._rank]
        heard = [heard_key(rank) for rank in others]
        began_s = all_there_s = time.monotonic()
        while others and not self._store.check(heard) and not self._asked():
            self._silence.restart()
            now = time.monotonic()
            if any(self._beats.last(rank) is None for rank in others):
                all_there_s = now
            if now - all_there_s > self._hear_s or now - began_s > late_s:
                break
            time.sleep(BEAT_S)

    def _run(self) -> None:
        try:
            woke_s = time.monotonic()
            pause_s = _LAST_BEAT_S
            while not self._over.is_set():
                self.look(woke_s)
                self._silence.restart()
                woke_s = time.monotonic()
                if self._done.is_set():
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, BEAT_S)
                else:
                    self._done.wait(BEAT_S)
        except Exception as error:  # noqa: BLE001 - a thread that ended in silence would leave its rank unwatched
            if self._done.is_set():  # the rank that hosted the store has left, since all are done
                self._over.set()
                return
            cause = exception_cause(error)
            if isinstance(error, RuntimeError):  # what torch raises where a connection breaks
                if self._host not in (None, self._rank):
                    cause = "is gone, and with it the store of the run: its process is dead, or its machine is gone"
                    self._end(Fault(self._places[self._host], self._monitor.last_progress(self._host), cause))
                cause = f"lost the store of the run: its launcher is gone{self._resumes_at()} ({type(error).__name__})"
            self._end(Fault(self._places[self._rank], self._progress.now(), cause))

    def look(self, woke_s: float) -> None:
        """Beat, look, judge and monitor once, as the thread does again and again.

        Args:
            woke_s: When it last did, on the monotonic clock.
        """
        now = time.monotonic()
        if now - woke_s > OVERSLEPT_S:
            self._counts_from_s = now
        if self._parent is not None and os.getppid() != self._parent:
            self._end(self._post(f"lost its launcher, which is gone{self._resumes_at()}"))
        progress = self._progress.now(not_before_s=self._counts_from_s)
        self._beats.beat(self._rank, progress)
        if self._store.check([FAULT_KEY]):
            self._end(fault_from_json(self._store.get(FAULT_KEY)))
        limit_s = self._progress.limit_s(progress.doing, self._hang_after_s)
        if limit_s is not None and progress.for_s > limit_s:
            self._end(self._post(f"hangs: no progress for {progress.for_s:.0f} s"))
        fault = self._monitor.find_fault(now)
        if fault is not None:
            self._end(post_fault(self._store, fault))
        for number in self._asked():
            self.ask_to_stop(number)
        self._answer_stop()
        if self._store.check([done_key(rank) for rank in self._places]):
            self._over.set()

    def _asked(self) -> list[int]:
        """Return the signals to stop that came since the last time."""
        with self._listening, suppress(BlockingIOError):
            came = os.read(self._signals, _SIGNALS_READ) if self._signals is not None else b""
            return [number for number in came if number in (*STOPPING, RESIZED_BY)]
        return []

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
                self.stopped_by = read_number(self._store, STOP_KEY, "the number of a signal")
                self._store.set(_stop_answer(self._rank), str(self._step))
        if self._store.check(keys):
            with self._gate:
                self._last_step = max(read_number(self._store, key, "a step", least=-1) for key in keys)
                self._gate.notify_all()


def _network() -> int:
    """Return the number of the network that this process is in: containers of one machine may have one name."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


def _stop_answer(rank: int) -> str:
    return f"stop/{rank}"
