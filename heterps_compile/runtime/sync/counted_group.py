"""A group of ranks that counts what a rank sends through it.

What rings send is counted as they are defined: a sum of S bytes over k ranks is 2 (k - 1) S, a gathering of S bytes
from each k (k - 1) S, over all ranks; where the k-th part of it is no whole number, the first ranks count one byte
more. So counts add up to what the rules' formulas say, to the byte (``sync_rules``). What the connections add, and
messages that only agree on which parameters have gradients, count nothing.

Left out: who the ranks are.
"""

from torch import Tensor

from .contract import Collective, Work


class CountedGroup:
    """Passes everything on, and counts.

    Attributes:
        sent_bytes: By this rank so far.
    """

    def __init__(self, group: Collective, rank: int) -> None:
        self._group, self._place = group, group.ranks.index(rank)
        self.sent_bytes = 0

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks."""
        return self._group.ranks

    def sum(self, tensor: Tensor) -> Work:
        """Begin to sum a tensor in place."""
        count = len(self.ranks)
        if tensor.is_sparse:  # each rank's rows and ids go to all others
            own = tensor.coalesce()
            self.sent_bytes += (count - 1) * (own.values().nbytes + own.indices().nbytes)
        else:
            whole, rest = divmod(2 * (count - 1) * tensor.nbytes, count)
            self.sent_bytes += whole + (self._place < rest)
        return self._group.sum(tensor)

    def maximum(self, tensor: Tensor) -> Work:
        """Begin to take the largest of every element, in place; it is for agreeing, and counts nothing."""
        return self._group.maximum(tensor)

    def gather(self, tensor: Tensor) -> tuple[Work, list[Tensor]]:
        """Begin to collect everybody's tensor of one size."""
        self.sent_bytes += (len(self.ranks) - 1) * tensor.nbytes
        return self._group.gather(tensor)

    def start_send(self, tensor: Tensor, target: int) -> Work:
        """Begin to send a tensor to a rank."""
        self.sent_bytes += tensor.nbytes
        return self._group.start_send(tensor, target)

    def start_receive(self, tensor: Tensor, source: int) -> Work:
        """Begin to receive a tensor from a rank."""
        return self._group.start_receive(tensor, source)
