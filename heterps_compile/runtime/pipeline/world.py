"""The world of this process: the ranks of its run, and which of them share its machine.

A process is one rank of one world at a time. Its groups are made from the world's store, by their members alone, under
a name that these agree on: their ranks, and the number of groups of just these ranks before. Ranks of one machine share
memory; other groups connect over gloo. Tensors of GPUs go over NCCL if it connects all members (``between_gpus.py``).

Left out: what the ranks agree on through the store (``launch/``).
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from heterps_compile.errors import RunError
from heterps_compile.runtime.c10d import PrefixStore, Store

from .gpu_table import NO_GPUS, GpuTable
from .rank_group import GlooGroup, RankGroup
from .shared_memory.memory_group import MemoryGroup
from .shared_memory.neighbours import Neighbours

if TYPE_CHECKING:
    from .over_nccl import Nccl

_joined: list["World"] = []


class World:
    """The ranks of a run.

    Attributes:
        size: Their number.
        rank: This one.
        neighbours: Those of this machine.
        gpus: Of all ranks.
    """

    def __init__(self, store: Store, rank: int, size: int, gpus: GpuTable = NO_GPUS) -> None:
        """Meet the ranks of this machine; all ranks do it.

        Args:
            store: Of this world alone.
            rank: This one.
            size: The number of ranks.
            gpus: Of all ranks, the same on each.

        Raises:
            RunError: where those of this machine do not meet.
        """
        self.rank, self.size, self.gpus, self._store = rank, size, gpus, store
        self._made: Counter[tuple[int, ...]] = Counter()
        self.neighbours = Neighbours(PrefixStore("neighbours", store), range(size), rank)
        self._opened = [self.neighbours]

    @cached_property
    def nccl(self) -> "Nccl":
        """Return NCCL on the GPU of this rank."""
        from .over_nccl import Nccl  # noqa: PLC0415 - between GPUs alone

        return Nccl(is_local=self.neighbours.have(range(self.size)))

    def group(self, ranks: Sequence[int], *, has_thread: bool = False, of_gpus: bool = False) -> RankGroup:
        """Return a group that sums and shares tensors; its members make their groups in the same order.

        Args:
            ranks: Of the members, this one included.
            has_thread: Whether another thread than that of the other groups waits for it.
            of_gpus: Whether tensors of GPUs go over NCCL, if it connects all members.

        Raises:
            RunError: where the members do not meet.
        """
        if of_gpus and self.gpus.connects(ranks):
            from .between_gpus import GpuGroup  # noqa: PLC0415 - between GPUs alone

            host = self.group(ranks)
            return GpuGroup(host, self.nccl, self.next_store(ranks), host.ranks.index(self.rank))
        store = self.next_store(ranks)
        if not self.neighbours.have(ranks):
            return GlooGroup(store, ranks, self.rank)
        neighbours = self.neighbours
        if has_thread:
            neighbours = Neighbours(store, ranks, self.rank)
            self._opened.append(neighbours)
        return MemoryGroup(neighbours, ranks)

    def next_store(self, ranks: Sequence[int], of: str = "group") -> Store:
        """Return a store of some ranks, which all of them take in the same order, for ``of``."""
        name = f"{of}-{'-'.join(map(str, ranks))}-{self._made[tuple(ranks)]}"
        self._made[tuple(ranks)] += 1
        return PrefixStore(name, self._store)

    def close(self) -> None:
        """Leave the ranks of this machine; what was sent can still be received."""
        for neighbours in self._opened:
            neighbours.close()
        if "nccl" in vars(self):
            self.nccl.close()


def join_world(store: Store, rank: int, size: int, gpus: GpuTable = NO_GPUS) -> World:
    """Make this process a rank of a world."""
    _joined.append(World(store, rank, size, gpus))
    return _joined[-1]


def world() -> World:
    """Return the world of this process.

    Raises:
        RunError: where it has joined none.
    """
    if not _joined:
        raise RunError("this process is no rank of a run. Fix: call join_world() first")
    return _joined[-1]


def make_group(ranks: Sequence[int], *, has_thread: bool = False, of_gpus: bool = False) -> RankGroup:
    """Return a group of the world of this process; see :meth:`World.group`."""
    return world().group(ranks, has_thread=has_thread, of_gpus=of_gpus)


def leave_world() -> None:
    """Leave the world of this process, if there is one."""
    while _joined:
        _joined.pop().close()
