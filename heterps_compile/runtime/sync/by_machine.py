"""Sums of ranks that share machines: inside each machine first, then between machines, then inside again.

Every machine divides a flat tensor evenly among its ranks. A *piece* has one owner on each machine: with as many ranks
everywhere a piece is a shard, with 2 and 1 of them two pieces have the one rank as owner::

    machine 0        | rank 0    | rank 1    |
    machine 1        | rank 2                |
    pieces           | 0 and 2   | 1 and 2   |

    scatter   inside    each rank sends every other one what it has of that one's shard, and adds up its own
    sum       between   the owners of a piece sum it in a ring, or gather what they have selected of it (``top_k.py``)
    spread    inside    each rank sends its shard to every other one

Of k ranks on m machines and S bytes all send 2 (k - m) S inside and 2 (m - 1) S between, which is a ring's
2 (k - 1) S in all. Sums inside machines are in the order of ranks, and every entry is summed by one rank of each
machine and spread: all ranks have the same bits.

Left out: sparse tensors and small ones for agreeing, which go over all ranks in one ring; which rank is where
(``launch/machines_of_ranks.py``).
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

import torch
from torch import Tensor

from .collective import Collective, CountedGroup, Work, machines_of


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a flat tensor.

    Attributes:
        begin, end: Of its entries.
        owners: Ranks, one on each machine, in the order of machines.
    """

    begin: int
    end: int
    owners: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return its entries."""
        return self.end - self.begin


def pieces_of(length: int, machines: Sequence[Sequence[int]]) -> list[Piece]:
    """Return the pieces of a tensor, none of which is empty.

    Args:
        length: Its entries.
        machines: The ranks on each.
    """
    bounds = [[length * place // len(ranks) for place in range(len(ranks) + 1)] for ranks in machines]
    cuts = sorted({cut for of_machine in bounds for cut in of_machine})
    found = []
    for begin, end in pairwise(cuts):
        owners = (ranks[bisect_right(own, begin) - 1] for ranks, own in zip(machines, bounds, strict=True))
        found.append(Piece(begin, end, tuple(owners)))
    return found


def all_pieces(machines: Sequence[Sequence[int]]) -> list[Piece]:
    """Return the pieces of a tensor that is long enough to have all of them."""
    return pieces_of(lcm(*map(len, machines)), machines)


def deal_entries(total: int, sizes: Sequence[int]) -> list[int]:
    """Deal a number of entries out to pieces by their sizes: one to each at least, and none gets more than it has.

    Args:
        total: From the number of pieces to the sum of their sizes.
        sizes: Of the pieces, none empty.
    """
    more, room, before = total - len(sizes), sum(sizes) - len(sizes), 0
    dealt = []
    for size in sizes:
        after = before + size - 1
        dealt.append(1 + (more * after // room - more * before // room if room else 0))
        before = after
    return dealt


class ByMachine(CountedGroup):
    """Ranks that sum inside their machines first.

    Attributes:
        machines: The ranks on each.
    """

    def __init__(
        self, group: Collective, rank: int, machine_of: Sequence[int], make: Callable[[Sequence[int]], Collective]
    ) -> None:
        """Join the other owners of this rank's pieces; all ranks do it at the same time.

        Args:
            group: All ranks.
            rank: This one.
            machine_of: The machine of every rank of the run.
            make: Makes a group of some ranks, which counts.
        """
        super().__init__(group, rank, machine_of)
        self.machines = machines_of(group.ranks, machine_of)
        self._here = next(ranks for ranks in self.machines if rank in ranks)
        owned = [piece.owners for piece in all_pieces(self.machines) if rank in piece.owners]
        self._between: Mapping[tuple[int, ...], Collective] = {owners: make(owners) for owners in owned}

    @property
    def most_pieces(self) -> int:
        """Return how many pieces a tensor has that is long enough."""
        return len(all_pieces(self.machines))

    def pieces(self, length: int) -> list[Piece]:
        """Return the pieces of a tensor."""
        return pieces_of(length, self.machines)

    def owners(self, piece: Piece) -> Collective:
        """Return the group of the owners of a piece; this rank is one of them."""
        return self._between[piece.owners]

    def scatter(self, flat: Tensor) -> Work:
        """Begin to sum this rank's shard over the machine, in place; what others own must stay until it is done."""
        return _Scatter(self, self._rank, self._here, flat)

    def spread(self, flat: Tensor) -> Work:
        """Begin to give every rank of the machine the shards of the others, in place."""
        return _Spread(self, self._rank, self._here, flat)

    def sum(self, tensor: Tensor) -> Work:
        """Begin to sum a tensor in place."""
        if tensor.is_sparse or not tensor.is_contiguous():
            return super().sum(tensor)
        return _Sum(self, self._rank, tensor.view(-1))


def _shard(flat: Tensor, place: int, count: int) -> Tensor:
    return flat[flat.numel() * place // count : flat.numel() * (place + 1) // count]


class _Scatter:
    """Sends every rank of a machine what this one has of its shard, and adds up the own one."""

    def __init__(self, group: Collective, rank: int, here: Sequence[int], flat: Tensor) -> None:
        self._own = _shard(flat, here.index(rank), len(here))
        self._parts: list[Tensor] = []
        self._sent: list[tuple[Work, Tensor]] = []  # what is sent is held until it is
        self._received: list[Work] = []
        for place, other in enumerate(here):
            if other == rank:
                self._parts.append(self._own)
                continue
            theirs = _shard(flat, place, len(here)).cpu()
            if theirs.numel():
                self._sent.append((group.start_send(theirs, other), theirs))
            part = torch.empty(self._own.shape, dtype=flat.dtype)
            if part.numel():
                self._received.append(group.start_receive(part, other))
            self._parts.append(part)

    def wait(self) -> None:
        for work in self._received:
            work.wait()
        if self._parts:
            total = self._parts[0].to(self._own.device, copy=True)
            for part in self._parts[1:]:
                total += part.to(self._own.device)
            self._own.copy_(total)
        for work, _ in self._sent:
            work.wait()
        self._parts, self._sent, self._received = [], [], []


class _Spread:
    """Sends a rank's shard to all others of its machine."""

    def __init__(self, group: Collective, rank: int, here: Sequence[int], flat: Tensor) -> None:
        own = _shard(flat, here.index(rank), len(here)).cpu()
        self._sent: list[tuple[Work, Tensor]] = []
        self._received: list[tuple[Work, Tensor, Tensor]] = []
        for place, other in enumerate(here):
            if other == rank:
                continue
            if own.numel():
                self._sent.append((group.start_send(own, other), own))
            theirs = _shard(flat, place, len(here))
            arrived = theirs if theirs.device.type == "cpu" else torch.empty(theirs.shape, dtype=flat.dtype)
            if theirs.numel():
                self._received.append((group.start_receive(arrived, other), arrived, theirs))

    def wait(self) -> None:
        for work, arrived, theirs in self._received:
            work.wait()
            if arrived is not theirs:
                theirs.copy_(arrived)
        for work, _ in self._sent:
            work.wait()
        self._sent, self._received = [], []


class _Sum:
    """Sums inside a machine at once, and the rest once somebody waits for it."""

    def __init__(self, ranks: ByMachine, rank: int, flat: Tensor) -> None:
        self._ranks, self._flat = ranks, flat
        self._owned = [piece for piece in ranks.pieces(flat.numel()) if rank in piece.owners]
        self._inside: Work | None = ranks.scatter(flat)

    def wait(self) -> None:
        if self._inside is None:
            return
        self._inside.wait()
        self._inside = None
        works = [self._ranks.owners(piece).sum(self._flat[piece.begin : piece.end]) for piece in self._owned]
        for work in works:
            work.wait()
        self._ranks.spread(self._flat).wait()
