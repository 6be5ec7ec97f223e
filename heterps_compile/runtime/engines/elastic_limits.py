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

from heterps_compile.runtime.checkpoint.folder import find_checkpoints
from heterps_compile.runtime.checkpoint.start import find_start, refuse_unasked
from heterps_compile.runtime.launch.combinations import Combination, refuse_combinations, when
from heterps_compile.units import counted

from .deal import Deal, Host
from .job import Job


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

    def check(self, job: Job, *, starts: bool = True) -> None:
        """Check that a run can be put through it; write nothing unless the run starts here.

        Raises:
            RunError: if it keeps no checkpoint to continue from, its widths cannot change, or there are checkpoints
                already and the run was not asked to resume.
        """
        refuse_combinations(RESTARTS, (job, self))
        if not starts:
            refuse_combinations(PRINTED_RESTARTS, (job, self))
        if self.max_restarts and starts:
            find_start(job.prepared, job.options)  # before --resume is added
        elif self.max_restarts and job.options.checkpoint is not None and os.path.isdir(job.options.checkpoint):
            refuse_unasked(job.options, find_checkpoints(Path(job.options.checkpoint)))


RESTARTS: Sequence[Combination[tuple[Job, Limits]]] = (
    Combination("`--max-restarts`", "`--train` without `--checkpoint`",
        lambda run: when(run[1].max_restarts and run[0].options.training and run[0].options.checkpoint is None),
        "--max-restarts is given and --checkpoint is missing",
        "checkpoints: every restart would begin at the first step", "--checkpoint DIR and --every N"),
    Combination("`--elastic`", "inference, no `--checkpoint` or no `--every`",
        lambda run: when(run[1].elastic and not run[0].options.every, hosts=run[1].words),
        "{hosts} is for a run without --every",
        "a training that keeps checkpoints, from which it continues with other widths",
        "--train FILE.py, --checkpoint DIR and --every N"),
    Combination("`--elastic`", "a plan with stages of several device types",
        lambda run: when(run[1].elastic and any(s.mixed for s in run[0].prepared.plan.stages), hosts=run[1].words),
        "{hosts} is for a plan with a stage of several device types",
        "stages of one device type: replicas are fed by their speeds, and the widths change",
        "leave --elastic out, or compile without --mixed-stages"),
    Combination("`--elastic`", "`--speeds`",
        lambda run: when(run[1].elastic and run[0].options.speeds, hosts=run[1].words),
        "{hosts} is for a run with --speeds", "one of the two: speeds are of replicas, and the widths change",
        "leave one of the two out"),
)  # fmt: skip
"""Walked by ``launch`` before anything starts."""

PRINTED_RESTARTS: Sequence[Combination[tuple[Job, Limits]]] = (
    Combination("`--max-restarts`", "`--weights`, in lines that are printed",
        lambda run: when(run[1].max_restarts and run[0].options.weights, weights=run[0].options.weights),
        "--max-restarts is given and --weights is {weights}",
        "one of the two: a line that is run again has --resume, which does not go together with --weights",
        "leave --max-restarts out until there is a checkpoint, or --on ray"),
)  # fmt: skip
"""Walked by ``launch`` before it prints what restarts a run."""


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
