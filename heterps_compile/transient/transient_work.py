"""A training on machines that may be taken away: what there is to compute, on what, and how a loss is made good.

Left out: prices that change while the run lasts; losses of zones as a whole; networks that slow down.
"""

import math
from dataclasses import dataclass

from heterps_compile.errors import InputError
from heterps_compile.units import counted

from .lifetime import HOUR_S, Weibull


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines of one kind, bought alike.

    Attributes:
        count: How many.
        price_per_hour: Of one of them.
        lifetime: How long one lives; None for machines that stay (on demand).

    Raises:
        InputError: where there is none, or a price is no price.
    """

    count: int
    price_per_hour: float
    lifetime: Weibull | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"{self.count} machines of one kind; there must be one at the least")
        if not 0 <= self.price_per_hour < math.inf:
            raise InputError(f"a machine costs {self.price_per_hour:g} an hour; the price must not be negative")


@dataclass(frozen=True, slots=True)
class Recovery:
    """How a run continues when a machine is lost, which stops all.

    Attributes:
        start_up_s: From a loss until the machine in its place computes: provisioning, booting, restoring. The whole run
            waits for it.
        checkpoint_s: How long all wait while a checkpoint is written.
        interval_s: Seconds of computing between two checkpoints; None takes the interval of the least expected time.

    Raises:
        InputError: where a time is negative, or no number.
    """

    start_up_s: float
    checkpoint_s: float = 0.0
    interval_s: float | None = None

    def __post_init__(self) -> None:
        times = {"start-up": self.start_up_s, "a checkpoint": self.checkpoint_s}
        for what, time_s in times.items():
            if not 0 <= time_s < math.inf:
                raise InputError(f"{what} takes {time_s:g} s; a time must not be negative")
        if self.interval_s is not None and not self.interval_s > 0:
            raise InputError(f"the interval of checkpoints is {self.interval_s:g} s; it must be positive")


@dataclass(frozen=True, slots=True)
class TransientWork:
    """What is to be computed, and on what.

    Attributes:
        work_s: Seconds of computing when all machines are there, without checkpoints.
        machines: What it runs on, kind by kind.
        recovery: How a loss is made good.
        is_running: Whether all machines are up already; a start-up comes first else.

    Raises:
        InputError: where there is no work, or no machine.
    """

    work_s: float
    machines: tuple[Machines, ...]
    recovery: Recovery
    is_running: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.work_s < math.inf:
            raise InputError(f"the work takes {self.work_s:g} s; it must be positive and finite")
        if not self.machines:
            raise InputError("the work has no machine to run on; name one kind at the least")

    @property
    def price_per_hour(self) -> float:
        """Return what all machines cost an hour together."""
        return sum(kind.count * kind.price_per_hour for kind in self.machines)

    @property
    def first_start_s(self) -> float:
        """Return the seconds until the first step."""
        return 0.0 if self.is_running else self.recovery.start_up_s

    @property
    def transient(self) -> tuple[Machines, ...]:
        """Return the kinds that may be taken away."""
        return tuple(kind for kind in self.machines if kind.lifetime is not None)

    def money(self, time_s: float) -> float:
        """Return what a run of some seconds costs: a machine is paid from when it is asked for, starting or not."""
        return self.price_per_hour * time_s / HOUR_S

    def computing_s(self, interval_s: float | None, work_s: float | None = None) -> float:
        """Return the seconds of work (all of it by default) and of its checkpoints where nothing is lost.

        The last stretch of work ends without a checkpoint.
        """
        work = self.work_s if work_s is None else work_s
        if interval_s is None or interval_s == math.inf or work <= 0:
            return work
        return work + self.recovery.checkpoint_s * max(math.ceil(work / interval_s * (1 - 1e-12)) - 1, 0)

    def described(self) -> str:
        """Return the machines in words: "4 transient machines and 2 that stay"."""
        may_go = sum(kind.count for kind in self.transient)
        stay = sum(kind.count for kind in self.machines) - may_go
        if not may_go:
            return f"{counted(stay, 'machine')} that stay"
        return counted(may_go, "transient machine") + (f" and {stay:,} that stay" if stay else "")
