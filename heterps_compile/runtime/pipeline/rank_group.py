"""Groups of ranks that sum and share tensors, made by their members alone: over gloo.

``dist.new_group`` has to be called by every rank of the world, those that serve parameters too, and for groups made
without the others it takes a name that depends on how many groups a rank is in already: ranks that are in different
numbers of them wait for each other for ever (PyTorch 2.13). So a group is made here from a store of its members.

Tensors of a GPU go through the CPU's memory.

Left out: ranks of one machine (``shared_memory/memory_group.py``), and with a GPU each (``between_gpus.py``).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_compile.runtime.c10d import Store
from heterps_compile.runtime.sync.collective import Collective, Work

_PATIENCE = timedelta(minutes=30)  # whoever launched the ranks notices long before that one of them is gone

_GATHERED = 1 << 20
"""A tag that nothing else has, so that messages of a gathering are told from others."""


class PendingWork(Work, Protocol):
    """Something that goes on, and whose end can be seen."""

    def is_completed(self) -> bool:
        """Return whether waiting for it takes no time."""
        ...


class RankGroup(Collective, Protocol):
    """Some ranks of a run that sum tensors; every member makes its groups in the same order as the others."""

    def sum(self, tensor: Tensor) -> PendingWork:
        """Begin to sum a tensor in place; dense, or sparse with every row once."""
        ...


@dataclass(frozen=True, slots=True)
class _Works:
    """Several messages that are on their way."""

    works: tuple[dist.Work, ...]

    def wait(self) -> None:
        """Wait for all of them."""
        for work in self.works:
            work.wait()


class GlooGroup:
    """Some ranks that gloo connects.

    Attributes:
        ranks: Its members.
    """

    def __init__(self, store: Store, ranks: Sequence[int], rank: int, patience: timedelta = _PATIENCE) -> None:
        """Join, as ``rank``; waits for the other members.

        Args:
            store: Of the group alone.
            ranks: Of the members.
            rank: This one.
            patience: How long to wait for a message.
        """
        self.ranks = tuple(ranks)
        self._places = {member: place for place, member in enumerate(self.ranks)}
        self._place = place = self._places[rank]
        self._gloo: Any = dist.ProcessGroupGloo(store, place, len(self.ranks), patience)

    def sum(self, tensor: Tensor) -> dist.Work:
        """Begin to sum a tensor in place; dense, or sparse with every row once."""
        work: dist.Work = self._gloo.allreduce([tensor], dist.ReduceOp.SUM)
        return work

    def maximum(self, tensor: Tensor) -> dist.Work:
        """Begin to take the largest of every element, in place."""
        work: dist.Work = self._gloo.allreduce([tensor], dist.ReduceOp.MAX)
        return work

    def gather(self, tensor: Tensor) -> tuple["_Works", list[Tensor]]:
        """Begin to collect everybody's tensor of one size, on the CPU, in the order of members.

        gloo sends a message once it was told that the other side receives, over the connection that may be busy with
        the other direction by then: two ranks that send first go one after the other. So all receives are begun before
        the first send, which gloo's own all-gather does not: on two hosts behind 1 Gbit/s 6.6 MB took it 95 ms, and 62
        so.

        Returns:
            What goes on, and the tensors, which are there once it is done.
        """
        received = [torch.empty_like(tensor) for _ in self.ranks]
        received[self._place].copy_(tensor)
        others = [(self._place + ahead) % len(self.ranks) for ahead in range(1, len(self.ranks))]
        works = [self._gloo.recv([received[other]], other, _GATHERED) for other in reversed(others)]
        works += [self._gloo.send([tensor], other, _GATHERED) for other in others]
        return _Works(tuple(works)), received

    def start_send(self, tensor: Tensor, target: int, tag: int = 0) -> dist.Work:
        """Begin to send a tensor of the CPU to a member."""
        work: dist.Work = self._gloo.send([tensor], self._places[target], tag)
        return work

    def start_receive(self, tensor: Tensor, source: int, tag: int = 0) -> dist.Work:
        """Begin to receive a tensor of the CPU from a member, in place."""
        work: dist.Work = self._gloo.recv([tensor], self._places[source], tag)
        return work

    def receive_any(self, tensor: Tensor, tag: int) -> int:
        """Receive a tensor of at most this size from any member; return its rank."""
        work = self._gloo.recv_anysource([tensor], tag)
        work.wait()
        return self.ranks[int(work._source_rank())]


def share_names(group: Collective, names: Sequence[str], rank: int) -> list[tuple[str, ...]]:
    """Return the names that every member of a group has, in the order of its members; all of them call it.

    Args:
        group: Of the ranks.
        names: Of this one.
        rank: This one.
    """
    place, written = group.ranks.index(rank), json.dumps(list(names)).encode()
    sizes = torch.zeros(len(group.ranks), dtype=torch.int64)
    sizes[place] = len(written)
    group.sum(sizes).wait()
    texts = torch.zeros(len(group.ranks), int(sizes.max()), dtype=torch.uint8)
    texts[place, : len(written)] = torch.frombuffer(bytearray(written), dtype=torch.uint8)
    group.sum(texts).wait()
    return [tuple(json.loads(bytes(row[:size].tolist()))) for row, size in zip(texts, sizes.tolist(), strict=True)]
