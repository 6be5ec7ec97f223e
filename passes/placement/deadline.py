"""When a search must stop: every loop that may be long asks, and every solver inside of one gets what is left.

Left out: how much of a time limit a method gets (``passes/place_layers.py``).
"""

import time
from dataclasses import dataclass


class TimeUpError(Exception):
    """The time limit has passed; never leaves a search method."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a search must stop.

    Attributes:
        end_s: On the clock of ``time.monotonic``; inf for never.
    """

    end_s: float

    @classmethod
    def after(cls, time_limit_s: float | None) -> "Deadline":
        """Give the deadline that lies so far ahead."""
        return cls(float("inf") if time_limit_s is None else time.monotonic() + time_limit_s)

    def within(self, most_s: float) -> "Deadline":
        """Give the deadline that lies so far ahead, or this one where it is earlier."""
        return Deadline(min(self.end_s, time.monotonic() + most_s))

    def left_s(self) -> float:
        """Give the time that is left."""
        return self.end_s - time.monotonic()

    def check(self) -> None:
        """Raise :class:`TimeUpError` where no time is left."""
        if time.monotonic() > self.end_s:
            raise TimeUpError


NO_DEADLINE = Deadline(float("inf"))
"""Never comes."""
