"""The ranks that store the same parameters, as rules of synchronisation use them, and the bytes that one of them sends.

Left out: groups of a run (``pipeline/``).
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class Work(Protocol):
    """Something that goes on."""

    def wait(self) -> Any:
        """Wait for its end."""
        ...


class Collective(Protocol):
    """The ranks that hold the same parameters."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return them, in the order of replicas."""
        ...

    def sum(self, tensor: Tensor) -> Work:
        """Begin to sum a tensor in place."""
        ...

    def maximum(self, tensor: Tensor) -> Work:
        """Begin to take the largest of every element, in place."""
        ...

    def gather(self, tensor: Tensor) -> tuple[Work, list[Tensor]]:
        """Begin to collect everybody's tensor of one size, on the CPU; they are there once the work is done."""
        ...

    def start_send(self, tensor: Tensor, target: int) -> Work:
        """Begin to send a tensor of the CPU to a rank."""
        ...

    def start_receive(self, tensor: Tensor, source: int) -> Work:
        """Begin to receive a tensor of the CPU from a rank, in place."""
        ...


class CountedGroup:
    """Passes everything on, and counts what this rank sends.

    What rings send is counted as they are defined: a sum of S bytes over k ranks is 2 (k - 1) S, a gathering of S bytes
    from each k (k - 1) S, over all ranks; where the k-th part of it is no whole number, the first ranks count one byte
    more. A message from rank to rank counts what is in it. So counts add up to what the rules' formulas say, to the
    byte (``sync_rules``). What the connections add, and messages that only agree on which parameters have gradients,
    count nothing.

    In a ring a rank sends to the next one alone: where that is on another machine, all that it sends goes between
    machines.

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


def machines_of(ranks: Sequence[int], machine_of: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Group ranks by machine, in their order.

    Args:
        ranks: Of a group.
        machine_of: The machine of every rank of the run; empty where all are on one.
    """
    by_machine: dict[int, list[int]] = {}
    for rank in ranks:
        by_machine.setdefault(machine_of[rank] if machine_of else 0, []).append(rank)
    return tuple(tuple(of_one) for of_one in by_machine.values())


def sums_inside_first(machines: Sequence[Sequence[int]]) -> bool:
    """Check if ranks share machines and are on several."""
    return len(machines) > 1 and any(len(ranks) > 1 for ranks in machines)
