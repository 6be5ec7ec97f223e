"""The rule ``all-reduce``: a ring sums all gradients, and every replica takes the same step.

Bytes of k replicas with S bytes of gradients each: every replica sends 2 (k - 1) / k S, all together 2 (k - 1) S
(``network.py``). Where u' replicas share a machine they sum there first, so that a card sends 2 (m - 1) / m S.
"""

from dataclasses import dataclass
from typing import ClassVar

from .amounts import Amounts
from .handling import Handling, flat_gradients, summed
from .network import Network
from .rule import EXACT, NOTHING, Exactness, Exchange, SyncGroup, SyncRule


def ring_exchange(size_bytes: int, replicas: int, network: Network) -> Exchange:
    """Return what a ring all-reduce of so many bytes moves and takes, inside machines first."""
    if replicas < 2 or size_bytes <= 0:
        return NOTHING
    machines = network.machines(replicas)
    # in each machine its replicas sum and spread the sum, and one ring goes over the machines
    sent_bytes = 2 * (replicas - machines) * size_bytes + 2 * (machines - 1) * size_bytes
    card_bytes = 2 * (machines - 1) / machines * size_bytes
    return Exchange(sent_bytes, card_bytes, network.sums_s(size_bytes, replicas), network.hops_s(replicas))


@dataclass(frozen=True, slots=True)
class AllReduce(SyncRule):
    """Sum all gradients in a ring."""

    name: ClassVar[str] = "all-reduce"
    example: ClassVar[str] = "all-reduce"
    source: ClassVar[str] = "Patarasuk and Yuan, JPDC 2009"

    @property
    def exactness(self) -> Exactness:
        """Return that a step is that of one process."""
        return EXACT

    def exchange(self, group: SyncGroup) -> Exchange:
        """Return a ring all-reduce of the gradients."""
        return ring_exchange(group.gradient_bytes, group.replicas, group.network)

    def amounts(self, group: SyncGroup) -> Amounts:
        """Return the gradients, in the ring."""
        return Amounts(ring_bytes=group.gradient_bytes)

    def handling(self, group: SyncGroup) -> Handling:
        """Return the buffers, and what the ring adds up."""
        return Handling(flat_gradients(group.gradient_bytes), shared=summed(group.gradient_bytes))
