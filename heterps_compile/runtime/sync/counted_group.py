"""A group of ranks that counts what a rank sends through it.

What rings send is counted as they are defined: a sum of S bytes over k ranks is 2 (k - 1) S, a gathering of S bytes
from each k (k - 1) S, over all ranks; where the k-th part of it is no whole number, the first ranks count one byte
more. A message from rank to rank counts what is in it. So counts add up to what the rules' formulas say, to the byte
(``sync_rules``). What the connections add, and messages that only agree on which parameters have gradients, count
nothing.

In a ring a rank sends to the next one alone: where that is on another machine, all that it sends goes between machines.

Left out: who the ranks are.
"""

from collections.abc import Sequence

from torch import Tensor

from .collective import Collective, Work


class CountedGroup:
    """Passes everything on, and counts.

    Attributes:
        sent_bytes: By this rank so far.
        between_bytes: Of them, those to ranks of other machines.
    """

    def __init__(self, group: Collective, rank: int, machine_of: Sequence[int] = ()) -> None:
        """Begin with nothing.

        Args:
            group: The ranks.
            rank: This one.
            machine_of: The machine of every rank of the run; empty where all are on one.
        """
        self._group, self._place = group, group.ranks.index(rank)
        self._rank, self._machine_of = rank, machine_of
        self.sent_bytes = self.between_bytes = 0

    def _count(self, size_bytes: int, target: int | None = None) -> None:
        """Count what goes to a rank, or to the next one in the ring."""
        target = self.ranks[(self._place + 1) % len(self.ranks)] if target is None else target
        self.sent_bytes += size_bytes
        if self._machine_of and self._machine_of[target] != self._machine_of[self._rank]:
            self.between_bytes += size_bytes

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks."""
        return self._group.ranks

    def sum(self, tensor: Tensor) -> Work:
        """Begin to sum a tensor in place."""
        count = len(self.ranks)
        if tensor.is_sparse:  # each rank's rows and ids go to all others
            own = tensor.coalesce()
            self._count((count - 1) * (own.values().nbytes + own.indices().nbytes))
        else:
            whole, rest = divmod(2 * (count - 1) * tensor.nbytes, count)
            self._count(whole + (self._place < rest))
        return self._group.sum(tensor)

    def maximum(self, tensor: Tensor) -> Work:
        """Begin to take the largest of every element, in place; it is for agreeing, and counts nothing."""
        return self._group.maximum(tensor)

    def gather(self, tensor: Tensor) -> tuple[Work, list[Tensor]]:
        """Begin to collect everybody's tensor of one size."""
        self._count((len(self.ranks) - 1) * tensor.nbytes)
        return self._group.gather(tensor)

    def start_send(self, tensor: Tensor, target: int) -> Work:
        """Begin to send a tensor to a rank."""
        self._count(tensor.nbytes, target)
        return self._group.start_send(tensor, target)

    def start_receive(self, tensor: Tensor, source: int) -> Work:
        """Begin to receive a tensor from a rank."""
        return self._group.start_receive(tensor, source)
