"""A set of machines whose plan was searched for, its time and money, and how such sets are compared.

What a run on a set of machines takes and costs: the median, and what nine of ten runs stay below.

On demand, the median is the predicted steps one after another, and the spread is that of predictions from data sheets
on clusters of which nothing was learned, or of a user's measurements (``learned.py``).

A run with transient machines is that of ``transient/expected.py``: a loss stops all, a machine in the lost one's place
starts up, and what was done since the last checkpoint is done again. Nine of ten are taken of the run whose steps are
that much longer than predicted.

Where a catalogue does not state a network, nine of ten are taken of a step on the network that nine of ten guesses
stay above.

Machines that stay start up too, once for the whole run, where transient ones may be chosen beside them or a user says
how long that takes.

Left out: which sets there are (``sets.py``), which of them are searched for (``search.py``), losses that come together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heterps_compile.transient.expected import expect_run
from heterps_compile.transient.transient_work import Machines, Recovery, TransientWork

from .goal import HOUR_S, Goal
from .learned import PREDICTION_ERROR
from .machine_set import MachineSet
from .step_times import StepFound

WITHIN_REACH = 0.5
"""By which part limits are widened at the most for a set that is better; one that breaks them by more is no choice."""

_GAP = 1e-9  # relative, of values that are equal but for rounding


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a run takes and costs.

    Attributes:
        median_s, most_s: Seconds: half of all runs take no longer, and nine of ten.
        median_money, most_money: The same of US dollars.
    """

    median_s: float
    most_s: float
    median_money: float
    most_money: float

    def later(self, start_s: float, price_per_hour: float) -> "Outlook":
        """Return the outlook of a run before which all machines are paid for some seconds."""
        first = price_per_hour * start_s / HOUR_S
        return Outlook(
            self.median_s + start_s, self.most_s + start_s, self.median_money + first, self.most_money + first
        )

    def misses(self, goal: Goal) -> tuple[str, ...]:
        """Return which limits of a goal nine of ten runs do not keep: "deadline", "budget"."""
        late = goal.deadline_s is not None and self.most_s > goal.deadline_s
        dear = goal.budget is not None and self.most_money > goal.budget
        return ("deadline",) * late + ("budget",) * dear

    def value(self, goal: Goal) -> float:
        """Return what sets are compared by: money where there is a deadline, else time; the median."""
        return self.median_money if goal.minimises_money else self.median_s


def outlook_of(
    machines: MachineSet, step_s: float, batch: int, goal: Goal, checkpoint_s: float = 0.0, *, slower: float = 1.0
) -> Outlook:
    """Return time and money of a whole run whose steps are known, and for how long all wait for a checkpoint.

    ``slower`` is the factor on the step for nine of ten runs because a network is a guess.

    Raises:
        InfeasibleError: where transient machines are lost so often that the run does not end.
    """
    late = (1 + machines.late) * slower - 1
    if not machines.has_spot:
        steady = steady_outlook(machines.price_per_hour, step_s, batch, goal, late)
        return steady.later(goal.first_start_s, machines.price_per_hour)
    kinds = paid(machines, goal)
    recovery, run_s = Recovery(goal.transience.start_up_s, checkpoint_s), goal.steps(batch) * step_s
    median = expect_run(TransientWork(run_s, kinds, recovery))
    most = expect_run(TransientWork(run_s * (1 + late), kinds, recovery))
    return Outlook(median.time_s.median, most.time_s.most, median.money.median, most.money.most)


def paid(machines: MachineSet, goal: Goal) -> tuple[Machines, ...]:
    """Return the machines of a set as what is paid and may be lost."""
    lifetime_of = goal.transience.lifetime_of
    return tuple(
        Machines(count, rental.price_per_hour, lifetime_of(rental.offer.gpu) if rental.spot else None)
        for rental, count in machines.parts
    )


def steady_outlook(
    price_per_hour: float, step_s: float, batch: int, goal: Goal, late: float = PREDICTION_ERROR
) -> Outlook:
    """Return time and money of a run on machines that stay and are up; of a bound on the step, a bound on both.

    ``late`` is by which part nine of ten runs are at most longer than predicted.
    """
    run_s = goal.steps(batch) * step_s
    money = price_per_hour * run_s / HOUR_S
    more = 1 + late
    return Outlook(run_s, run_s * more, money, money * more)


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """A set of machines whose plan was searched for.

    Attributes:
        machines: What is rented.
        batch: Samples in a step.
        step: The best step found.
        outlook: Time and money of the whole run.
        fails: Which limits it does not keep: "deadline", "budget".
    """

    machines: MachineSet
    batch: int
    step: StepFound
    outlook: Outlook
    fails: tuple[str, ...]

    @property
    def samples_per_s(self) -> float:
        """Divide the batch by the step: samples per second."""
        return self.batch / self.step.step_s


def rank(option: Option, goal: Goal) -> tuple[object, ...]:
    """Order options by value, known networks first, time or money, fewer machines."""
    outlook = option.outlook
    other = outlook.median_s if goal.minimises_money else outlook.median_money
    machines = option.machines
    return (
        _rounded(outlook.value(goal)),
        machines.guesses_network,
        _rounded(other),
        machines.count,
        machines.title,
        option.batch,
    )


def _rounded(value: float) -> float:
    """Return a value as it is told apart from others; steps of one plan differ by rounding where networks differ."""
    return float(f"{value:.9g}")


def excess(option: Option, goal: Goal) -> float:
    """Return by which part an option exceeds the limit that it breaks by the most; 0 where it keeps all."""
    late = 0.0 if goal.deadline_s is None else option.outlook.most_s / goal.deadline_s - 1
    dear = 0.0 if goal.budget is None else option.outlook.most_money / goal.budget - 1
    return max(late, dear, 0.0)


def let_in(ranked: Sequence[Option], best: Option, goal: Goal) -> Option | None:
    """Return the set to tell of those that break a limit: the one that a wider limit is worth the most for.

    Of sets that would be better than the best, the best of those within reach of the limits, else the one that comes
    nearest to them; where none would be better, the one that comes nearest.

    Args:
        ranked: All, the best value first.
        best: That keeps all limits.
        goal: What is asked.
    """
    failing = [option for option in ranked if option.fails]
    better = [option for option in failing if option.outlook.value(goal) < best.outlook.value(goal)]
    in_reach = (option for option in better if excess(option, goal) <= WITHIN_REACH)
    return next(in_reach, min(better or failing, key=lambda option: excess(option, goal), default=None))


def front_of(options: Iterable[Option]) -> list[Option]:
    """Return the options that no other beats in both time and money, the fastest first."""
    ordered = sorted(options, key=lambda o: (o.outlook.median_s, o.outlook.median_money, o.machines.title))
    front: list[Option] = []
    for option in ordered:
        if not front or option.outlook.median_money < front[-1].outlook.median_money * (1 - _GAP):
            front.append(option)
    return front
