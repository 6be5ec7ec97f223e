"""Compute classes: workers that are alike, from a pool; and what a trial takes on one, predicted and then measured.

The prediction is a function of the caller's, such as the cost model with the trial's model put in. What trials took
corrects it, by one factor for each part of the space on each class: the geometric mean of measured over predicted
times, with the weight of ``PRIOR`` measured trials on the mean of the class over all parts, and of that likewise on 1.

Left out: workers that join and leave.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from heterps_compile.cluster.devices import Cluster
from heterps_compile.errors import InputError
from heterps_compile.escape import printable

from .space import Config

PRIOR = 2.0
_SECONDS_AN_HOUR = 3600


@dataclass(frozen=True, slots=True)
class ComputeClass:
    """Workers that are alike; each runs one trial at a time.

    Attributes:
        name: Unique among the classes.
        workers: How many there are.
        memory_bytes: Of one worker.
        price_per_hour: Of one worker, in the currency of the budget.
        flops_per_s: What one reaches in float32.
    """

    name: str
    workers: int
    memory_bytes: float
    price_per_hour: float
    flops_per_s: float

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            InputError: where there are no workers, or a number is negative or none.
        """
        if self.workers < 1:
            raise InputError(f"compute class {printable(self.name)!r} has {self.workers} workers; it needs one")
        numbers = (self.memory_bytes, self.price_per_hour, self.flops_per_s)
        if not all(number >= 0 for number in numbers) or not math.isfinite(self.price_per_hour + self.flops_per_s):
            raise InputError(f"compute class {printable(self.name)!r} has a number that is negative or not finite")

    def price_of(self, time_s: float) -> float:
        """Return what a worker costs for a time."""
        return self.price_per_hour * time_s / _SECONDS_AN_HOUR


def classes_of(pool: Cluster) -> tuple[ComputeClass, ...]:
    """Return a class for every device type of a pool, each unit of it a worker."""
    return tuple(
        ComputeClass(d.name, d.max_units, d.memory_bytes, d.price_per_hour, d.flops_per_s("float32"))
        for d in pool.device_types
    )


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
    """Check that there are classes, of different names.

    Raises:
        InputError: where not.
    """
    if not classes:
        raise InputError("there is no compute class; name one")
    if len({each.name for each in classes}) < len(classes):
        raise InputError("two compute classes have one name; names must differ")
