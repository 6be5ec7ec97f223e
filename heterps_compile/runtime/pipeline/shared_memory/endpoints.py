"""One route's messages in one direction between two ranks of one machine, through memory that both map.

Values are copied once, into the slab, and read where they lie.

Left out: who tells whom (``neighbours.py``), what is the same over a network (``transport.py``).
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from heterps_compile.runtime.pipeline.message import Packing, bytes_packing

from .arena import FREE, FULL, SharedSlab, map_slab
from .neighbours import SLEEPS, Neighbours

_HELD_BYTES = 2**20
"""What a rank holds of one way at most, though nobody needs it any more, before it looks which of it is free."""


class MemoryOut:
    """Sends to one rank."""

    def __init__(self, neighbours: Neighbours, peer: int) -> None:
        self._neighbours, self._peer, self._rows = neighbours, peer, neighbours.rows_to(peer)
        self._slabs: deque[SharedSlab] = deque()  # the one that was filled longest ago first

    def send_header(self, header: Tensor, tag: int) -> None:
        """Send the bytes that describe the messages."""
        packing = bytes_packing(header.numel())
        slab = self._neighbours.memory.new_slab(packing)
        packing.pack([header], slab.views)
        self._tell(slab, tag)

    def send(self, packing: Packing, values: Sequence[Any], tag: int) -> None:
        """Send values."""
        slabs = self._slabs
        if slabs and slabs[0].state[0] == FREE:
            slab = slabs[0]
            slabs.rotate(-1)
        else:
            slab = self._find(packing)
        packing.pack(values, slab.views)
        slab.state[0] = FULL
        self._tell(slab, tag)

    def _tell(self, slab: SharedSlab, tag: int) -> None:
        """Say that a message lies in a slab."""
        rows, row = self._rows, 2 * tag
        if rows[row]:
            self._neighbours.wait_until_taken(self._peer, row)
        rows[row + 1] = slab.size_bytes
        rows[row] = slab.place  # last: with it the message is there
        if rows[SLEEPS]:
            self._neighbours.ring(self._peer)

    def _find(self, packing: Packing) -> SharedSlab:
        slab = next((slab for slab in self._slabs if slab.state[0] == FREE), None)
        if slab is None:
            slab = self._neighbours.memory.new_slab(packing)
        else:
            self._slabs.remove(slab)
        self._slabs.append(slab)
        return slab

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
        self._neighbours, self._peer, self._rows = neighbours, peer, neighbours.rows_from(peer)
        self._shown = shown
        self._slabs: dict[int, SharedSlab] = {}
        self._held: deque[SharedSlab] = deque()

    def take_header(self, tag: int) -> bytes:
        """Wait for the bytes that describe the messages."""
        rows, row = self._rows, 2 * tag
        if not rows[row]:
            self._neighbours.wait_for(self._peer, row)
        place, size_bytes = rows[row], rows[row + 1]
        rows[row] = 0
        return self._map(place, size_bytes, bytes_packing(size_bytes)).buffer.numpy().tobytes()

    def post(self, packing: Packing, tag: int) -> None:
        """Do nothing: the sender has the memory."""

    def take(self, packing: Packing, tag: int) -> Sequence[Tensor | None]:
        """Wait for a message and give the views of its values."""
        held = self._held
        if len(held) * packing.size_bytes > _HELD_BYTES:
            self._free_some()
        rows, row = self._rows, 2 * tag
        if not rows[row]:
            self._neighbours.wait_for(self._peer, row)
        slab = self._slabs.get(rows[row])
        if slab is None:
            slab = self._slabs[rows[row]] = self._map(rows[row], rows[row + 1], packing)
        rows[row] = 0
        held.append(slab)
        return slab.views

    def _free_some(self) -> None:
        """Free the slabs that were taken longest ago, up to one that is still needed."""
        held = self._held
        while held:
            if not held[0].is_unused:
                held.rotate(-1)  # so that one that is needed for long is in nobody's way
                return
            held.popleft().state[0] = FREE

    def let_go(self) -> None:
        """Free what nobody needs any more."""
        held = self._held
        for _ in range(len(held)):
            slab = held.popleft()
            if slab.is_unused:
                slab.state[0] = FREE
            else:
                held.append(slab)

    def _map(self, place: int, size_bytes: int, packing: Packing) -> SharedSlab:
        return map_slab(self._neighbours.memory_of(self._peer), place, size_bytes, packing, self._shown)
