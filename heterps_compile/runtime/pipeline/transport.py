"""Send and receive messages between ranks: point to point, over ``torch.distributed``, nothing pickled.

Sends never wait. Receives are posted ahead, in the order in which a rank will need them, so that a message finds its
buffer ready; how far ahead bounds what lies there unread. The header of a route comes with its first message, so that
receives are posted from the second message on.

A buffer is used again as soon as nobody else holds its memory: the process asks for fresh memory in the first steps
only.

Left out: what the values are (``message.py``), which ranks talk (``routes.py``), devices that talk to each other past
the CPU's memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_compile.errors import RunError

from .message import Packing, check_values, describe, packing_of_header

_LARGEST_HEADER_BYTES = 2**24


class Slab:
    """A buffer of one message, with the views of its values."""

    __slots__ = ("_own_uses", "_storage", "buffer", "views")

    def __init__(self, packing: Packing, *, pinned: bool) -> None:
        self.buffer = torch.empty(packing.size_bytes, dtype=torch.uint8, pin_memory=pinned)
        self.views = packing.views(self.buffer)
        self._storage = self.buffer.untyped_storage()
        self._own_uses = self._uses()

    def _uses(self) -> int:
        uses: int = torch._C._storage_Use_Count(self._storage._cdata)
        return uses

    @property
    def is_free(self) -> bool:
        """Whether nobody but this object holds the memory."""
        return self._uses() == self._own_uses


class Sender:
    """Sends one route's messages in one direction to one rank.

    Attributes:
        peer: The rank.
        names: Of the values.
        packing: Their layout; None before the first message.
    """

    def __init__(self, peer: int, names: Sequence[str], header_tag: int, wire: str, device: torch.device) -> None:
        self.peer, self.names, self.packing = peer, tuple(names), None
        self._header_tag, self._wire, self._pinned = header_tag, wire, device.type == "cuda"
        self._free: list[Slab] = []
        # by tag, with what must stay in memory until it has gone
        self._sent: dict[int, list[tuple[dist.Work, Tensor | Slab]]] = {}

    packing: Packing | None

    def send(self, tag: int, values: Sequence[Any]) -> None:
        """Send values; returns at once.

        Raises:
            RunError: naming a value that is not as in the first message, or the rank that is gone.
        """
        if self.packing is None:
            self.packing = Packing([describe(v, n) for v, n in zip(values, self.names, strict=True)], self._wire)
            header = torch.frombuffer(bytearray(self.packing.header()), dtype=torch.uint8)
            self._start(torch.tensor([header.numel()]), self._header_tag)
            self._start(header, self._header_tag)
        else:
            check_values(self.packing, values, self.names)
        content = self.packing.as_bytes(values)
        if content is not None:
            self._start(content, tag)
            return
        slab = self._free.pop() if self._free else Slab(self.packing, pinned=self._pinned)
        self.packing.pack(values, slab.views)
        self._start(slab.buffer, tag, slab)

    def _start(self, content: Tensor, tag: int, slab: Slab | None = None) -> None:
        work = dist.isend(content, self.peer, tag=tag)
        assert work is not None  # noqa: S101 - every rank is in the group; this tells the type checker
        self._sent.setdefault(tag, []).append((work, content if slab is None else slab))

    def settle(self, tag: int) -> None:
        """Let go of a message that has arrived, as an answer to it tells."""
        for work, held in self._sent.pop(tag, ()):
            work.wait()
            if isinstance(held, Slab):
                self._free.append(held)

    def flush(self) -> None:
        """Wait until all that was sent has arrived."""
        for tag in list(self._sent):
            self.settle(tag)


class Receiver:
    """Receives one route's messages in one direction from one rank.

    Attributes:
        peer: The rank.
        packing: Layout of the messages; None before the first one.
    """

    packing: Packing | None

    def __init__(self, peer: int, count: int, header_tag: int, device: torch.device, shown: str) -> None:
        self.peer, self.packing = peer, None
        self._count, self._header_tag, self._device, self._shown = count, header_tag, device, shown
        self._slabs: list[Slab] = []
        self._posted: dict[int, tuple[dist.Work, Slab]] = {}

    def post(self, tag: int) -> None:
        """Make a buffer ready for a message, if its layout is known; a second time does nothing."""
        if self.packing is not None and tag not in self._posted:
            slab = next((slab for slab in self._slabs if slab.is_free), None)
            if slab is None:
                slab = Slab(self.packing, pinned=self._device.type == "cuda")
            else:
                self._slabs.remove(slab)
            self._posted[tag] = (self._receive(slab.buffer, tag), slab)

    def take(self, tag: int) -> list[Any]:
        """Wait for a message and give its values.

        Raises:
            RunError: where the header is none.
        """
        if self.packing is None:
            self.packing = self._read_header()
        self.post(tag)
        work, slab = self._posted.pop(tag)
        work.wait()
        values = self.packing.unpack(slab.views, self._device)
        self._slabs.append(slab)
        return values

    @property
    def size_bytes(self) -> int:
        """Give the bytes of a message; 0 before the first one."""
        return 0 if self.packing is None else self.packing.size_bytes

    def _read_header(self) -> Packing:
        size = torch.zeros(1, dtype=torch.int64)
        self._receive(size, self._header_tag).wait()
        if not 0 < int(size) <= _LARGEST_HEADER_BYTES:
            raise RunError(f"{self._shown} announces a header of {int(size)} bytes; do all ranks run the same version?")
        header = torch.zeros(int(size), dtype=torch.uint8)
        self._receive(header, self._header_tag).wait()
        return packing_of_header(header.numpy().tobytes(), self._count, self._shown)

    def _receive(self, buffer: Tensor, tag: int) -> dist.Work:
        work = dist.irecv(buffer, self.peer, tag=tag)
        assert work is not None  # noqa: S101 - every rank is in the group; this tells the type checker
        return work
