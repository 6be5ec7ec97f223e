"""Which validation was the best so far, and how many have passed since.

It follows from what checkpoints keep: the metrics of their own validation, and how many there had been by then::

    validation    1     2     3     4     5
    auc           0.70  0.74  0.73  0.72  0.73       auc:max
    best          1     2     2     2     2
    stale         0     0     1     2     3          --stop-after 3: stop

An equal value is no improvement. Left out: the files (``checkpoint/folder.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short

LOSS = "loss"
"""The metric that every validation has: the training file's loss, lowest is best."""

_WAYS = {"max": True, "min": False}


@dataclass(frozen=True, slots=True)
class BestMetric:
    """The metric that says which validation is the best.

    Attributes:
        name: Of the metric.
        is_highest: Whether the highest value is the best, else the lowest.
    """

    name: str
    is_highest: bool

    def __str__(self) -> str:
        return f"{'highest' if self.is_highest else 'lowest'} {printable(self.name)}"

    def is_better(self, value: float, than: float) -> bool:
        """Tell whether a value is better than another one."""
        return value > than if self.is_highest else value < than


def parse_best(text: str) -> BestMetric:
    """Read what a person writes after ``--keep-best``: ``loss``, ``auc:max``, ``error:min``.

    Raises:
        InputError: where it does not say which end of the metric is the best.
    """
    name, mark, way = text.rpartition(":")
    if text == LOSS:
        return BestMetric(LOSS, is_highest=False)
    if not mark or not name or way not in _WAYS:
        shown = printable(name if name and mark else text)[:40]
        raise InputError(
            f"--keep-best {short(text)} does not say which value is the best; write {shown}:max for the highest, "
            f"{shown}:min for the lowest ({LOSS} alone is the lowest loss)"
        )
    if name == LOSS and _WAYS[way]:
        raise InputError(f"--keep-best {LOSS}:max would keep the worst; write --keep-best {LOSS}")
    return BestMetric(name, _WAYS[way])


@dataclass(frozen=True, slots=True)
class Best:
    """The best validation so far.

    Attributes:
        step: Steps done when it was made.
        value: Of the metric.
        validations: How many there had been, this one included.
    """

    step: int
    value: float
    validations: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands among its validations.

    Attributes:
        validations: So far, those before a checkpoint that it went on from included.
        best: The best of them; None where there is none, or nobody says what the best is.
    """

    validations: int = 0
    best: Best | None = None

    def after(self, metric: BestMetric | None, step: int, metrics: Mapping[str, float]) -> "Standing":
        """Return where it stands after one more validation.

        Args:
            metric: Says which is the best; None for nothing.
            step: Steps done.
            metrics: Of the validation, with that one among them.
        """
        validations, best = self.validations + 1, self.best
        if metric is not None and (best is None or metric.is_better(metrics[metric.name], best.value)):
            best = Best(step, metrics[metric.name], validations)
        return Standing(validations, best)

    @property
    def stale(self) -> int:
        """Return how many validations there were after the best one."""
        return 0 if self.best is None else self.validations - self.best.validations


BEFORE_ANY = Standing()
"""Where a run stands before its first validation."""
