"""What this rank is doing, for those who watch over it; and when it has been doing it for too long.

Only time in which a rank depends on nobody else counts as a hang: an action, reading data, the optimiser, a
checkpoint. A rank that waits for another is never at fault.

Left out: the page that shows the launcher the last micro-batch of a process that was killed (``beats.py``), and the
watcher (``watch.py``).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from heterps_compile.runtime.pipeline.recorder import Recorders
from heterps_compile.schedule.order import Phase

from .faults import STARTING, WAITING, Progress

READING = "reading data"
UPDATING = "updating parameters"
SAVING = "writing a checkpoint"
VALIDATING = "computing metrics"
SERVING = "serving tables"

_TIMES_LONGEST = 5.0  # an activity may take so many times as long as the longest of its kind so far
_FIRST_TIMES = 6.0  # the first of a kind warms up: libraries load, memory is touched for the first time
_PATIENT = {SAVING: 30.0, READING: 6.0, VALIDATING: 6.0}  # whose time is the disk's or the user's, not ours


class ProgressRecorder(Recorders):
    """Listens to the engine; asked from another thread.

    What is asked is one tuple that is replaced as a whole, so that no lock is needed.
    """

    def __init__(self, note: Callable[[Progress, float], object] = lambda _progress, _since_s: None) -> None:
        """Begin with nothing done.

        Args:
            note: Takes every change, and since when, on the monotonic clock.
        """
        super().__init__()
        self._note = note
        self._step: int | None = None
        self._stage: int | None = None
        self._micro_batch: int | None = None
        self._now: tuple[Progress, float] = (Progress(), time.monotonic())
        self._longest_s: dict[str, float] = {}

    def begin(self, step: int, stage: int, micro_batch: int, phase: Phase) -> None:
        """Hear that an action begins."""
        self._step, self._stage, self._micro_batch = step, stage, micro_batch
        self._set(phase.value)

    def end(  # noqa: PLR0917 - as the Recorder has it
        self, step: int, stage: int, micro_batch: int, phase: Phase, began_s: float, ended_s: float
    ) -> None:
        """Hear that it has ended."""
        self._over(phase.value, ended_s - began_s)

    def begin_step(self, step: int) -> None:
        """Note which step begins."""
        self._step, self._micro_batch = step, None
        self._set(WAITING)

    def enter(self, what: str) -> None:
        """Note what is done from now on."""
        self._set(what)

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Note what is done in a block, which may lie inside an action."""
        outside = self._now[0].doing
        began_s = time.monotonic()
        self._set(what)
        yield
        # Not in a finally: where the block raises, this is what the rank was doing.
        self._over(what, time.monotonic() - began_s)
        if outside != WAITING:
            self._set(outside)

    def now(self, *, not_before_s: float = 0.0) -> Progress:
        """Return what is being done, and for how long.

        Args:
            not_before_s: On the monotonic clock; time before it does not count.
        """
        progress, since_s = self._now
        for_s = time.monotonic() - max(since_s, not_before_s)
        return Progress(progress.doing, progress.step, progress.stage, progress.micro_batch, for_s)

    def limit_s(self, doing: str, hang_after_s: float) -> float | None:
        """Return the seconds an activity may take; None where it may take for ever, or depends on others."""
        if doing in (STARTING, WAITING, SERVING):
            return None
        least_s = hang_after_s * _PATIENT.get(doing, 1.0)
        if doing not in self._longest_s:
            return least_s * _FIRST_TIMES
        return max(least_s, _TIMES_LONGEST * self._longest_s[doing])

    def _set(self, doing: str) -> None:
        self._now = Progress(doing, self._step, self._stage, self._micro_batch), time.monotonic()
        self._note(*self._now)

    def _over(self, doing: str, took_s: float) -> None:
        self._longest_s[doing] = max(self._longest_s.get(doing, 0.0), took_s)
        self._set(WAITING)
