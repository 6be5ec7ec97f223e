"""NCCL on a machine without GPUs: gloo does its work on tensors of the CPU, and what it did is kept."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_compile.runtime.c10d import Store
from heterps_compile.runtime.pipeline import world
from heterps_compile.runtime.pipeline.gpu_table import GpuTable


class FakeGroup:
    """A group of gloo's without tags, as NCCL has none.

    Attributes:
        ranks: Its members; of a channel the sender, then the receiver.
        done: What was sent, received and summed: the operation, and its bytes.
    """

    def __init__(self, store: Store, place: int, size: int, ranks: tuple[int, ...]) -> None:
        self._gloo: Any = dist.ProcessGroupGloo(store, place, size, timedelta(seconds=60))
        self.done: list[tuple[str, int]] = []
        self.ranks = ranks

    def send(self, tensors: Sequence[Tensor], target: int, tag: int) -> Any:
        self.done.append(("send", tensors[0].nbytes))
        return self._gloo.send(tensors, target, 0)

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int) -> Any:
        self.done.append(("recv", tensors[0].nbytes))
        return self._gloo.recv(tensors, source, 0)

    def allreduce(self, tensors: Sequence[Tensor], how: Any) -> Any:
        self.done.append(("sum" if how == dist.ReduceOp.SUM else "max", tensors[0].nbytes))
        return self._gloo.allreduce(tensors, how)


class FakeNccl:
    """NCCL on the CPU.

    Attributes:
        device: The CPU.
        groups: All that were made.
        used: Bytes of every message that was taken.
    """

    device = torch.device("cpu")

    def __init__(self, joined: "FakeWorld") -> None:
        self._world = joined
        self.groups: list[FakeGroup] = []
        self.used: list[int] = []

    def connect(self, store: Store, place: int, size: int, *, is_channel: bool = False) -> FakeGroup:
        self.groups.append(FakeGroup(store, place, size, self._world.asked))
        return self.groups[-1]

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def use(self, received: Tensor) -> None:
        self.used.append(received.nbytes)

    def close(self) -> None:
        pass


class FakeWorld(world.World):
    """A world in which NCCL is fake.

    Attributes:
        asked: The ranks of the store that was made last.
    """

    asked: tuple[int, ...] = ()

    @cached_property
    def nccl(self) -> Any:
        return FakeNccl(self)

    def next_store(self, ranks: Sequence[int], of: str = "group") -> Store:
        self.asked = tuple(ranks)
        return super().next_store(ranks, of)


def join_with_gpus(name: str, rank: int, gpus: GpuTable) -> FakeWorld:
    """Join a world of gloo's ranks in which NCCL is fake, in place of the one that this process is in."""
    world.leave_world()
    store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    world._joined.append(FakeWorld(store, rank, dist.get_world_size(), gpus))
    return world._joined[-1]  # type: ignore[return-value]
