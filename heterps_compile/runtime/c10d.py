"""What is used of ``torch.distributed`` that it has and does not declare; nothing else uses it.

========================  =========================================================================================
``Store`` and its kinds   ``torch.distributed`` has them, and its types do not say so
``default_store``         groups of some ranks need the store of the world; ``dist.new_group`` takes all (rank_group.py)
``cpu_group_of_world``    who is connected to whom is asked of gloo's own group (strangers.py)
``wait_so_long``          a group connects within seconds, and then waits for messages of hours
``leave_world``           a rank that failed to join would wait for the others under another name than theirs
``as_one_process``        metrics of torchmetrics wait for all ranks of the world, and one rank computes them
========================  =========================================================================================

Looked at and tried in PyTorch 2.13, the version that is pinned; others that may be installed (2.6 and later) are not
tried.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

__all__ = [
    "FileStore",
    "KeptStore",
    "PrefixStore",
    "Store",
    "TCPStore",
    "as_one_process",
    "cpu_group_of_world",
    "default_store",
    "leave_world",
    "wait_so_long",
]

_kept: list[Store] = []


class KeptStore(Store):
    """A store written in Python, which lives as long as the process.

    ``torch.distributed`` holds the C++ part of a store alone: once nothing holds the Python part, calls end in "Not
    implemented".
    """

    def __init__(self) -> None:
        super().__init__()
        _kept.append(self)


def default_store() -> Store:
    """Return the store in which the ranks of the world met."""
    store: Store = dist.distributed_c10d._get_default_store()
    return store


def cpu_group_of_world() -> Any:
    """Return gloo's group of the world."""
    world: Any = dist.group.WORLD
    return world._get_backend(torch.device("cpu"))


def wait_so_long(group: Any, patience: timedelta) -> None:
    """Set how long a group of gloo waits for a message."""
    group._set_default_timeout(patience)


def leave_world() -> None:
    """Leave the group of all ranks, or what is left of an attempt to join it; it can be joined again afterwards.

    ``torch.distributed`` names groups by counting attempts, and begins again only where a group is destroyed: a rank
    whose attempt failed would look for the others under a name that they do not have.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.distributed_c10d._world.group_count = 0


@contextmanager
def as_one_process() -> Iterator[None]:
    """Let what runs in a block find no other ranks: ``torch.distributed.is_initialized()`` is false meanwhile.

    Groups that exist already go on to work; nothing else of the process may ask for the world in the meantime.
    """
    member: Any = dist.distributed_c10d.GroupMember
    world, member.WORLD = member.WORLD, None
    try:
        yield
    finally:
        member.WORLD = world
