"""A job with a deadline that may run on transient machines or on ones that stay, step by step.

In every step a policy takes one way to buy the machines, or waits. Changing the way, or losing a machine, costs steps
without progress: checkpoint, start-up, restore. The policy sees the past and the present, never the future. A guard
holds it to what keeps the deadline whatever comes: no step is allowed after which machines that stay would come too
late.

Left out: prices that change within a window; progress at a part of the speed.
"""

from dataclasses import dataclass
from typing import Protocol

from heterps_compile.errors import InfeasibleError

from .availability import Seen


@dataclass(frozen=True, slots=True)
class Way:
    """One way to buy the machines of a job.

    Attributes:
        name: As tables show it.
        price: Of a step.
        seen: When its transient machines are there; None for machines that stay.
    """

    name: str
    price: float
    seen: Seen | None = None

    def is_there(self, step: int) -> bool:
        """Whether it can be used in a step."""
        return self.seen is None or self.seen.there[step]

    def is_broken(self, step: int) -> bool:
        """Whether it lost a machine at the start of a step."""
        return self.seen is not None and self.seen.broken[step]


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done by when.

    Attributes:
        work: Steps of progress.
        deadline: Steps there are.
        change: Steps without progress after a change or a loss.
        ways: How machines can be bought, the cheapest first; the last one stays. What one has, the next one has too.

    Raises:
        InfeasibleError: where machines that stay would come too late.
    """

    work: int
    deadline: int
    change: int
    ways: tuple[Way, ...]

    def __post_init__(self) -> None:
        if self.work + self.change > self.deadline:
            raise InfeasibleError(
                f"{self.work} steps of work and {self.change} of start-up do not end within {self.deadline}, even on "
                f"machines that stay; allow {self.work + self.change}"
            )

    @property
    def stays(self) -> int:
        """Return the index of the machines that stay."""
        return len(self.ways) - 1


@dataclass(frozen=True, slots=True)
class JobState:
    """Where a job is at the start of a step.

    Attributes:
        step: Of the window.
        left: Steps of progress to do.
        way: Index of the way of the step before, None where it waited.
        pause: Steps without progress that are left of a change.
    """

    step: int
    left: int
    way: int | None = None
    pause: int = 0


class Policy(Protocol):
    """Decides step by step; a new one is made for every job."""

    def choose(self, job: Job, state: JobState) -> int | None:
        """Return the index of the way to take in this step, None to wait. The future is not to be read."""
        ...


@dataclass(frozen=True, slots=True)
class JobRun:
    """What came of a job.

    Attributes:
        money: Paid.
        steps: Until its end.
        met: Whether the deadline was kept.
        taken: The way of each step.
    """

    money: float
    steps: int
    met: bool
    taken: tuple[int | None, ...]


def after(job: Job, state: JobState, way: int | None) -> JobState:
    """Return where the job is after a step in which it took a way that is there."""
    if way is None:
        return JobState(state.step + 1, state.left, None, 0)
    goes_on = way == state.way and not job.ways[way].is_broken(state.step)
    pause = state.pause if goes_on else job.change
    return JobState(state.step + 1, state.left - (pause == 0), way, max(pause - 1, 0))


def is_safe(job: Job, state: JobState) -> bool:
    """Whether machines that stay still come in time from here, whatever is lost."""
    pause = state.pause if state.way == job.stays else job.change
    return state.left == 0 or state.left + pause <= job.deadline - state.step


def run_job(job: Job, policy: Policy) -> JobRun:
    """Run a policy on a job, held to safe steps: where its choice is not safe, machines that stay are taken."""
    state = JobState(0, job.work)
    money = 0.0
    taken: list[int | None] = []
    while state.left > 0 and state.step < job.deadline:
        way = policy.choose(job, state)
        if way is not None and not job.ways[way].is_there(state.step):
            way = None
        if not is_safe(job, after(job, state, way)):
            way = job.stays
        money += 0.0 if way is None else job.ways[way].price
        taken.append(way)
        state = after(job, state, way)
    return JobRun(money, state.step, state.left == 0, tuple(taken))
