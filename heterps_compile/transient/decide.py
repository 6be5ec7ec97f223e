"""Stay, move or wait: what a run that goes on is to do when prices change or machines are lost.

Every course is priced to the end by the closed form of ``expected.py``, with what leads up to it: to move is to write
a checkpoint, to plan anew and to start other machines, the old ones paid until they are let go; to wait is to pay
what is kept until then. Of the courses that keep deadline and budget in nine of ten runs the one of the least
expected money is taken; under a budget alone, the fastest.

Left out: prices to come; what is known of the age of machines that run (they are taken as new, which is careful where
many die early).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.units import format_duration, format_money

from .expected import ExpectedRun, Spread, expect_run
from .lifetime import HOUR_S
from .transient_work import Machines, Recovery, TransientWork

STAY, MOVE, WAIT = "stay", "move", "wait"


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of a run.

    Attributes:
        samples: To be trained on.
        spent: Money so far.
        deadline_s: Seconds from now, None for none.
        budget: Money in all, with what was spent; None for none.
        currency: Of all money, as messages name it; "" where it has no name.

    Raises:
        InputError: where nothing is left, or a number is none.
    """

    samples: float
    spent: float = 0.0
    deadline_s: float | None = None
    budget: float | None = None
    currency: str = ""

    def money(self, amount: float) -> str:
        """Return an amount with its currency."""
        return f"{format_money(amount)} {self.currency}".rstrip()

    def __post_init__(self) -> None:
        if not 0 < self.samples < math.inf:
            raise InputError(f"{self.samples:g} samples are left; there must be some to decide anything")
        if not 0 <= self.spent < math.inf:
            raise InputError(f"{self.spent:g} was spent; that must not be negative")
        for what, limit in {"deadline": self.deadline_s, "budget": self.budget}.items():
            if limit is not None and not 0 < limit < math.inf:
                raise InputError(f"the {what} is {limit:g}; it must be positive and finite")


@dataclass(frozen=True, slots=True)
class Course:
    """One way on.

    Attributes:
        kind: ``STAY``, ``MOVE`` or ``WAIT``.
        samples_per_s: Of the machines, all of them up.
        machines: What it runs on then.
        recovery: How a loss is made good on them.
        before_s: Seconds until the machines are asked for: checkpoint and planning of a move; the wait.
        before_per_hour: What is paid an hour until then.
        is_running: Whether the machines are up by then.
        late: By which part nine of ten runs compute longer than the rate says.
        name: What messages call the machines; "" where the kind says enough.

    Raises:
        InputError: where the kind or a number is none.
    """

    kind: str
    samples_per_s: float
    machines: tuple[Machines, ...]
    recovery: Recovery
    before_s: float = 0.0
    before_per_hour: float = 0.0
    is_running: bool = False
    late: float = 0.0
    name: str = ""

    @property
    def title(self) -> str:
        """Return what messages call it: "move to 2 x p3.2xlarge"."""
        to = {STAY: " on ", MOVE: " to ", WAIT: " for "}[self.kind]
        return self.kind + (to + self.name if self.name else "")

    def __post_init__(self) -> None:
        if self.kind not in (STAY, MOVE, WAIT):
            raise InputError(f"a course is {STAY!r}, {MOVE!r} or {WAIT!r}, not {self.kind!r}")
        if not 0 < self.samples_per_s < math.inf:
            raise InputError(f"to {self.kind}: {self.samples_per_s:g} samples a second; the rate must be positive")
        if not (0 <= self.before_s < math.inf and 0 <= self.before_per_hour < math.inf):
            raise InputError(
                f"to {self.kind}: {self.before_s:g} s at {self.before_per_hour:g} an hour come first; "
                "neither may be negative"
            )
        if not 0 <= self.late < math.inf:
            raise InputError(f"to {self.kind}: runs are {self.late:g} later than predicted; that must not be negative")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a course comes to.

    Attributes:
        course: The course.
        time_s: From now to the end.
        money: In all, with what was spent.
        run: The run on its machines.
        chance: To keep the deadline; 1 where there is none.
        failing: What it breaks and by how much, "" where it keeps all.
    """

    course: Course
    time_s: Spread
    money: Spread
    run: ExpectedRun
    chance: float
    failing: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do.

    Attributes:
        taken: The outcome of the course to take.
        outcomes: Of all courses, the taken one first, those that break something last.
        why: One sentence with the numbers.
    """

    taken: Outcome
    outcomes: tuple[Outcome, ...]
    why: str


def course_to_stay(samples_per_s: float, machines: tuple[Machines, ...], recovery: Recovery) -> Course:
    """Return the course that goes on with the machines that are up."""
    return Course(STAY, samples_per_s, machines, recovery, is_running=True)


def course_to_move(stay: Course, to: Course, planning_s: float) -> Course:
    """Return the course that leaves machines for those of another; checkpoint and planning come first, paid there."""
    before_s = stay.recovery.checkpoint_s + planning_s
    return replace(to, kind=MOVE, before_s=before_s, before_per_hour=_price(stay.machines), is_running=False)


def course_to_wait(then: Course, wait_s: float, kept: tuple[Machines, ...] = ()) -> Course:
    """Return the course that waits for the machines of another and pays for those that are kept meanwhile."""
    return replace(then, kind=WAIT, before_s=wait_s, before_per_hour=_price(kept), is_running=False)


def decide(remaining: Remaining, courses: Sequence[Course]) -> Decision:
    """Return the course to take.

    Raises:
        InputError: where no course is given.
        InfeasibleError: where none keeps deadline and budget in nine of ten runs; it names the one that is nearest.
    """
    if not courses:
        raise InputError("no course is given; staying is one")
    priced = [outcome for course in courses if (outcome := _priced(remaining, course)) is not None]
    if not priced:
        raise InfeasibleError(
            f"on the machines of all {len(courses)} courses losses come so often that the run does not end; "
            "name machines that stay"
        )
    fastest = remaining.deadline_s is None and remaining.budget is not None
    ranked = sorted(
        priced, key=lambda one: (one.failing != "", one.time_s.mean if fastest else one.money.mean, one.time_s.mean)
    )
    if ranked[0].failing:
        nearest = min(priced, key=lambda one: _excess(remaining, one))
        raise InfeasibleError(
            f"no course keeps what was asked; nearest is to {nearest.course.title}: {nearest.failing}; allow that"
        )
    return Decision(ranked[0], tuple(ranked), _why(remaining, ranked))


def _price(machines: tuple[Machines, ...]) -> float:
    return sum(kind.count * kind.price_per_hour for kind in machines)


def _priced(remaining: Remaining, course: Course) -> Outcome | None:
    """Return what a course comes to; None where its run does not end."""
    work = TransientWork(
        remaining.samples / course.samples_per_s, course.machines, course.recovery, is_running=course.is_running
    )
    try:
        run = expect_run(work)
        slow = expect_run(replace(work, work_s=work.work_s * (1 + course.late))) if course.late else run
    except InfeasibleError:
        return None
    first = remaining.spent + course.before_per_hour * course.before_s / HOUR_S
    time_s = Spread(*(course.before_s + part for part in (run.time_s.mean, run.time_s.median, slow.time_s.most)))
    money = Spread(*(first + part for part in (run.money.mean, run.money.median, slow.money.most)))
    chance, failing = 1.0, []
    if remaining.deadline_s is not None:
        chance = run.chance_within(remaining.deadline_s - course.before_s)
        if time_s.most > remaining.deadline_s:
            failing.append(
                f"nine of ten runs end within {format_duration(time_s.most)}, "
                f"{format_duration(remaining.deadline_s)} are left"
            )
    if remaining.budget is not None and money.most > remaining.budget:
        failing.append(
            f"nine of ten runs cost up to {remaining.money(money.most)}, the budget is "
            f"{remaining.money(remaining.budget)}"
        )
    return Outcome(course, time_s, money, run, chance, " and ".join(failing))


def _excess(remaining: Remaining, outcome: Outcome) -> float:
    """Return by how much the worse of deadline and budget is broken, in parts of it."""
    of_time = 0.0 if remaining.deadline_s is None else outcome.time_s.most / remaining.deadline_s
    of_money = 0.0 if remaining.budget is None else outcome.money.most / remaining.budget
    return max(of_time, of_money)


def _why(remaining: Remaining, ranked: list[Outcome]) -> str:
    taken = ranked[0]
    time = format_duration(taken.time_s.mean)
    said = f"{taken.course.title}: {remaining.money(taken.money.mean)} in all, {time} from now"
    if taken.course.before_s > 0:
        first = taken.course.before_per_hour * taken.course.before_s / HOUR_S
        said += f", {format_duration(taken.course.before_s)} and {remaining.money(first)} of which come first"
    if len(ranked) == 1:
        return said + "; there is no other course"
    other = ranked[1]
    if other.failing:
        return f"{said}; to {other.course.title} fails: {other.failing}"
    time = format_duration(other.time_s.mean)
    return f"{said}; to {other.course.title} is {remaining.money(other.money.mean)} and {time}"
