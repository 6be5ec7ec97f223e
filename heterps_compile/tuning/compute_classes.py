"""Compute classes: workers that are alike, from a pool; and what a trial takes on one, predicted and then measured.

The prediction is a function of the caller's, such as the cost model with the trial's model put in. What trials took
corrects it, by one factor for each part of the space on each class: the geometric mean of measured over predicted
times, with the weight of ``PRIOR`` measured trials on the mean of the class over all parts, and of that likewise on 1.

Left out: workers that join and leave.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import ConfigDict

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short
from heterps_compile.strict_json import STRICT

from .space import Config

PRIOR = 2.0
_SECONDS_AN_HOUR = 3600
_MOST_WORKERS = 100_000


@dataclass(frozen=True, slots=True)
class ComputeClass:
    """Workers that are alike; each runs one trial at a time.

    Attributes:
        name: Unique among the classes.
        workers: Number of workers, called ``name-0``, ``name-1``, and so on.
        memory_bytes: Of one worker.
        price_per_hour: Of one worker, in the currency of the budget.
        flops_per_s: Of one worker, in float32.
        units: Of one worker, over all device types.
        types: Names of one worker's device types, with the units of each; empty in a search that began with a version
            that had one type a worker.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    workers: int
    memory_bytes: float
    price_per_hour: float
    flops_per_s: float
    units: int = 1
    types: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            InputError: if one is out of its range.
        """
        shown = f"compute class {short(printable(self.name))}"
        if not 1 <= self.workers <= _MOST_WORKERS:
            raise InputError(f"{shown} has {self.workers} workers; expected 1 to {_MOST_WORKERS:,}")
        if not all(0 <= number < math.inf for number in (self.memory_bytes, self.price_per_hour, self.flops_per_s)):
            raise InputError(f"{shown} has a number that is negative or not finite")
        types = dict(self.types) or {self.name: self.units}
        if min(types.values()) < 1 or sum(types.values()) != self.units:
            raise InputError(f"{shown} has {self.units} units; expected those of its device types, 1 or more of each")

    @property
    def worker_names(self) -> tuple[str, ...]:
        """Return the names of its workers."""
        return tuple(f"{self.name}-{slot}" for slot in range(self.workers))

    def price_of(self, time_s: float) -> float:
        """Return what a worker costs for a time."""
        return time_s / _SECONDS_AN_HOUR * self.price_per_hour


@dataclass(frozen=True, slots=True)
class TrialCost:
    """What a trial takes on a class.

    Attributes:
        time_s: Seconds.
        memory_bytes: Of memory; infinite where it cannot run there at all.
        reason: Why it cannot, where somebody knows more than that the memory is too little.
    """

    time_s: float
    memory_bytes: float = 0.0
    reason: str = ""


Predict = Callable[[Config, float, ComputeClass], TrialCost]
"""From a configuration, how far it is trained beyond where it begins, and a class."""


@dataclass(slots=True)
class _Ratios:
    """Measured over predicted times, as logarithms."""

    total: float = 0.0
    count: int = 0

    def add(self, ratio: float) -> None:
        self.total += ratio
        self.count += 1

    def mean(self, before: float) -> float:
        """Return the mean, where ``PRIOR`` trials had a ratio before any was measured."""
        return (self.total + PRIOR * before) / (self.count + PRIOR)


@dataclass(slots=True)
class CorrectedTimes:
    """Predicted times, corrected by those that were measured."""

    predict: Predict
    _by_class: dict[str, _Ratios] = field(default_factory=dict)
    _by_part: dict[tuple[int, str], _Ratios] = field(default_factory=dict)

    def cost(self, part: int, config: Config, fidelity: float, of: ComputeClass) -> TrialCost:
        """Return what a trial of a part of the space takes on a class.

        Raises:
            InputError: where the prediction is no positive time, or no amount of memory.
        """
        found = self.predict(config, fidelity, of)
        if not (0 < found.time_s < math.inf and found.memory_bytes >= 0):
            raise InputError(
                f"a trial on {printable(of.name)!r} is predicted to take {found.time_s} s and {found.memory_bytes} "
                "bytes; a prediction is a positive time, and no negative memory"
            )
        return TrialCost(found.time_s * self.factor(part, of), found.memory_bytes, found.reason)

    def factor(self, part: int, of: ComputeClass) -> float:
        """Return by how much times of a part are longer on a class than predicted."""
        shared = self._by_class.get(of.name, _Ratios()).mean(0.0)
        return math.exp(self._by_part.get((part, of.name), _Ratios()).mean(shared))

    def measured(self, part: int, config: Config, fidelity: float, of: ComputeClass, time_s: float) -> None:
        """Take what a trial took on a class: a positive time."""
        ratio = math.log(time_s / self.predict(config, fidelity, of).time_s)
        self._by_class.setdefault(of.name, _Ratios()).add(ratio)
        self._by_part.setdefault((part, of.name), _Ratios()).add(ratio)


def check_classes(classes: Sequence[ComputeClass]) -> None:
    """Check that there are classes, with different names.

    Raises:
        InputError: if there are none, too many workers, or two of a name.
    """
    if not classes:
        raise InputError("there is no compute class; name one")
    if len({each.name for each in classes}) < len(classes):
        raise InputError("two compute classes have one name; names must differ")
    workers = sum(each.workers for each in classes)
    if workers > _MOST_WORKERS:
        raise InputError(f"the classes have {workers:,} workers; expected {_MOST_WORKERS:,} or fewer")
