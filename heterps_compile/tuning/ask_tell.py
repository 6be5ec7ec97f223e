"""What every search method is: it is asked for a trial, and told what came of it.

A method is a function of its seed and of the calls it got, in their order: the same calls give the same trials again.
Losses are minimised; a metric to be maximised is told with its sign turned.

Left out: when a search ends, and how trials are run.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from heterps_compile.errors import InputError
from heterps_compile.escape import short

from .space import Config, Space, Vector

NEW_DRAWS = 20
"""So often a configuration is drawn that was tried already, before it is tried again."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How long trials train.

    Attributes:
        least: The shortest trial, in the unit.
        most: A whole trial.
        eta: By how much the levels between them differ; one in ``eta`` trials is promoted.
        unit: What is counted: steps, samples or epochs.
    """

    least: float
    most: float
    eta: int = 3
    unit: str = "steps"

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            InputError: where they are no range of positive numbers, or ``eta`` is below 2.
        """
        if not 0 < self.least <= self.most < math.inf:
            raise InputError(
                f"trials train from {self.least:g} to {self.most:g} {self.unit}; the least must be above 0 and no more "
                "than the most"
            )
        if self.eta < 2:
            raise InputError(f"eta is {self.eta}; one trial in 2 or more is promoted")

    @property
    def levels(self) -> tuple[float, ...]:
        """Return the lengths of trials, ascending: the most, and parts of it by powers of ``eta``."""
        count = int(math.log(self.most / self.least) / math.log(self.eta) + 1e-9) + 1
        return tuple(self.most / self.eta**power for power in reversed(range(count)))


@dataclass(frozen=True, slots=True)
class Trial:
    """What to run next.

    Attributes:
        number: From 0 on, in the order asked for.
        config: The configuration.
        vector: The configuration's place in the cube of the space.
        fidelity: How far to train in all, in the unit of the search.
        continues: Number of the trial, of the same configuration, whose checkpoint this one trains on from.
        place: Where the result belongs in the method.
    """

    number: int
    config: Config
    vector: Vector
    fidelity: float
    continues: int | None = None
    place: tuple[int, ...] = ()


def identity(config: Config) -> str:
    """Return what two configurations of one space share where they are the same."""
    return repr(dict(config))


class Method(ABC):
    """A search method, which keeps account of what it was asked for and told."""

    def __init__(self, space: Space, fidelity: Fidelity, seed: int) -> None:
        self.space = space
        self.fidelity = fidelity
        self.random = np.random.default_rng(seed)
        self.open: dict[int, Trial] = {}
        self.best: tuple[Trial, float] | None = None
        self._asked = 0
        self._tried: set[tuple[float, str]] = set()

    def ask(self) -> Trial:
        """Return the next trial; asking again before it is told is how trials run at once.

        Raises:
            InfeasibleError: where the space forbids whatever is drawn.
        """
        trial = self.propose()
        self.open[trial.number] = trial
        self._tried.add((trial.fidelity, identity(trial.config)))
        self._asked += 1
        return trial

    def next_trial(
        self, vector: Vector, fidelity: float, continues: int | None = None, place: tuple[int, ...] = ()
    ) -> Trial:
        """Make the trial at a vector of the cube, with the next number."""
        return Trial(self._asked, self.space.config_at(vector), vector, fidelity, continues, place)

    def tell(self, number: int, loss: float) -> None:
        """Take the loss of a trial.

        Raises:
            InputError: where the trial is not running, or the loss is no finite number.
        """
        if not math.isfinite(loss):
            raise InputError(f"trial {short(number)} reported {loss}; tell it as failed, or report a finite number")
        self._close(number, loss)

    def tell_failed(self, number: int) -> None:
        """Take it that a trial has no result: it counts as worse than every other.

        Raises:
            InputError: where the trial is not running.
        """
        self._close(number, math.inf)

    def is_new(self, config: Config, fidelity: float) -> bool:
        """Whether a configuration was not tried yet at a fidelity: other vectors of the cube may stand for it too."""
        return (fidelity, identity(config)) not in self._tried

    def draw_new(self, fidelity: float) -> Vector:
        """Draw a vector whose configuration was not tried at a fidelity; where 20 draws in a row were, the last one.

        Raises:
            InfeasibleError: where the space forbids whatever is drawn.
        """
        vector = self.space.draw(self.random)
        for _ in range(NEW_DRAWS - 1):
            if self.is_new(self.space.config_at(vector), fidelity):
                break
            vector = self.space.draw(self.random)
        return vector

    def _close(self, number: int, loss: float) -> None:
        if number not in self.open:
            known = "was told already" if 0 <= number < self._asked else "was never asked for"
            raise InputError(f"trial {short(number)} {known}; tell each trial once")
        trial = self.open.pop(number)
        if math.isfinite(loss) and (
            self.best is None or (-trial.fidelity, loss) < (-self.best[0].fidelity, self.best[1])
        ):
            self.best = trial, loss
        self.learn(trial, loss)

    @abstractmethod
    def propose(self) -> Trial:
        """Choose the next trial."""

    @abstractmethod
    def learn(self, trial: Trial, loss: float) -> None:
        """Take the loss of a trial, infinite where it failed."""
