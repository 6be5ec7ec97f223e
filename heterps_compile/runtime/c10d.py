"""What is used of ``torch.distributed`` that it has and does not declare; nothing else uses it.

========================  =========================================================================================
``Store`` and its kinds   ``torch.distributed`` has them, and its types do not say so
``as_one_process``        metrics of torchmetrics wait for all ranks of a user's own group, and one rank computes them
========================  =========================================================================================

Looked at and tried in PyTorch 2.13, the version that is pinned; others that may be installed (2.6 and later) are not
tried.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

__all__ = [
    "PrefixStore",
    "Store",
    "TCPStore",
    "as_one_process",
]


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
