"""The rule ``servers``: replicas push gradients to parameter servers and pull weights from them.

With S bytes of gradients every replica sends S and receives S in a step, through the card that it may share with the
others of its machine. ``staleness`` is the number of steps by which a pull may miss pushes.

What the servers cost is in the plan: the cores that carry all replicas' gradients in the time of a batch
(``cost/server_cost.py``). A stage's time counts a push and a pull as what an all-reduce of as much takes, as the search
does, 2 (k - 1) / k S; they are 2 S, at two replicas twice that.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from heterps_compile.errors import InputError

from .all_reduce_rule import ring_exchange
from .amounts import Amounts
from .handling import Handling, Work, flat_gradients
from .rule import BOUNDED, EXACT, NOTHING, Exactness, Exchange, SyncGroup, SyncRule


@dataclass(frozen=True, slots=True)
class Servers(SyncRule):
    """Push to and pull from servers.

    Attributes:
        staleness: Steps by which pulls may miss pushes.
    """

    staleness: int = 0

    name: ClassVar[str] = "servers"
    example: ClassVar[str] = "servers(staleness=4)"
    source: ClassVar[str] = "HeterPS, arXiv 2111.10635"

    def __post_init__(self) -> None:
        """Refuse a staleness below 0.

        Raises:
            InputError: where it is.
        """
        if self.staleness < 0:
            raise InputError(
                f"the staleness of servers is {self.staleness}; it must be 0 steps or more, such as {self.example}"
            )

    @property
    def exactness(self) -> Exactness:
        """Return exact without a staleness, else bounded."""
        return BOUNDED if self.staleness else EXACT

    @property
    def uses_servers(self) -> bool:
        """Return that it does."""
        return True

    def exchange(self, group: SyncGroup) -> Exchange:
        """Return a push and a pull of every replica, and the time that the search counts for them."""
        if not group.agrees:
            return NOTHING
        as_ring = ring_exchange(group.gradient_bytes, group.replicas, group.network)
        size_bytes = group.gradient_bytes
        return replace(as_ring, sent_bytes=2 * group.replicas * size_bytes, card_bytes=float(group.inside * size_bytes))

    def amounts(self, group: SyncGroup) -> Amounts:
        """Return the gradients, in a ring, as the search counts them."""
        return Amounts(ring_bytes=group.gradient_bytes)

    def handling(self, group: SyncGroup) -> Handling:
        """Return the buffers, the copy that is pushed, and what is pulled put in its place."""
        return Handling(flat_gradients(group.gradient_bytes) + Work(moved=4 * group.gradient_bytes))
