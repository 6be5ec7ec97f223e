"""Send and receive messages between ranks: point to point, over ``torch.distributed``, nothing pickled.

Sends never wait. Receives are posted ahead, so that a message finds its buffer ready. The header of a route comes with
its first message, so that receives are posted from the second message on.

A buffer is used again as soon as nobody else holds its memory: the process asks for fresh memory in the first steps
only.

Left out: what the values are (``message.py``), which ranks talk (``routes.py``) and over what (``links.py``), devices
that talk to each other past the CPU's memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_compile.errors import RunError

from .links import Links
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
    """Sends one route's messages in one direction to one rank."""

    def __init__(self, links: Links, peer: int, header_tag: int, wire: str, device: torch.device) -> None:
        self._links, self._peer, self._header_tag, self._wire = links, peer, header_tag, wire
        self._pinned = device.type == "cuda"
        self._packing: Packing | None = None
        self._free: list[Slab] = []
        # by tag, with what must stay in memory until it has gone
        self._sent: dict[int, list[tuple[dist.Work, Tensor | Slab]]] = {}

    def send(self, tag: int, names: Sequence[str], values: Sequence[Any]) -> None:
        """Send values; returns at once.

        Raises:
            RunError: naming a value that is not as in the first message, or the rank that is gone.
        """
        packing = self._packing
        if packing is None:
            packing = self._packing = Packing(
                [describe(v, n) for v, n in zip(values, names, strict=True)],
                self._wire,
            )
            header = torch.frombuffer(bytearray(packing.header()), dtype=torch.uint8)
            self._start(torch.tensor([header.numel()]), self._header_tag)
            self._start(header, self._header_tag)
        else:
            check_values(packing, values, names)
        content = packing.as_it_lies(values)
        if content is not None:
            self._start(content, tag)
            return
        slab = self._free.pop() if self._free else Slab(packing, pinned=self._pinned)
        packing.pack(values, slab.views)
        self._start(slab.buffer, tag, slab)

    def _start(self, content: Tensor, tag: int, slab: Slab | None = None) -> None:
        work = self._links.send(content, self._peer, tag)
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
        size_bytes: Of a message; 0 before the first one.
    """

    def __init__(self, links: Links, peer: int, header_tag: int, device: torch.device, shown: str) -> None:
        self.peer, self.size_bytes = peer, 0
        self._links, self._header_tag, self._device, self._shown = links, header_tag, device, shown
        self._packing: Packing | None = None
        self._slabs: list[Slab] = []
        self._posted: dict[int, tuple[dist.Work, Slab]] = {}

    def post(self, tag: int) -> None:
        """Make a buffer ready for a message, if its layout is known; a second time does nothing."""
        if self._packing is not None and tag not in self._posted:
            slab = next((slab for slab in self._slabs if slab.is_free), None)
            if slab is None:
                slab = Slab(self._packing, pinned=self._device.type == "cuda")
            else:
                self._slabs.remove(slab)
            self._posted[tag] = (self._links.receive(slab.buffer, self.peer, tag), slab)

    def take(self, tag: int, count: int) -> list[Any]:
        """Wait for a message of so many values and give them.

        Raises:
            RunError: where the header is none.
        """
        if self._packing is None:
            self._packing = self._read_header(count)
            self.size_bytes = self._packing.size_bytes
        self.post(tag)
        work, slab = self._posted.pop(tag)
        work.wait()
        values = self._packing.unpack(slab.views, self._device)
        self._slabs.append(slab)
        return values

    def _read_header(self, count: int) -> Packing:
        size = torch.zeros(1, dtype=torch.int64)
        self._links.receive(size, self.peer, self._header_tag).wait()
        if not 0 < int(size) <= _LARGEST_HEADER_BYTES:
            raise RunError(f"{self._shown} announces a header of {int(size)} bytes; do all ranks run the same version?")
        header = torch.zeros(int(size), dtype=torch.uint8)
        self._links.receive(header, self.peer, self._header_tag).wait()
        return packing_of_header(header.numpy().tobytes(), count, self._shown)
