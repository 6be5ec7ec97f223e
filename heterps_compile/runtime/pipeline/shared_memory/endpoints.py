"""One route's messages in one direction between two ranks of one machine, through memory that both map.

Values are copied once, into the buffer, and read where they lie.

Left out: the mailboxes (``mailboxes.py``), what is the same over a network (``transport.py``).
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from heterps_compile.runtime.pipeline.message import Packing, bytes_packing

from .arena import FREE, FULL, SharedBuffer, map_buffer
from .mailboxes import Mailboxes


class MemoryOut:
    """Sends to one rank."""

    def __init__(self, mailboxes: Mailboxes, peer: int) -> None:
        self._mailboxes, self._peer, self._arena = mailboxes, peer, mailboxes.neighbours.arena
        self._buffers: deque[SharedBuffer] = deque()  # the one that was filled longest ago first

    def send_header(self, header: Tensor, tag: int) -> None:
        """Send the bytes that describe the messages."""
        packing = bytes_packing(header.numel())
        buffer = self._arena.new_buffer(packing)
        packing.pack([header], buffer.views)
        self._mailboxes.post(self._peer, 2 * tag, buffer.place, buffer.size_bytes)

    def send(self, packing: Packing, values: Sequence[Any], tag: int) -> None:
        """Send values."""
        buffers = self._buffers
        if buffers and buffers[0].state[0] == FREE:
            buffer = buffers[0]
            buffers.rotate(-1)
        else:
            buffer = self._find(packing)
        packing.pack(values, buffer.views)
        buffer.state[0] = FULL
        self._mailboxes.post(self._peer, 2 * tag, buffer.place, buffer.size_bytes)

    def _find(self, packing: Packing) -> SharedBuffer:
        buffer = next((buffer for buffer in self._buffers if buffer.state[0] == FREE), None)
        if buffer is None:
            buffer = self._arena.new_buffer(packing)
        else:
            self._buffers.remove(buffer)
        self._buffers.append(buffer)
        return buffer

    def settle(self, tag: int) -> None:
        """Do nothing: the reader says itself when a buffer is free."""

    def flush(self) -> None:
        """Do nothing: what was sent can be read even when this rank is gone."""


class MemoryIn:
    """Receives from one rank.

    Attributes:
        wants_buffers: Whether receives have to be posted ahead.
    """

    wants_buffers = False

    def __init__(self, mailboxes: Mailboxes, peer: int, shown: str) -> None:
        self._peer, self._shown, self._inbox = peer, shown, mailboxes.inbox(peer)
        self._arena, self._wait_for = mailboxes.neighbours.arena_of(peer), mailboxes.wait_for
        self._buffers: dict[int, SharedBuffer] = {}
        self._held: deque[SharedBuffer] = deque()

    def take_header(self, tag: int) -> bytes:
        """Wait for the bytes that describe the messages."""
        inbox, mailbox = self._inbox, 2 * tag
        if not inbox[mailbox]:
            self._wait_for({self._peer: mailbox})
        place, size_bytes = inbox[mailbox], inbox[mailbox + 1]
        inbox[mailbox] = 0
        return self._map(place, size_bytes, bytes_packing(size_bytes)).content.numpy().tobytes()

    def post(self, packing: Packing, tag: int) -> None:
        """Do nothing: the sender has the memory."""

    def take(self, packing: Packing, tag: int) -> Sequence[Tensor | None]:
        """Wait for a message and give the views of its values."""
        self._free_some()
        inbox, mailbox = self._inbox, 2 * tag
        if not inbox[mailbox]:
            self._wait_for({self._peer: mailbox})
        buffer = self._buffers.get(inbox[mailbox])
        if buffer is None:
            buffer = self._buffers[inbox[mailbox]] = self._map(inbox[mailbox], inbox[mailbox + 1], packing)
        inbox[mailbox] = 0
        self._held.append(buffer)
        return buffer.views

    def _free_some(self) -> None:
        """Free the buffers that were taken longest ago, up to one that is still needed."""
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
            buffer = held.popleft()
            if buffer.is_unused:
                buffer.state[0] = FREE
            else:
                held.append(buffer)

    def _map(self, place: int, size_bytes: int, packing: Packing) -> SharedBuffer:
        return map_buffer(self._arena, place, size_bytes, packing, self._shown)
