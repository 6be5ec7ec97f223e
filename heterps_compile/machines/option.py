"""A set of machines whose plan was searched for, and how such sets are compared.

Left out: which sets there are (``sets.py``), which of them are searched for (``search.py``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .goal import Goal
from .machine_set import MachineSet
from .outlook import Outlook
from .step_times import StepFound

WITHIN_REACH = 0.5
"""By which part limits are widened at the most for a set that is better; one that breaks them by more is no choice."""

_GAP = 1e-9  # relative, of values that are equal but for rounding


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
