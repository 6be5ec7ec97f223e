"""The rule ``adasum``: gradients that point the same way are averaged, those at right angles summed.

Two gradients a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, and replicas are combined in pairs of pairs.
Every replica gathers all gradients and combines them in the same order, so that all have the same bits: with k replicas
and S bytes each sends (k - 1) S, which is k / 2 times what an all-reduce sends.

Left out: recursive halving, which sends 2 (k - 1) / k S for powers of two and leaves replicas that are none aside.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from .amounts import Amounts
from .rule import ANY, NOTHING, Exactness, Exchange, SyncGroup, SyncRule


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

    def exchange(self, group: SyncGroup) -> Exchange:
        """Return an all-gather of what is combined in one ring."""
        if not group.agrees:
            return NOTHING
        network, others = group.network, group.replicas - 1
        size_bytes = group.gradient_bytes if self.on == "gradient" else group.parameter_bytes
        sent_bytes = group.replicas * others * size_bytes
        between = group.machines > 1
        slowest_s = network.seconds_per_byte if between else network.inner_seconds_per_byte
        slowest_s = slowest_s if group.inside > 1 or between else 0.0
        card_bytes = float(others * size_bytes) if between else 0.0
        hops_s = others * (network.latency_s if between else network.inner_latency_s)
        return Exchange(sent_bytes, card_bytes, others * size_bytes * slowest_s, hops_s)

    def extra_bytes(self, group: SyncGroup) -> int:
        """Return the bytes of what all have sent, and of the weights before a step where steps are combined."""
        if not group.agrees:
            return 0
        if self.on == "gradient":
            return group.replicas * group.gradient_bytes
        return (group.replicas + 1) * group.parameter_bytes

    def amounts(self, group: SyncGroup) -> Amounts:
        """Return what goes to every other replica, and what is held of it."""
        size_bytes = group.gradient_bytes if self.on == "gradient" else group.parameter_bytes
        held_bytes = 0 if self.on == "gradient" else size_bytes
        ways = Amounts(sums_inside=False, sums_between=False, knows_machines=False)
        return replace(ways, gather_bytes=size_bytes, held_bytes=held_bytes, replica_bytes=size_bytes)
