"""One route's messages in one direction between two ranks, over gloo.

Sends never wait. Receives are posted ahead, so that a message finds its buffer ready. A single value that needs no
change of layout is sent from where it lies. The two directions have connections of their own::

    rank 0 ---- values ----> rank 1      to higher ranks, one connection a pair
    rank 0 <-- gradients --- rank 1      to lower ranks, another

The thread that computes holds the lock of a connection while it sends. gloo's own thread, which receives, spins for
that lock without ever sleeping; where it does so on the core of the very thread that holds it, both stand still until
the system takes the core away, milliseconds later (PyTorch 2.13). With data in one direction alone, what arrives does
not meet what is sent. Only gloo's word that a buffer is ready goes the other way, ahead of the data.

Tensors of a GPU are copied through the CPU's memory.

Left out: what is the same on one machine (``transport.py``), sums over ranks (``rank_group.py``), and what goes
between GPUs directly (``between_gpus.py``).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_compile.errors import RunError

from .message import MessageBuffer, Packing
from .rank_group import GlooGroup
from .world import world


class Links:
    """The connections of one rank to all others."""

    def __init__(self, world_size: int, rank: int) -> None:
        """Connect; waits for the others, of which every one does the same.

        Args:
            world_size: Ranks of the pipeline.
            rank: This one.
        """
        self._rank, ranks = rank, range(world_size)
        self._up, self._down = (GlooGroup(world().next_store(ranks), ranks, rank) for _ in range(2))

    def send(self, tensor: Tensor, target: int, tag: int) -> dist.Work:
        """Begin to send a tensor of the CPU, which must stay as it is until it has gone."""
        return (self._up if target > self._rank else self._down).start_send(tensor, target, tag)

    def receive(self, tensor: Tensor, source: int, tag: int) -> dist.Work:
        """Begin to receive into a tensor of the CPU."""
        return (self._down if source > self._rank else self._up).start_receive(tensor, source, tag)


_LARGEST_HEADER_BYTES = 2**24


class NetworkOut:
    """Sends to one rank."""

    def __init__(self, links: Links, peer: int, device: torch.device) -> None:
        self._links, self._peer, self._is_pinned = links, peer, device.type == "cuda"
        self._free: list[MessageBuffer] = []
        # by tag, with what must stay in memory until it has gone
        self._sent: dict[int, list[tuple[dist.Work, Tensor | MessageBuffer]]] = {}

    def send_header(self, header: Tensor, tag: int) -> None:
        """Send the bytes that describe the messages, their count first."""
        self._start(torch.tensor([header.numel()]), tag)
        self._start(header, tag)

    def send(self, packing: Packing, values: Sequence[Any], tag: int) -> None:
        """Send values; returns at once."""
        content = packing.as_it_lies(values)
        if content is not None:
            self._start(content, tag)
            return
        buffer = self._free.pop() if self._free else MessageBuffer(_memory(packing, is_pinned=self._is_pinned), packing)
        packing.pack(values, buffer.views)
        self._start(buffer.content, tag, buffer)

    def _start(self, content: Tensor, tag: int, buffer: MessageBuffer | None = None) -> None:
        work = self._links.send(content, self._peer, tag)
        self._sent.setdefault(tag, []).append((work, content if buffer is None else buffer))

    def settle(self, tag: int) -> None:
        """Let go of a message that has arrived."""
        for work, held in self._sent.pop(tag, ()):
            work.wait()
            if isinstance(held, MessageBuffer):
                self._free.append(held)

    def flush(self) -> None:
        """Wait until all that was sent has arrived."""
        for tag in list(self._sent):
            self.settle(tag)


class NetworkIn:
    """Receives from one rank.

    Attributes:
        wants_buffers: Whether receives have to be posted ahead.
    """

    wants_buffers = True

    def __init__(self, links: Links, peer: int, device: torch.device, shown: str) -> None:
        self._links, self._peer, self._is_pinned, self._shown = links, peer, device.type == "cuda", shown
        self._buffers: list[MessageBuffer] = []
        self._posted: dict[int, tuple[dist.Work, MessageBuffer]] = {}

    def take_header(self, tag: int) -> bytes:
        """Wait for the bytes that describe the messages."""
        size = torch.zeros(1, dtype=torch.int64)
        self._links.receive(size, self._peer, tag).wait()
        if not 0 < int(size) <= _LARGEST_HEADER_BYTES:
            raise RunError(f"{self._shown} announces a header of {int(size)} bytes; do all ranks run the same version?")
        header = torch.zeros(int(size), dtype=torch.uint8)
        self._links.receive(header, self._peer, tag).wait()
        return header.numpy().tobytes()

    def post(self, packing: Packing, tag: int) -> None:
        """Make a buffer ready for a message; a second time does nothing."""
        if tag in self._posted:
            return
        buffer = next((buffer for buffer in self._buffers if buffer.is_unused), None)
        if buffer is None:
            buffer = MessageBuffer(_memory(packing, is_pinned=self._is_pinned), packing)
        else:
            self._buffers.remove(buffer)
        self._posted[tag] = (self._links.receive(buffer.content, self._peer, tag), buffer)

    def take(self, packing: Packing, tag: int) -> Sequence[Tensor | None]:
        """Wait for a message and give the views of its values."""
        self.post(packing, tag)
        work, buffer = self._posted.pop(tag)
        work.wait()
        self._buffers.append(buffer)
        return buffer.views

    def let_go(self) -> None:
        """Do nothing: buffers are looked at as they are needed."""


def _memory(packing: Packing, *, is_pinned: bool) -> Tensor:
    return torch.empty(packing.size_bytes, dtype=torch.uint8, pin_memory=is_pinned)
