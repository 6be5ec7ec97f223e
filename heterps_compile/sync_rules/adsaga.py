"""The rule ``adsaga``: what is new of a batch's gradient is summed, and what is remembered of all batches is added.

Glasgow and Wootters, AISTATS 2022, arXiv 2009.10717. The data are ``batches`` batches that come again in every epoch.
Every replica keeps a table of its own last gradients of all of them, with the data that they are of::

    sent       the gradient of the batch, less what the table has of it
    stepped on the sum of that over replicas, and the mean of all tables

At the minimum of the sum nothing is new, so that steps of one length converge there, where those of SGD stay as far
away as batches differ. With ``delay=d`` a step takes what was sent d steps before, which travels beside the steps
between: replicas are as far ahead of each other's gradients as workers of the paper, on a schedule and not by chance.

Legend: S bytes of a replica's weights, of embeddings all rows. An exchange is a ring all-reduce of the gradients, and a
replica holds (batches + 1 + d) S.

Left out: what a delay hides of the exchange, which is counted as if a step waited for all of it.
"""

from dataclasses import dataclass
from typing import ClassVar

from heterps_compile.errors import InputError

from .all_reduce_rule import ring_exchange
from .amounts import Amounts
from .handling import Handling, Work, flat_gradients, summed
from .rule import BOUNDED, REFUSED, Exactness, Exchange, SyncGroup, SyncRule

_LONGEST_DELAY = 64


@dataclass(frozen=True, slots=True)
class Adsaga(SyncRule):
    """Sum what is new of gradients.

    Attributes:
        batches: Of the data, 2 or more.
        delay: Steps between what is sent and the step that takes it.
    """

    batches: int
    delay: int = 0

    name: ClassVar[str] = "adsaga"
    example: ClassVar[str] = "adsaga(batches=500)"
    source: ClassVar[str] = "Glasgow and Wootters, AISTATS 2022, arXiv 2009.10717"

    def __post_init__(self) -> None:
        """Refuse numbers that make no table.

        Raises:
            InputError: where there are too few batches, or the delay is none.
        """
        if self.batches < 2:
            raise InputError(
                f"batches of adsaga is {self.batches}; it must be 2 or more, the batches of an epoch, such as "
                f"{self.example}"
            )
        if not 0 <= self.delay <= min(_LONGEST_DELAY, self.batches - 1):
            raise InputError(
                f"delay of adsaga is {self.delay}; it must be 0 to {min(_LONGEST_DELAY, self.batches - 1)} steps, "
                f"fewer than there are batches"
            )

    @property
    def exactness(self) -> Exactness:
        """Return that what a step takes of other batches is an epoch or two old at the most."""
        return BOUNDED

    @property
    def of_sparse(self) -> str:
        """Return that its table is of dense gradients."""
        return REFUSED

    def table_bytes(self, size_bytes: int) -> int:
        """Return the bytes of the table of gradients of so many bytes."""
        return self.batches * size_bytes

    def exchange(self, group: SyncGroup) -> Exchange:
        """Return a ring all-reduce of the gradients."""
        return ring_exchange(group.gradient_bytes, group.replicas, group.network)

    def extra_bytes(self, group: SyncGroup) -> int:
        """Return the bytes of the table, of its mean, and of what is on its way."""
        return self._copies * group.parameter_bytes if group.agrees else 0

    @property
    def _copies(self) -> int:
        return self.batches + 1 + self.delay

    def amounts(self, group: SyncGroup) -> Amounts:
        """Return the gradients, in the ring, and what is held."""
        return Amounts(ring_bytes=group.gradient_bytes, held_bytes=self._copies * group.parameter_bytes)

    def handling(self, group: SyncGroup) -> Handling:
        """Return the buffers, what is new against the table and put into it, the mean that is added and moves on."""
        size_bytes = group.gradient_bytes
        return Handling(flat_gradients(size_bytes) + Work(moved=11 * size_bytes), shared=summed(size_bytes))
