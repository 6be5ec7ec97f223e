"""When a search must stop: the one clock of all passes.

Every loop that may be long asks it, and with it whether the caller still wants the result
(:mod:`heterps_compile.progress`); every solver inside of one gets what is left (``solver.py``), and what cannot be
interrupted is begun only where time is left. A test sees to it that no other file of the passes reads a clock.

Left out: how much of a time limit a method gets (``place_layers.py``).
"""

import time
from dataclasses import dataclass

from heterps_compile.progress import check


class TimeUpError(Exception):
    """The time limit has passed; never leaves a search method."""


def now_s() -> float:
    """Return the time on the clock that deadlines are on, in seconds since some moment."""
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a search must stop.

    Attributes:
        end_s: On the clock of :func:`now_s`; inf for never.
    """

    end_s: float

    @classmethod
    def after(cls, time_limit_s: float | None) -> "Deadline":
        """Return the deadline that lies so far ahead."""
        return cls(float("inf") if time_limit_s is None else now_s() + time_limit_s)

    def within(self, most_s: float) -> "Deadline":
        """Return the deadline that lies so far ahead, or this one where it is earlier."""
        return Deadline(min(self.end_s, now_s() + most_s))

    def at_least(self, least_s: float) -> "Deadline":
        """Return the deadline that lies so far ahead, or this one where it is later."""
        return Deadline(max(self.end_s, now_s() + least_s))

    def left_s(self) -> float:
        """Return the time that is left.

        Raises:
            CancelledError: where the caller of the compilation cancelled it.
        """
        check()
        return self.end_s - now_s()

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.left_s() <= 0

    def check(self) -> None:
        """Raise :class:`TimeUpError` where no time is left."""
        if self.is_over:
            raise TimeUpError


NO_DEADLINE = Deadline(float("inf"))
"""Never comes."""
