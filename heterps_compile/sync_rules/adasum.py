"""The rule ``adasum``: gradients that point the same way are averaged, those at right angles summed.

Two gradients a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, and replicas are combined in pairs of pairs,
by recursive vector halving (AdasumRVH of the paper). In level j = 1 .. log2 k replicas that are d = 2^(j-1) apart give
each other half of what they still have; the products of every tensor, 3 float64, are summed over the 2d replicas that
hold parts of the two gradients, in j exchanges of 24 bytes a tensor; at the end halves go back the same way::

    halves       S/2 + S/4 + ... = (k - 1) / k S there, and as much back
    products     24 T (1 + 2 + ... + log2 k) of T tensors

Replicas beyond the power of two p send the first ones all they have, and get the result: 2 (k - p) S more, over all of
them 2 (k - 1) S as in a ring.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from .amounts import Amounts
from .handling import Handling, Work, flat_gradients
from .rule import ANY, NOTHING, OWN, REFUSED, Exactness, Exchange, SyncGroup, SyncRule

PRODUCTS_BYTES = 24
"""Of a tensor: a.b, a.a and b.b in float64."""


@dataclass(frozen=True, slots=True)
class Adasum(SyncRule):
    """Combine gradients by the angles between them.

    Attributes:
        on: What is combined: gradients, or the steps that the replicas' optimizers make of their own ones.
    """

    on: Literal["gradient", "step"] = "gradient"

    name: ClassVar[str] = "adasum"
    example: ClassVar[str] = "adasum"
    source: ClassVar[str] = "Maleki et al., arXiv 2006.02924"

    @property
    def exactness(self) -> Exactness:
        """Return that the step is another one: what gradients have in common counts once."""
        return ANY

    @property
    def of_sparse(self) -> str:
        """Return that steps are combined whatever made them, and of gradients dense ones alone."""
        return REFUSED if self.on == "gradient" else OWN

    def exchange(self, group: SyncGroup) -> Exchange:
        """Return the halves, their products, and what is folded in."""
        if not group.agrees:
            return NOTHING
        network = group.network
        size_bytes, products_bytes = self._size_bytes(group), PRODUCTS_BYTES * group.tensors
        levels = _levels(group.replicas)
        power = 1 << levels
        crossing = _crossing(group.replicas, group.network.units_per_machine)
        sent_bytes = 2 * (group.replicas - 1) * size_bytes + power * levels * (levels + 1) // 2 * products_bytes
        inside = (network.inner_seconds_per_byte, network.inner_latency_s)
        bytes_s = hops_s = 0.0
        for level, most in enumerate(crossing.of_levels, 1):
            slowest_s = max(inside[0], most * network.seconds_per_byte)
            exchanges = levels - level + 1  # of products, at this distance: once in this level and in all after it
            bytes_s += (2 * size_bytes / 2**level + exchanges * products_bytes) * slowest_s
            hops_s += (2 + exchanges) * (network.latency_s if most else inside[1])
        if group.replicas > power:
            bytes_s += 2 * size_bytes * max(inside[0], crossing.of_fold * network.seconds_per_byte)
            hops_s += 2 * (network.latency_s if crossing.of_fold else inside[1])
        card_bytes = crossing.size_share * size_bytes + crossing.products * products_bytes
        return Exchange(sent_bytes, card_bytes, bytes_s, hops_s)

    def extra_bytes(self, group: SyncGroup) -> int:
        """Return the bytes of what arrives, and of the weights before a step where steps are combined."""
        if not group.agrees:
            return 0
        size_bytes = self._size_bytes(group)
        arriving_bytes = size_bytes if group.replicas > 1 << _levels(group.replicas) else -(-size_bytes // 2)
        return arriving_bytes + (0 if self.on == "gradient" else group.parameter_bytes)

    def amounts(self, group: SyncGroup) -> Amounts:
        """Return what is halved, the products of its tensors, and what arrives."""
        size_bytes = self._size_bytes(group)
        weights_bytes = 0 if self.on == "gradient" else group.parameter_bytes
        return Amounts(
            ring_bytes=size_bytes,
            gather_bytes=PRODUCTS_BYTES * group.tensors if size_bytes else 0,
            held_bytes=size_bytes / 2 + weights_bytes,
            replica_bytes=size_bytes / 2,
            halves=True,
        )

    def handling(self, group: SyncGroup) -> Handling:
        """Return buffers that become means, halves that are combined and passed on; of steps, weights before and after.

        All that a replica combines is (k - 1) / k of the whole; what those beyond a power of two add is left out.
        """
        once = flat_gradients(group.gradient_bytes) + Work(moved=2 * group.gradient_bytes)
        if self.on == "step":
            once += Work(moved=12 * group.parameter_bytes)
        size_bytes = self._size_bytes(group)
        return Handling(once, shared=Work(moved=6 * size_bytes, combined=size_bytes))

    def _size_bytes(self, group: SyncGroup) -> int:
        return group.gradient_bytes if self.on == "gradient" else group.parameter_bytes


def _levels(replicas: int) -> int:
    """Return the levels of the largest power of two of replicas."""
    return replicas.bit_length() - 1


@dataclass(frozen=True, slots=True)
class _Crossing:
    """How much goes between machines.

    Attributes:
        of_levels: For every level the replicas of one machine whose partner is on another, of the machine with most.
        of_fold: The same of those that are folded in.
        size_share: What the busiest machine sends to others, as a multiple of the gradients.
        products: How many messages of products it sends besides.
    """

    of_levels: tuple[int, ...]
    of_fold: int
    size_share: float
    products: int


@lru_cache(maxsize=1024)
def _crossing(replicas: int, units: int) -> _Crossing:
    """Count them, where replicas fill machines of so many one after the other."""
    levels, machines = _levels(replicas), -(-replicas // units)
    power = 1 << levels
    most, share, messages = [], [0.0] * machines, [0] * machines
    for level in range(1, levels + 1):
        crossing = [0] * machines
        for place in range(power):
            crossing[place // units] += (place ^ 1 << level - 1) // units != place // units
        most.append(max(crossing))
        for machine, count in enumerate(crossing):
            share[machine] += 2 * count / 2**level
            messages[machine] += count * (levels - level + 1)
    folded = [0] * machines
    for place in range(power, replicas):
        if place // units != (place - power) // units:
            folded[place // units] += 1
            folded[(place - power) // units] += 1
    share = [one + count for one, count in zip(share, folded, strict=True)]
    busiest = max(range(machines), key=lambda machine: (share[machine], messages[machine]))
    return _Crossing(tuple(most), max(folded), share[busiest], messages[busiest])
