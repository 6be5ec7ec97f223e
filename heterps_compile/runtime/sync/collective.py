"""The ranks that store the same parameters, as rules of synchronisation use them.

Left out: groups of a run (``pipeline/``), and what they count (``counted_group.py``).
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
