"""The rule ``topk``: of each replica's gradient the values of largest magnitude, and their places, go to all others.

Legend: n elements of one dtype, density d, K = max(1, round(d n)) values with an index each, 8 bytes a pair: int32 and
float32; another dtype has its own bytes, and more than 2^31 - 1 elements have indices in int64. In a ring all-gather
every pair goes to k - 1 others, so that a replica sends (k - 1) 8 K. A dense all-reduce sends 2 (k - 1) / k 4 n: topk
sends less where d < 1 / k, which follows from the two and stands nowhere else.

Where u' replicas share a machine, they divide the gradient among themselves first (HiTopKComm of the paper): a
reduce-scatter inside, the largest of each piece that a replica of every machine owns, an all-gather of pairs among
these, and an all-gather of the dense shards inside::

    inside    2 (u' - 1) / u' 4 n      of every replica
    between   (m - 1) 8 K'             of every machine's card, over its u' replicas

With as many replicas on each machine there are P = u' pieces, with r of them on the last one u' + r - gcd(u', r); each
sends one pair at least, K' = min(n, max(K, P)).

What is not sent is kept where ``feedback`` is on, and added to the gradient of the next step; a replica also holds the
pairs of all. Replicas that are all on one machine sum whole gradients there, also in a run whose plan counts with that.

Left out: what a sum in one machine saves the processor, which counts as if entries were selected there too.
"""

from dataclasses import dataclass
from math import gcd
from typing import ClassVar, Literal

from heterps_compile.errors import InputError

from .amounts import Amounts
from .handling import Handling, Work, flat_gradients
from .rule import ANY, BOUNDED, NOTHING, Exactness, Exchange, Exposed, FlatBuffer, SyncGroup, SyncRule

_SHORT_INDEX_BYTES, _LONG_INDEX_BYTES = 4, 8
_MOST_SHORT = 2**31 - 1  # elements that an int32 can count
_ROUNDING = 0.5  # of a value, which rounding leaves out at the most


@dataclass(frozen=True, slots=True)
class TopK(SyncRule):
    """Exchange the values of largest magnitude.

    Attributes:
        density: Part of the values that is sent, above 0 and at most 1.
        selection: ``exact`` sorts; ``threshold`` bisects for the magnitude above which there are so many.
        feedback: Whether what is not sent is added to the next step's gradient.
    """

    density: float
    selection: Literal["threshold", "exact"] = "threshold"
    feedback: bool = True

    name: ClassVar[str] = "topk"
    example: ClassVar[str] = "topk(density=0.01)"
    source: ClassVar[str] = "Shi et al., MLSys 2021, arXiv 2010.10458"

    def __post_init__(self) -> None:
        """Refuse a density that is no part.

        Raises:
            InputError: where it is not above 0 and at most 1.
        """
        if not 0 < self.density <= 1:
            raise InputError(
                f"the density of topk is {self.density:g}; it must be above 0 and at most 1, such as {self.example}"
            )

    @property
    def exactness(self) -> Exactness:
        """Return whether what is left out comes later."""
        return BOUNDED if self.feedback else ANY

    def kept(self, elements: int) -> int:
        """Return K, the values that are sent of so many; at least one."""
        return min(elements, max(1, round(self.density * elements)))

    def kept_between(self, elements: int, pieces: int) -> int:
        """Return K', the values that are sent of so many between machines; at least one of each piece."""
        return min(elements, max(pieces, self.kept(elements)))

    def pairs_bytes(self, buffer: FlatBuffer, pieces: int = 1) -> int:
        """Return the bytes of the values and indices that are sent of a buffer, by a replica or by a machine."""
        return self._pair_bytes(buffer) * self.kept_between(buffer.elements, pieces)

    def exchange(self, group: SyncGroup) -> Exchange:
        """Return the all-gather of values and indices, inside machines after a reduce-scatter."""
        if not group.agrees:
            return NOTHING
        network, inside, machines = group.network, group.inside, group.machines
        pairs_bytes = sum(self.pairs_bytes(buffer, _pieces(group)) for buffer in group.gradients)
        card_bytes = (machines - 1) * pairs_bytes
        sent_bytes = 2 * (group.replicas - machines) * group.gradient_bytes + machines * card_bytes
        hops_s = 2 * (inside - 1) * network.inner_latency_s + (machines - 1) * network.latency_s
        bytes_s = network.inside_s(group.gradient_bytes, group.replicas) + card_bytes * network.seconds_per_byte
        return Exchange(sent_bytes, card_bytes, bytes_s, hops_s)

    def extra_bytes(self, group: SyncGroup) -> int:
        """Return the bytes of what is kept for the next step, and of the pairs of all replicas."""
        if not group.agrees:
            return 0
        kept_bytes = group.gradient_bytes if self.feedback else 0
        return kept_bytes + group.replicas * sum(map(self.pairs_bytes, group.gradients))

    def exposed(self, group: SyncGroup) -> Exposed:
        """Return what the exchange takes with d n values of every buffer, not rounded, so that it adds up over layers.

        That is within one value of each piece of what is sent.
        """
        found = self.exchange(group)
        if not group.agrees:
            return Exposed()
        sent_bytes = sum(self.pairs_bytes(buffer, _pieces(group)) for buffer in group.gradients)
        rounded_bytes = sent_bytes - self._unrounded_bytes(group)
        rounded_s = (group.machines - 1) * rounded_bytes * group.network.seconds_per_byte
        return Exposed(max(0.0, found.bytes_s - rounded_s), found.hops_s)

    def amounts(self, group: SyncGroup) -> Amounts:
        """Return the gradients that are summed inside machines, the pairs that go between them, and what is held.

        Of the pairs that are held no more is counted than any rounding leaves.
        """
        pairs_bytes = self._unrounded_bytes(group)
        least_bytes = sum(
            max(0.0, self.density * buffer.elements - _ROUNDING) * self._pair_bytes(buffer)
            for buffer in group.gradients
        )
        return Amounts(
            ring_bytes=group.gradient_bytes,
            gather_bytes=pairs_bytes,
            held_bytes=group.gradient_bytes if self.feedback else 0,
            replica_bytes=least_bytes,
            sums_between=False,
        )

    def handling(self, group: SyncGroup) -> Handling:
        """Return buffers that are looked at, selected from and filled anew, and the pairs of every replica.

        What is kept is added before and copied after. The entries sent are taken out, and every replica's put in.
        """
        gradient_bytes, pairs_bytes = group.gradient_bytes, self._unrounded_bytes(group)
        entries = sum(self.density * buffer.elements for buffer in group.gradients)
        passes = 1 + (5 if self.feedback else 0)  # zero; the sum with what was kept, the rest kept
        own = Work(
            moved=passes * gradient_bytes + 4 * pairs_bytes, selected=gradient_bytes, chosen=entries, placed=entries
        )
        one = Work(moved=3 * pairs_bytes, placed=entries)
        return Handling(flat_gradients(gradient_bytes) + own + one, each=one)

    def _unrounded_bytes(self, group: SyncGroup) -> float:
        return sum(self.density * buffer.elements * self._pair_bytes(buffer) for buffer in group.gradients)

    @staticmethod
    def _pair_bytes(buffer: FlatBuffer) -> int:
        return buffer.element_bytes + (_SHORT_INDEX_BYTES if buffer.elements <= _MOST_SHORT else _LONG_INDEX_BYTES)


def _pieces(group: SyncGroup) -> int:
    """Return P, the pieces of a gradient that have one owner on each machine."""
    rest = group.replicas - (group.machines - 1) * group.inside
    return group.inside if rest == group.inside else group.inside + rest - gcd(group.inside, rest)
