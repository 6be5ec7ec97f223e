"""SHADHO's assignment: the disjoint parts of a space are searched apart, and go to the compute classes that suit them.

Any search method can be run under it, one search a part. A worker that is free asks for a trial for its class; which
part it comes from is decided by a rule:

====== ==========================================================================================
whole  the space is not split: one search of all of it, whichever class asks
plain  every part in turn, whichever class asks: what a search that knows of no classes does
cost   what a trial is predicted to take on each class, corrected by what trials took
====== ==========================================================================================

Whatever the rule: no trial is given to a class whose memory it is predicted to exceed. It waits for a class that it
fits, and one that fits none is told as failed, with the reason. Shares are made anew every ``REVIEWED`` results.

Left out: trials on several workers, a price in the choice of a class (a budget ends the search), starting anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from heterps_compile.errors import InfeasibleError, InputError, UnknownNameError
from heterps_compile.escape import printable
from heterps_compile.units import format_bytes

from .ask_tell import Fidelity, Method, Trial
from .class_shares import Matrix, shares_by_cost
from .compute_classes import ComputeClass, CorrectedTimes, Predict, TrialCost, check_classes
from .search_methods import make_search
from .space import Config, Space
from .subspaces import Subspace, split_space
from .tune_options import RULE_NAMES

_UNASSIGNED = ("whole", "plain")
REVIEWED = 25
LEAST_SHARE = 0.5
"""How much of the trials that it should get a part gets at least, where others run more an hour."""
PROBES = 32
RULE = "cost"
"""Unless another is asked for: it gains, and costs no result (``python tools/bench_tune.py assignment``)."""

_MOST_MISFITS = 100


@dataclass(frozen=True, slots=True)
class Assigned:
    """A trial with its worker's class.

    Attributes:
        number: From 0 on, over all parts.
        trial: Of its part's search; ``trial.continues`` is a number of that search.
        part: Index of the part of the space.
        continues: The number, over all parts, of the trial whose checkpoint this one trains on from.
        class_name: Where it runs.
        predicted_s: What it is predicted to take there.
    """

    number: int
    trial: Trial
    part: int
    continues: int | None
    class_name: str
    predicted_s: float

    @property
    def config(self) -> Config:
        """Return the configuration."""
        return self.trial.config


@dataclass(slots=True)
class _Part:
    """A part of the space, and how its search stands."""

    subspace: Subspace
    search: Method
    waiting: list[Trial] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    reached: dict[int, float] = field(default_factory=dict)  # how far each trial with a result was trained


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What is searched, and how.

    Attributes:
        space: The whole space.
        method: Name of the search method of every part.
        fidelity: How long trials train.
        seed: Of everything drawn.
        rule: How trials are assigned; one of ``RULE_NAMES``.
        least_share: From 0 to 1, see ``LEAST_SHARE``; 1 keeps the mix of the parts as it is wanted.
        budget: What may be spent on workers, in the currency of their prices.
        probes: Configurations of every part whose times the first shares are made of.
    """

    space: Space
    method: str
    fidelity: Fidelity
    seed: int = 0
    rule: str = RULE
    least_share: float = LEAST_SHARE
    budget: float = math.inf
    probes: int = PROBES

    def __post_init__(self) -> None:
        """Check the rule and the numbers.

        Raises:
            UnknownNameError: where there is no such rule.
            InputError: where a number is out of its range.
        """
        if self.rule not in RULE_NAMES:
            raise UnknownNameError("rule of assignment", self.rule, RULE_NAMES)
        if not 0 <= self.least_share <= 1:
            raise InputError(f"least_share is {self.least_share}; it is a part of the trials, from 0 to 1")
        if not self.budget > 0:
            raise InputError(f"the budget is {self.budget}; it must be above 0")


def parts_of(space: Space, rule: str) -> tuple[Subspace, ...]:
    """Return the parts of a space that are searched apart under a rule.

    Raises:
        InputError: where there are more than 256, or none, since all is forbidden.
    """
    return (Subspace("all", space),) if rule == "whole" else split_space(space)


class AssignedSearch:
    """A search whose trials are given to classes of workers."""

    def __init__(self, settings: SearchSettings, classes: Sequence[ComputeClass], predict: Predict) -> None:
        check_classes(classes)
        self.settings = settings
        self.classes = {each.name: each for each in classes}
        self.times = CorrectedTimes(predict)
        self.open: dict[int, Assigned] = {}
        self.refused: list[tuple[Config, str]] = []
        self.spent = 0.0
        self._random = np.random.default_rng([settings.seed, 1])
        self._parts = [
            _Part(part, make_search(settings.method, part.space, settings.fidelity, settings.seed * 1_000 + index))
            for index, part in enumerate(parts_of(settings.space, settings.rule))
        ]
        self._probes = self._probed()
        self._asked = 0
        self._told = 0
        self._credit = np.zeros((len(self._parts), len(classes)))
        self.shares = self._shares()

    @property
    def parts(self) -> tuple[Subspace, ...]:
        """Return the disjoint parts of the space."""
        return tuple(part.subspace for part in self._parts)

    @property
    def has_waiting(self) -> bool:
        """Whether trials wait for a class that they fit."""
        return any(part.waiting for part in self._parts)

    @property
    def best(self) -> tuple[Trial, float] | None:
        """Return the trial with the lowest loss among the longest ones of all parts."""
        found = [part.search.best for part in self._parts if part.search.best is not None]
        return min(found, key=lambda best: (-best[0].fidelity, best[1]), default=None)

    def ask(self, class_name: str) -> Assigned | None:
        """Return a trial for a free worker; None where what is left of the budget does not last for one.

        Raises:
            UnknownNameError: where there is no such class.
            InfeasibleError: where a hundred trials in a row fit no class, or none fits this one.
        """
        if class_name not in self.classes:
            raise UnknownNameError("compute class", class_name, self.classes)
        of = self.classes[class_name]
        for part in self._in_turn(of):
            trial = self._fitting(part, of)
            if trial is not None:
                return self._start(part, trial, of)
        raise InfeasibleError(
            f"a hundred trials in a row need more than the {format_bytes(of.memory_bytes)} of compute class "
            f"{printable(class_name)!r}; leave the class out, or make trials smaller"
        )

    def tell(self, number: int, loss: float, time_s: float, lost_s: float = 0.0) -> None:
        """Take the loss of a trial, what it took, and what attempts at it took that failed before: that is paid too.

        Raises:
            InputError: where the trial is not running, or a number is not finite.
        """
        assigned = self._running(number, time_s)
        part = self._parts[assigned.part]
        part.search.tell(assigned.trial.number, loss)
        part.reached[assigned.trial.number] = assigned.trial.fidelity
        self._close(assigned, time_s, has_result=math.isfinite(loss))
        self.spent += self.classes[assigned.class_name].price_of(lost_s)

    def tell_failed(self, number: int, time_s: float) -> None:
        """Take it that a trial ended without a result, after a time that was paid for.

        Raises:
            InputError: where the trial is not running, or the time is not positive and finite.
        """
        assigned = self._running(number, time_s)
        self._parts[assigned.part].search.tell_failed(assigned.trial.number)
        self._close(assigned, time_s, has_result=False)

    def _running(self, number: int, time_s: float) -> Assigned:
        if number not in self.open:
            raise InputError(f"trial {number} is not running; tell each trial once")
        if not 0 < time_s < math.inf:
            raise InputError(f"trial {number} took {time_s} s; a time is positive and finite")
        return self.open[number]

    def _close(self, assigned: Assigned, time_s: float, *, has_result: bool) -> None:
        of = self.classes[assigned.class_name]
        if has_result:
            trained = self._trained(self._parts[assigned.part], assigned.trial)
            self.times.measured(assigned.part, assigned.config, trained, of, time_s)
        del self.open[assigned.number]
        self.spent += of.price_of(time_s)
        self._told += 1
        if self._told % REVIEWED == 0:
            self.shares = self._shares()

    def _start(self, index: int, trial: Trial, of: ComputeClass) -> Assigned | None:
        part = self._parts[index]
        predicted_s = self._cost(index, trial, of).time_s
        promised = sum(self.classes[each.class_name].price_of(each.predicted_s) for each in self.open.values())
        if self.spent + promised + of.price_of(predicted_s) > self.settings.budget:
            part.waiting.insert(0, trial)
            return None
        continues = None if trial.continues is None else part.numbers[trial.continues]
        assigned = Assigned(self._asked, trial, index, continues, of.name, predicted_s)
        part.numbers[trial.number] = assigned.number
        self.open[assigned.number] = assigned
        self._asked += 1
        self._credit_of(of)[index] -= 1
        return assigned

    def _in_turn(self, of: ComputeClass) -> list[int]:
        """Return the parts, the one first that a class owes the most (smooth weighted round robin).

        At every turn each part is credited with its share; a trial of it costs one.
        """
        shares = self.shares[:, list(self.classes).index(of.name)]
        if shares.sum() <= 0:  # a class that nothing is meant for helps with everything
            shares = np.ones(len(self._parts))
        shares = shares / shares.sum()
        owed = self._credit_of(of)
        owed += shares
        return sorted(range(len(self._parts)), key=lambda part: (shares[part] <= 0, -owed[part], part))

    def _credit_of(self, of: ComputeClass) -> Matrix:
        """Return the account of a class; there is one for all where the rule knows of no classes."""
        return self._credit[:, 0 if self.settings.rule in _UNASSIGNED else list(self.classes).index(of.name)]

    def _fitting(self, index: int, of: ComputeClass) -> Trial | None:
        """Return a trial of a part that fits the class: one that waits, else a new one."""
        part = self._parts[index]
        for at, trial in enumerate(part.waiting):
            if self._fits(index, trial, of):
                return part.waiting.pop(at)
        for _ in range(_MOST_MISFITS):
            if len(part.waiting) >= _MOST_MISFITS:
                return None
            trial = part.search.ask()
            if self._fits(index, trial, of):
                return trial
            if any(self._fits(index, trial, other) for other in self.classes.values()):
                part.waiting.append(trial)
            else:
                self._refuse(index, trial)
        return None

    def _fits(self, index: int, trial: Trial, of: ComputeClass) -> bool:
        return self._cost(index, trial, of).memory_bytes <= of.memory_bytes

    def _cost(self, index: int, trial: Trial, of: ComputeClass) -> TrialCost:
        return self.times.cost(index, trial.config, self._trained(self._parts[index], trial), of)

    @staticmethod
    def _trained(part: _Part, trial: Trial) -> float:
        """Return how far a trial trains beyond the one that it continues."""
        return trial.fidelity - (0.0 if trial.continues is None else part.reached.get(trial.continues, 0.0))

    def _refuse(self, index: int, trial: Trial) -> None:
        largest = max(self.classes.values(), key=lambda each: each.memory_bytes)
        cost = self._cost(index, trial, largest)
        reason = cost.reason or (
            f"it needs {format_bytes(cost.memory_bytes)}, and the class with the most memory, "
            f"{printable(largest.name)!r}, has {format_bytes(largest.memory_bytes)}"
        )
        self.refused.append((trial.config, reason))
        self._parts[index].search.tell_failed(trial.number)

    def _probed(self) -> list[list[Config]]:
        return [
            [part.subspace.space.config_at(part.subspace.space.draw(self._random)) for _ in range(self.settings.probes)]
            for part in self._parts
        ]

    def _shares(self) -> Matrix:
        count, classes = len(self._parts), list(self.classes.values())
        if self.settings.rule in _UNASSIGNED:
            return np.ones((count, len(classes)))
        times_s = np.array([[self._mean_s(index, of) for of in classes] for index in range(count)])
        for index, row in enumerate(times_s):
            if not np.isfinite(row).any():
                raise InfeasibleError(
                    f"no compute class has the memory for the trials of {self._parts[index].subspace.name!r}; take "
                    "that part out of the space, or add a class with more memory"
                )
        workers = [each.workers for each in classes]
        return shares_by_cost(times_s, workers, [1 / count] * count, self.settings.least_share)

    def _mean_s(self, index: int, of: ComputeClass) -> float:
        """Return the mean time of what was drawn of a part; infinite where half of it does not fit the class."""
        most = self.settings.fidelity.most
        costs = [self.times.cost(index, config, most, of) for config in self._probes[index]]
        fitting = [cost.time_s for cost in costs if cost.memory_bytes <= of.memory_bytes]
        return math.fsum(fitting) / len(fitting) if 2 * len(fitting) > len(costs) else math.inf
