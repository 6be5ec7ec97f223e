"""How elastic a run is: how many machines it takes at least and at most, how often it is restarted, whom it lets rest.

A machine that was lost is not asked for a while, twice as long after every further time, so that one that comes and
goes does not hold up the others::

    lost       1st     2nd     3rd     4th         from the 7th on
    rests      10 s    20 s    40 s    80 s        600 s

Left out: what is done about it (``driver.py``).
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.runtime.checkpoint.folder import find_checkpoints
from heterps_compile.runtime.checkpoint.start import find_start, refuse_unasked
from heterps_compile.units import counted

from .deal import Deal, Host
from .job import Job


def check_restarts(job: Job, max_restarts: int, *, starts: bool = True) -> None:
    """Check that a restart has a checkpoint to continue from; writes nothing unless the run ``starts`` here.

    Raises:
        InputError: if every restart would begin at the first step.
        RunError: if there are checkpoints already, and the run was not asked to resume.
    """
    if job.options.training and job.options.checkpoint is None:
        raise InputError(
            f"--max-restarts {max_restarts} without --checkpoint would start every time at the first step. Fix: add "
            f"--checkpoint DIR and --every N"
        )
    if starts:
        find_start(job.prepared, job.options)  # before --resume is added
    elif job.options.checkpoint is not None and os.path.isdir(job.options.checkpoint):
        refuse_unasked(job.options, find_checkpoints(Path(job.options.checkpoint)))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may be put through.

    Attributes:
        elastic: The least and the most machines that it runs on; None where it runs on those that it began with.
        max_restarts: After a failure, in all.
        back_off_s: For which a machine rests after it was lost for the first time.
        most_back_off_s: The longest that it does.
        look_s: Between two looks for machines that have come or gone.
    """

    elastic: tuple[int, int] | None = None
    max_restarts: int = 0
    back_off_s: float = 10.0
    most_back_off_s: float = 600.0
    look_s: float = 2.0

    @property
    def words(self) -> str:
        """Return the option that says how many machines."""
        return "" if self.elastic is None else f"--elastic {self.elastic[0]}:{self.elastic[1]}"

    def takes(self, deal: Deal | None) -> bool:
        """Tell whether there is a deal, to no more machines than the most."""
        return deal is not None and (self.elastic is None or len(deal) <= self.elastic[1])

    def short_of(self, machines: int) -> str:
        """Say that so many machines are fewer than the least; "" where they are not."""
        if self.elastic is None or machines >= self.elastic[0]:
            return ""
        there = "is 1" if machines == 1 else f"are {machines}"
        return f"{self.words} needs {counted(self.elastic[0], 'host')} at least: there {there}"

    def check(self, job: Job, machines: int | None = None) -> None:
        """Check that a run can be put through it.

        Args:
            job: The run.
            machines: How many there are; None where nobody knows yet.

        Raises:
            InputError: with what is missing, or contradicts it.
        """
        if self.max_restarts:
            check_restarts(job, self.max_restarts)
        if self.elastic is None:
            return
        options, least = job.options, self.elastic[0]
        if not options.training or options.checkpoint is None or options.every is None:
            raise InputError(
                f"{self.words} is for a training that keeps checkpoints, from which it goes on with other widths; give "
                f"--train FILE.py, --checkpoint DIR and --every N too"
            )
        if not self.max_restarts:
            raise InputError(
                f"{self.words} without --max-restarts would end with the first host that is lost; give --max-restarts "
                f"N too, so many times the run may go on from its last checkpoint"
            )
        mixed = next((stage for stage in job.prepared.plan.stages if stage.mixed), None)
        if mixed is not None:
            raise InputError(
                f"{self.words} changes widths, and stage {mixed.index} is planned for "
                f"{printable(mixed.hardware)}, each fed by its speed; leave it out, or compile without --mixed-stages"
            )
        if options.speeds:
            raise InputError(
                f"{self.words} and --speeds do not go together: they are of replicas, and the widths change. Fix: "
                f"leave one of them out"
            )
        if machines is not None and machines < least:
            raise InputError(
                f"{self.words} needs {least} hosts at least, and {machines} are named; name more, or lower it"
            )


@dataclass(frozen=True, slots=True)
class Absences:
    """Which machines were lost, how often, and until when they rest.

    Attributes:
        limits: How long.
        times: How often each was lost.
        until_s: When its rest is over, on the monotonic clock.
    """

    limits: Limits
    times: Mapping[str, int] = field(default_factory=dict)
    until_s: Mapping[str, float] = field(default_factory=dict)

    def lose(self, names: Iterable[str], now_s: float) -> "Absences":
        """Return what is known once machines were lost."""
        times, until_s = dict(self.times), dict(self.until_s)
        for name in names:
            times[name] = times.get(name, 0) + 1
            until_s[name] = now_s + self.rest_s(times[name])
        return replace(self, times=times, until_s=until_s)

    def rest_s(self, times: int) -> float:
        """Return how long a machine rests that was lost so many times."""
        return min(self.limits.back_off_s * 2.0 ** (times - 1), self.limits.most_back_off_s)

    def awake(self, hosts: Sequence[Host], now_s: float) -> tuple[Host, ...]:
        """Return the machines that do not rest."""
        return tuple(host for host in hosts if self.until_s.get(host.address, 0.0) <= now_s)
