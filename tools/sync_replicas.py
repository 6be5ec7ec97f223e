"""Rules of synchronisation on simulated replicas: a list of flat tensors, with the bytes that they would send."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from heterps_compile.runtime.sync.local_steps import mean_with
from heterps_compile.runtime.sync.top_k import Selection


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
        """Count adasum's recursive vector halving of what every member holds (``runtime/sync/adasum.py``).

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


def sum_dense(link: CountedLink, tensors: Sequence[Tensor]) -> Tensor:
    """Sum the tensors of ranks around a ring, and count the bytes."""
    ranks = range(len(tensors))
    parts = link.reduce_scatter(ranks, [tensor.tensor_split(len(tensors)) for tensor in tensors])
    link.all_gather(ranks, [_size_bytes(part) for part in parts])
    return torch.cat(parts)


def average(models: Sequence[Tensor]) -> Tensor:
    """Return the mean of the clients' flat models, in the order of the clients."""
    return torch.stack(list(models)).mean(0)


@dataclass(slots=True)
class BlockPredictors:
    """MM-PSGD: for every block the running mean of the global models at the ends of its rounds.

    Attributes:
        models: By block.
        rounds: How many rounds each is the mean of.
    """

    models: dict[int, Tensor] = field(default_factory=dict)
    rounds: dict[int, int] = field(default_factory=dict)

    def take(self, block: int, model: Tensor) -> None:
        """Take the global model in at the end of a round in a block."""
        seen = self.rounds.get(block, 0)
        if seen:
            self.models[block] = mean_with(self.models[block], seen, model)
        else:
            self.models[block] = model.clone()
        self.rounds[block] = seen + 1

    def take_better(self, block: int, mixed: tuple[Tensor, float], separate: tuple[Tensor, float]) -> bool:
        """MC-PSGD: take in the model with the lower loss, of ``(model, loss)`` of both chains.

        Returns:
            Whether it was the one of the chain that sees the block alone; on a tie it is the mixed one.
        """
        chosen = separate[1] < mixed[1]
        self.take(block, (separate if chosen else mixed)[0])
        return chosen

    def of(self, block: int) -> Tensor:
        """Return a block's predictor."""
        return self.models[block]
