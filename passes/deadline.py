"""When a search must stop: the one clock of all passes.

Every loop that may be long asks it, and with it whether the caller still wants the result
(:mod:`heterps_compile.progress`); every solver inside of one gets what is left (``solver.py``), and what cannot be
interrupted is begun only where time is left. A test sees to it that no other file of the passes reads a clock.

Left out: how much of a time limit a method gets (``place_layers.py``).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from heterps_compile.progress import check


class TimeUpError(Exception):
    """The time limit has passed; never leaves a search method."""


def now_s() -> float:
    """Return the time on the clock that deadlines are on, in seconds since some moment."""
    return time.monotonic()


class Budget:
    """Seconds that one search may work, those not counted in which it waits for another.

    Attributes:
        meanwhile: Called at every check of the deadline, and over and over while a solver works for the search in a
            thread of its own; returns whether there was something to do.
    """

    def __init__(self, most_s: float, meanwhile: Callable[[], bool] = lambda: False) -> None:
        self._most_s, self._began_s, self._paused_s = most_s, now_s(), 0.0
        self.meanwhile = meanwhile

    def pause(self, seconds: float) -> None:
        """Leave seconds that are over out of the count."""
        self._paused_s += seconds

    @property
    def spent_s(self) -> float:
        """Return the seconds of work so far."""
        return now_s() - self._began_s - self._paused_s

    def left_s(self) -> float:
        """Return the seconds of work that are left."""
        return self._most_s - self.spent_s


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a search must stop.

    Attributes:
        end_s: On the clock of :func:`now_s`; inf for never.
        budget: What the search may work in all; None for no limit but the end.
    """

    end_s: float
    budget: Budget | None = None

    @classmethod
    def after(cls, time_limit_s: float | None) -> "Deadline":
        """Return the deadline that lies so far ahead."""
        return cls(float("inf") if time_limit_s is None else now_s() + time_limit_s)

    def within(self, most_s: float) -> "Deadline":
        """Return the deadline that lies so far ahead, or this one where it is earlier."""
        return Deadline(min(self.end_s, now_s() + most_s), self.budget)

    def at_least(self, least_s: float) -> "Deadline":
        """Return the deadline that lies so far ahead, or the end of this one where that is later."""
        return Deadline(max(self.end_s, now_s() + least_s))

    def left_s(self) -> float:
        """Return the time that is left.

        Raises:
            CancelledError: where the caller of the compilation cancelled it.
        """
        check()
        left_s = self.end_s - now_s()
        return left_s if self.budget is None else min(left_s, self.budget.left_s())

    def work_meanwhile(self) -> bool:
        """Do a little of what can be done while a solver works; return whether there was something."""
        return self.budget is not None and self.budget.meanwhile()

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.left_s() <= 0

    def check(self) -> None:
        """Let the other search work where it is its turn, and raise :class:`TimeUpError` where no time is left."""
        self.work_meanwhile()
        if self.is_over:
            raise TimeUpError


NO_DEADLINE = Deadline(float("inf"))
"""Never comes."""
