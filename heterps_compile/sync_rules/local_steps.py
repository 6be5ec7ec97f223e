"""The rule ``local``: replicas step on their own gradients, and average their weights every so many steps.

The exchange is a ring all-reduce of the weights, once in ``steps`` steps. ``average`` keeps the last mean; ``mm`` and
``mc`` keep predictors for data that come in blocks, one after the other (Ding et al.): they are algorithms
(``runtime/sync/algorithms/``) that no plan and no run can have, for neither knows blocks.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from heterps_compile.errors import InputError

from .all_reduce_rule import ring_exchange
from .amounts import Amounts
from .handling import Handling, Work, flat_gradients, summed
from .rule import ANY, BOUNDED, Exactness, Exchange, SyncGroup, SyncRule


@dataclass(frozen=True, slots=True)
class LocalSteps(SyncRule):
    """Average weights now and then.

    Attributes:
        steps: Between two averages, 1 or more.
        rule: What is kept of the averages.
    """

    steps: int
    rule: Literal["average", "mm", "mc"] = "average"

    name: ClassVar[str] = "local"
    example: ClassVar[str] = "local(steps=4)"
    source: ClassVar[str] = "MM- and MC-PSGD, arXiv 2002.07454"

    def __post_init__(self) -> None:
        """Refuse a number of steps below 1.

        Raises:
            InputError: where it is.
        """
        if self.steps < 1:
            raise InputError(f"steps of local is {self.steps}; it must be 1 or more, such as {self.example}")

    @property
    def exactness(self) -> Exactness:
        """Return that replicas are apart for so many steps at the most; predictors of blocks are another model."""
        return BOUNDED if self.rule == "average" else ANY

    @property
    def period_steps(self) -> int:
        """Return the steps from one exchange to the next."""
        return self.steps

    def exchange(self, group: SyncGroup) -> Exchange:
        """Return a ring all-reduce of the weights."""
        return ring_exchange(group.parameter_bytes, group.replicas, group.network)

    def extra_bytes(self, group: SyncGroup) -> int:
        """Return the bytes of the copy of the weights that becomes the mean."""
        return group.parameter_bytes if group.agrees else 0

    def amounts(self, group: SyncGroup) -> Amounts:
        """Return the part of the weights that a step sums, and their copy."""
        return Amounts(ring_bytes=group.parameter_bytes / self.steps, held_bytes=group.parameter_bytes)

    def handling(self, group: SyncGroup) -> Handling:
        """Return buffers that become means, and of a mean of weights its part: copied, scaled, put back; added up."""
        means, weights_bytes = Work(moved=2 * group.gradient_bytes), group.parameter_bytes / self.steps
        once = flat_gradients(group.gradient_bytes) + means + Work(moved=6 * weights_bytes)
        return Handling(once, shared=summed(weights_bytes))

    def refusal(self, group: SyncGroup) -> str:
        """Refuse predictors, which no run has."""
        if self.rule == "average":
            return ""
        return "its predictors are one for each block of the data, and a run does not know blocks; take rule=average"
