"""NCCL on the GPU of this rank: its groups, and the stream from which receives are posted.

Untried between GPUs. A rank that computes on the CPU does not import it.

Left out: which tensors go over NCCL, and in which order (``between_gpus.py``).
"""

import os
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_compile.runtime.c10d import Store

_PATIENCE = timedelta(minutes=30)  # the watcher of the rank notices long before that another one is gone
_MOST_BLOCKS = 4
"""Blocks of threads of a channel: a receive that waits occupies them, and what computes needs the others."""


def gpu_id(device: torch.device) -> str:
    """Return the UUID of a GPU; "" where PyTorch has no NCCL."""
    return str(torch.cuda.get_device_properties(device).uuid) if dist.is_nccl_available() else ""


class Nccl:
    """The GPU of this rank, and its groups.

    Attributes:
        device: The current CUDA device.
    """

    def __init__(self, *, is_local: bool) -> None:
        """Prepare.

        Args:
            is_local: Whether all ranks are on this machine, so that NCCL need listen on the loopback interface alone.
        """
        if is_local:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        self.device = torch.device("cuda", torch.cuda.current_device())
        cuda: Any = torch.cuda  # which declares no types of its streams
        self._aside = cuda.Stream(self.device)
        self._groups: list[Any] = []

    def connect(self, store: Store, place: int, size: int, *, is_channel: bool = False) -> Any:
        """Return a process group; its communicators connect at the first operation, which waits for all members.

        Args:
            store: Of the group alone.
            place: Of this rank in it.
            size: Its members.
            is_channel: Whether it has the messages from one rank to another.
        """
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = _PATIENCE
        if is_channel:
            options.config.max_ctas = _MOST_BLOCKS
        self._groups.append(nccl(store, place, size, options))
        return self._groups[-1]

    def aside(self) -> AbstractContextManager[Any]:
        """Return the context in which receives are posted: they do not wait for what this rank computes."""
        return torch.cuda.stream(self._aside)

    def use(self, received: Tensor) -> None:
        """Keep memory that was allocated aside until the stream that computes has used it."""
        received.record_stream(torch.cuda.current_stream(self.device))

    def close(self) -> None:
        """Leave all groups."""
        for group in self._groups:
            group.shutdown()
        self._groups.clear()
