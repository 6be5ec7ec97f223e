"""How far a compilation is, told to its caller, and whether the caller still wants it.

Whoever starts long work watches over it (:func:`watching`). Whatever takes long says where it is (:func:`tell`) or only
asks (:func:`check`), and knows nothing of who listens. Both end the work where the caller has cancelled it, or where
the caller's function raises: that exception is the caller's own, and reaches it as it is.

What cannot be ended in the middle is waited for: the import of one package, the end of a trace. A solver winds down in
a thread of its own (``passes/solver.py``).

Every clock of the searches asks (``passes/deadline.py``), so that a search asks as often as it looks at the time.

Left out: what takes long, and runs of stages, which tell of themselves (``runtime/telemetry``).
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Protocol

from .errors import CancelledError

LEAST_S = 0.1
"""Seconds between two calls within one step; the begin of a step is always told."""

_WORK_A_CALL = 10.0  # times what a call took: a slow function takes a tenth of the time within a step


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the work is.

    Attributes:
        step: What is being done: ``"reading"``, the name of a pass (``"place-layers"``), ``"verify"``, ``"done"``.
        done: Steps that are behind.
        total: Steps in all.
        message: What of the step; "" where nothing more is known.
        fraction: How much of the step is behind, in [0, 1]; None where that is not known. It never falls within a step.
        best: The value of the best plan so far, in the unit of the objective, lower is better; None before the first.
        bound: A proven lower bound on the value of every plan; None before the first.
        elapsed_s: Seconds since the work began.
    """

    step: str
    done: int
    total: int
    message: str = ""
    fraction: float | None = None
    best: float | None = None
    bound: float | None = None
    elapsed_s: float = 0.0

    @property
    def share(self) -> float:
        """Return how much of the whole work is behind, in [0, 1], every step counted alike; it never falls."""
        return min(1.0, (self.done + (self.fraction or 0.0)) / self.total) if self.total else 0.0


OnProgress = Callable[[Progress], object]
"""Called as the work proceeds, in the thread that works; what it returns is ignored."""


class CancelToken(Protocol):
    """What says that work is no longer wanted: a ``threading.Event`` is one."""

    def is_set(self) -> bool:
        """Return whether the work is cancelled."""
        ...


class Watch:
    """What is known of work that is going on, and who is told.

    Attributes:
        fault: What the caller's function raised; None where it did not.
    """

    def __init__(self, on_progress: OnProgress | None, cancel: CancelToken | None, least_s: float) -> None:
        self._on_progress, self._cancel, self._least_s = on_progress, cancel, least_s
        self._began_s, self._due_s = time.monotonic(), -math.inf
        self._now = Progress("", 0, 1)
        self._is_telling = False
        self._part = (0.0, 1.0)
        self.fault: BaseException | None = None

    def begin(self, step: str, done: int, total: int) -> None:
        """Tell that a step begins; the best plan and the bound so far stay known."""
        self._now = replace(self._now, step=step, done=done, total=total, message="", fraction=None)
        self._refuse()
        self._tell()

    def tell(self, message: str, fraction: float | None, best: float | None, bound: float | None) -> None:
        """Note what is new, and tell it where that is due."""
        now = self._now
        known = [value for value in (now.bound, bound) if value is not None]
        reached = [value for value in (now.best, best) if value is not None]
        first, last = self._part
        behind = None if fraction is None else first + (last - first) * min(1.0, max(0.0, fraction))
        self._now = replace(
            now,
            message=message or now.message,
            fraction=max((part for part in (now.fraction, behind) if part is not None), default=None),
            best=min(reached, default=None),
            bound=max(known, default=None),
        )
        self.check()

    @contextmanager
    def part(self, first: float, last: float) -> Iterator[None]:
        """Take fractions that are told in the block for those of a part of the step."""
        before, self._part = self._part, (first, last)
        try:
            self.tell("", 0.0, None, None)
            yield
        finally:
            self._part = before

    def check(self) -> None:
        """Tell what is known where that is due.

        Raises:
            CancelledError: where the work is cancelled.
        """
        self._refuse()
        if self.is_due:
            self._tell()

    @property
    def can_be_cancelled(self) -> bool:
        """Whether the caller has a way to."""
        return self._cancel is not None

    @property
    def is_due(self) -> bool:
        """Whether asking would do anything."""
        if self.is_cancelled or self.fault is not None:
            return True
        return self._on_progress is not None and time.monotonic() >= self._due_s

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller wants no more."""
        return self._cancel is not None and self._cancel.is_set()

    def cancelled(self) -> CancelledError:
        """Return the error that ends the work."""
        after = f"after {time.monotonic() - self._began_s:.1f} s"
        return CancelledError(f"the compilation was cancelled in its step {self._now.step!r}, {after}; nothing is left")

    def _refuse(self) -> None:
        """Raise what ends the work, but not out of the caller's own function."""
        if self._is_telling:
            return
        if self.fault is not None:
            raise self.fault
        if self.is_cancelled:
            raise self.cancelled()

    def _tell(self) -> None:
        if self._on_progress is None or self._is_telling:
            return
        now_s = time.monotonic()
        self._is_telling = True
        try:
            self._on_progress(replace(self._now, elapsed_s=now_s - self._began_s))
        except BaseException as error:
            self.fault = error
            raise
        finally:
            self._is_telling = False
            if self._least_s:
                self._due_s = now_s + max(self._least_s, _WORK_A_CALL * (time.monotonic() - now_s))


_watch: ContextVar[Watch | None] = ContextVar("heterps_compile_watch", default=None)


@contextmanager
def watching(
    on_progress: OnProgress | None = None, cancel: CancelToken | None = None, *, least_s: float = LEAST_S
) -> Iterator[Watch]:
    """Watch over the work of a block, in this thread.

    Whatever becomes of an exception on its way through libraries, the block ends with that of the caller's function, or
    with :class:`CancelledError` where it is cancelled.

    Args:
        on_progress: Called at the begin of every step, and within one no sooner than ``least_s`` after the last call,
            or ten times what that took.
        cancel: Set by the caller, from any thread, to end the work.
        least_s: In seconds; 0 to be told of everything.

    Raises:
        CancelledError: where ``cancel`` is set.
    """
    watch = Watch(on_progress, cancel, least_s)
    token = _watch.set(watch)
    try:
        yield watch
    except Exception as error:
        if watch.fault is not None and error is not watch.fault:
            raise watch.fault from error
        if watch.is_cancelled and not isinstance(error, CancelledError):
            raise watch.cancelled() from error
        raise
    finally:
        _watch.reset(token)


def tell(
    message: str = "", *, fraction: float | None = None, best: float | None = None, bound: float | None = None
) -> None:
    """Say where the work is; nobody hears it where nobody watches.

    Args:
        message: What of the step; "" for what was said before.
        fraction: How much of the step is behind, in [0, 1].
        best: Value of a plan that was found.
        bound: A proven lower bound on the value of every plan.

    Raises:
        CancelledError: where the caller cancelled the work.
    """
    if (watch := _watch.get()) is not None:
        watch.tell(message, fraction, best, bound)


@contextmanager
def part_of_step(first: float, last: float) -> Iterator[None]:
    """Take fractions that are told in the block for those of a part of the step, from ``first`` to ``last``."""
    watch = _watch.get()
    with nullcontext() if watch is None else watch.part(first, last):
        yield


def check() -> None:
    """Ask whether the work is still wanted.

    Raises:
        CancelledError: where the caller cancelled it.
    """
    if (watch := _watch.get()) is not None:
        watch.check()


@contextmanager
def stopping(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop``, from another thread, where the work is cancelled while the block is in one long call of a library.

    Raises:
        CancelledError: where it was cancelled.
    """
    watch = _watch.get()
    if watch is None or not watch.can_be_cancelled:
        yield
        return
    check()
    is_over = Event()

    def look() -> None:
        while not is_over.wait(LEAST_S / 2):
            if watch.is_cancelled:
                stop()
                return

    looking = Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()
        check()


def is_due() -> bool:
    """Return whether :func:`check` would do anything now."""
    watch = _watch.get()
    return watch is not None and watch.is_due


def is_watched() -> bool:
    """Return whether somebody watches over this thread's work."""
    return _watch.get() is not None
