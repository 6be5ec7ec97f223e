"""One route's messages in one direction between two ranks of one machine, through memory that both map.

Values are copied once, into the slab, and read where they lie.

Left out: who tells whom (``neighbours.py``), what is the same over a network (``transport.py``).
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .message import Packing, bytes_packing
from .neighbours import Neighbours
from .shared_slab import FREE, FULL, SharedSlab, map_slab

_LOOKED_AT = 2  # slabs that a rank looks at as it takes one, so that those it holds in vain become fewer


class MemoryOut:
    """Sends to one rank."""

    def __init__(self, neighbours: Neighbours, peer: int) -> None:
        self._neighbours, self._peer = neighbours, peer
        self._slabs: list[SharedSlab] = []

    def send_header(self, header: Tensor, tag: int) -> None:
        """Send the bytes that describe the messages."""
        packing = bytes_packing(header.numel())
        slab = self._neighbours.memory.new_slab(packing)
        packing.pack([header], slab.views)
        self._neighbours.put(self._peer, tag, slab)

    def send(self, packing: Packing, values: Sequence[Any], tag: int) -> None:
        """Send values."""
        for slab in self._slabs:
            if slab.state[0] == FREE:
                break
        else:
            slab = self._neighbours.memory.new_slab(packing)
            self._slabs.append(slab)
        packing.pack(values, slab.views)
        slab.state[0] = FULL
        self._neighbours.put(self._peer, tag, slab)

    def settle(self, tag: int) -> None:
        """Do nothing: the reader says itself when a slab is free."""

    def flush(self) -> None:
        """Do nothing: what was sent can be read even when this rank is gone."""


class MemoryIn:
    """Receives from one rank.

    Attributes:
        wants_buffers: Whether buffers have to be made ready ahead.
    """

    wants_buffers = False

    def __init__(self, neighbours: Neighbours, peer: int, shown: str) -> None:
        self._neighbours, self._peer, self._shown = neighbours, peer, shown
        self._slabs: dict[int, SharedSlab] = {}
        self._held: deque[SharedSlab] = deque()

    def take_header(self, tag: int) -> bytes:
        """Wait for the bytes that describe the messages."""
        place, size_bytes = self._neighbours.take(self._peer, tag)
        return self._map(place, size_bytes, bytes_packing(size_bytes)).buffer.numpy().tobytes()

    def post(self, packing: Packing, tag: int) -> None:
        """Do nothing: the sender has the memory."""

    def take(self, packing: Packing, tag: int) -> Sequence[Tensor | None]:
        """Wait for a message and give the views of its values."""
        self._free(_LOOKED_AT)
        place, size_bytes = self._neighbours.take(self._peer, tag)
        slab = self._slabs.get(place)
        if slab is None:
            slab = self._slabs[place] = self._map(place, size_bytes, packing)
        self._held.append(slab)
        return slab.views

    def let_go(self) -> None:
        """Free what nobody needs any more."""
        self._free(len(self._held))

    def _free(self, looked_at: int) -> None:
        for _ in range(min(looked_at, len(self._held))):
            slab = self._held.popleft()
            if slab.is_unused:
                slab.state[0] = FREE
            else:
                self._held.append(slab)

    def _map(self, place: int, size_bytes: int, packing: Packing) -> SharedSlab:
        return map_slab(self._neighbours.memory_of(self._peer), place, size_bytes, packing, self._shown)
