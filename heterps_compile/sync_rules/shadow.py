"""The rule ``shadow``: replicas step on their own gradients, and a thread beside them brings their weights together.

Every ``every`` steps the thread takes a copy of the weights, averages it over the replicas in a ring all-reduce, and
moves the weights towards the result: ``average`` and ``bmuf`` (with block momentum) to the mean, ``easgd`` a part of
the way to a centre. Training goes on meanwhile and waits for nothing, so that nothing is exposed.

Left out: what the exchange takes of a link on which micro-batches travel too.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from heterps_compile.errors import InputError

from .all_reduce_rule import ring_exchange
from .amounts import Amounts
from .handling import Handling, Work, flat_gradients, summed
from .rule import ANY, OWN, Exactness, Exchange, Exposed, SyncGroup, SyncRule

_COPIES = {"average": 3, "easgd": 5, "bmuf": 5}
"""Copies of the weights: the one that becomes the mean, the replica's own beside it, and the move that follows; besides
a centre, or the last block, and a velocity."""

_MOVED = {"average": 3, "easgd": 11, "bmuf": 13}
"""Times that the weights are read or written for the move that follows from a mean."""

_MOVED_ALWAYS = 2 + 4 + 21 + 7
"""Likewise whatever the move is: copied; kept beside and scaled; compared with the mean, in double precision; moved."""


@dataclass(frozen=True, slots=True)
class Shadow(SyncRule):
    """Average weights in the background.

    Attributes:
        every: Steps from one exchange to the next, 1 or more.
        rule: What becomes of the mean.
    """

    every: int
    rule: Literal["easgd", "average", "bmuf"] = "easgd"

    name: ClassVar[str] = "shadow"
    example: ClassVar[str] = "shadow(every=5)"
    source: ClassVar[str] = "ShadowSync, arXiv 2003.03477"

    def __post_init__(self) -> None:
        """Refuse a number of steps below 1.

        Raises:
            InputError: where it is.
        """
        if self.every < 1:
            raise InputError(f"every of shadow is {self.every}; it must be 1 step or more, such as {self.example}")

    @property
    def exactness(self) -> Exactness:
        """Return that nothing bounds how far replicas are apart."""
        return ANY

    @property
    def of_sparse(self) -> str:
        """Return that each replica steps on its own."""
        return OWN

    @property
    def period_steps(self) -> int:
        """Return the steps from one exchange to the next."""
        return self.every

    def exchange(self, group: SyncGroup) -> Exchange:
        """Return a ring all-reduce of the weights."""
        return ring_exchange(group.parameter_bytes, group.replicas, group.network)

    def exposed(self, group: SyncGroup) -> Exposed:
        """Return nothing: training waits for no exchange."""
        return Exposed()

    def extra_bytes(self, group: SyncGroup) -> int:
        """Return the bytes of the copies of the weights."""
        return _COPIES[self.rule] * group.parameter_bytes if group.agrees else 0

    def amounts(self, group: SyncGroup) -> Amounts:
        """Return the copies of the weights; nothing is waited for."""
        return Amounts(held_bytes=_COPIES[self.rule] * group.parameter_bytes)

    def handling(self, group: SyncGroup) -> Handling:
        """Return buffers that become means, and the part of a move; of the thread too, as a unit is one processor."""
        means, weights_bytes = Work(moved=2 * group.gradient_bytes), group.parameter_bytes / self.every
        moves = Work(moved=(_MOVED_ALWAYS + _MOVED[self.rule]) * weights_bytes)
        return Handling(flat_gradients(group.gradient_bytes) + means + moves, shared=summed(weights_bytes))
