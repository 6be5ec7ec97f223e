"""Collectives over simulated ranks, message by message, with the bytes of every message counted.

Ranks are places of a list, ``ranks_per_machine`` neighbours a machine. Sums and gatherings are rings, as those of NCCL
and gloo for large messages: every rank sends to the next one of its group alone. Left out: time; lost messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .top_k import Selection


@dataclass(slots=True)
class CountedLink:
    """Counts what ranks send to each other.

    Attributes:
        ranks_per_machine: Neighbouring ranks on one machine.
        inside_bytes: Sent so far to a rank of the same machine, of all ranks together.
        between_bytes: Sent so far to a rank of another machine.
    """

    ranks_per_machine: int
    inside_bytes: int = 0
    between_bytes: int = 0

    def send(self, source: int, target: int, size_bytes: int) -> None:
        """Count a message."""
        if source // self.ranks_per_machine == target // self.ranks_per_machine:
            self.inside_bytes += size_bytes
        else:
            self.between_bytes += size_bytes

    def reduce_scatter(self, group: Sequence[int], parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return the sum of every member's ``i``-th part for the ``i``-th member of a group of ranks."""
        sums = []
        for owner in range(len(group)):
            # begins behind the owner and ends at it
            order = [(owner + 1 + hop) % len(group) for hop in range(len(group))]
            total = parts[order[0]][owner]
            for before, member in pairwise(order):
                self.send(group[before], group[member], _size_bytes(total))
                total = total + parts[member][owner]
            sums.append(total)
        return sums

    def all_gather(self, group: Sequence[int], size_bytes: Sequence[int]) -> None:
        """Count a gathering of what every member holds: it is passed on along the ring to the last one."""
        for owner, size in enumerate(size_bytes):
            for hop in range(len(group) - 1):
                self.send(group[(owner + hop) % len(group)], group[(owner + hop + 1) % len(group)], size)

    def halve(self, group: Sequence[int], elements: int, element_bytes: int, tensors: int) -> None:
        """Count adasum's recursive vector halving of what every member holds (``runtime/sync/vector_halving.py``).

        Args:
            group: Ranks.
            elements: That each holds.
            element_bytes: Of one.
            tensors: Of which it is made, each with three products in float64.
        """
        power = 1 << (len(group).bit_length() - 1)
        for place in range(power, len(group)):
            for ends in ((place, place - power), (place - power, place)):
                self.send(group[ends[0]], group[ends[1]], elements * element_bytes)
        parts, distance = [elements] * power, 1
        while distance < power:
            for place, part in enumerate(parts):
                neighbour, first = group[place ^ distance], part // 2
                parts[place] = first if not place & distance else part - first
                self.send(group[place], neighbour, (part - parts[place]) * element_bytes)
                self.send(group[place], neighbour, parts[place] * element_bytes)  # on the way back
                for bit in range(distance.bit_length()):
                    self.send(group[place], group[place ^ 1 << bit], tensors * 24)
            distance *= 2


def sum_of_selections(selections: Sequence[Selection], length: int) -> Tensor:
    """Return the dense sum of gathered selections, in their order, so that every rank gets the same bits."""
    first = selections[0].values
    total = torch.zeros(length, dtype=first.dtype, device=first.device)
    for selection in selections:
        total[selection.indices] += selection.values
    return total


def _size_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
