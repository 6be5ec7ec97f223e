"""Memory that one rank writes and another reads, buffer by buffer; both are processes of one machine.

A rank has one arena: a file in memory without a name (a memfd), which grows and never shrinks. A buffer in it begins
with whether it is free. The writer fills a free one; the reader frees it when nobody there holds its memory any more.
Neither asks the other.

Left out: how the reader hears of it (``mailboxes.py``).
"""

import mmap
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.runtime.pipeline.message import MessageBuffer, Packing

FREE, FULL = range(2)
"""The states of a buffer."""

_HEAD_BYTES = 64  # one line of the processor's cache, so that the values are aligned to 64 bytes


class SharedBuffer(MessageBuffer):
    """The memory of one message, mapped by two processes.

    Attributes:
        place: Where it begins in the arena.
        size_bytes: Of the message.
        state: Its first element is :data:`FREE` or :data:`FULL`.
    """

    __slots__ = ("place", "size_bytes", "state")

    def __init__(self, descriptor: int, place: int, packing: Packing) -> None:
        self.place, self.size_bytes = place, packing.size_bytes
        self.state = mmap.mmap(descriptor, _HEAD_BYTES + packing.size_bytes, offset=place)
        super().__init__(torch.frombuffer(self.state, dtype=torch.uint8, offset=_HEAD_BYTES), packing)


class Arena:
    """The memory that one rank writes.

    Attributes:
        descriptor: Of its file.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("heterps-compile")
        self._end = mmap.ALLOCATIONGRANULARITY  # nothing lies at 0
        self._copies: dict[int, deque[SharedCopy]] = {}  # by size, the one that was written longest ago first

    def reserve(self, size_bytes: int) -> int:
        """Return the place of so many zeros.

        Raises:
            MemoryError: where the machine has no room for them.
        """
        place = self._end
        self._end += -(-size_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            os.posix_fallocate(self.descriptor, place, self._end - place)  # else it is a write that fails, fatally
        except OSError as error:
            raise MemoryError(f"there is none for {size_bytes} bytes to share: {error.strerror}") from error
        return place

    def new_buffer(self, packing: Packing) -> SharedBuffer:
        """Return a buffer for messages of a layout."""
        return SharedBuffer(self.descriptor, self.reserve(_HEAD_BYTES + packing.size_bytes), packing)

    def copy(self, content: Tensor, readers: Sequence[memoryview], mailbox: int) -> "SharedCopy":
        """Copy bytes to memory that no reader needs any more; the caller then writes the readers' mailboxes."""
        size_bytes = content.numel()
        step = max(mmap.ALLOCATIONGRANULARITY, 1 << max(size_bytes.bit_length() - 4, 0))  # at most an eighth is unused
        room = max(-(-size_bytes // step), 1) * step
        copies = self._copies.setdefault(room, deque())
        copy = next((copy for copy in copies if copy.is_free), None)
        if copy is None:
            place = self.reserve(room)
            copy = SharedCopy(place, map_bytes(self.descriptor, place, room))
        else:
            copies.remove(copy)
        copies.append(copy)
        copy.content[:size_bytes].copy_(content)
        copy.readers, copy.mailbox = readers, mailbox
        return copy


@dataclass(slots=True, eq=False)
class SharedCopy:
    """A message that several ranks read, each of which empties its mailbox once it has.

    Attributes:
        place: Where it begins in the arena.
        content: Its memory.
        readers: Mailboxes of the ranks that read it.
        mailbox: The one among them that says so.
    """

    place: int
    content: Tensor
    readers: Sequence[memoryview] = ()
    mailbox: int = 0

    @property
    def is_free(self) -> bool:
        """Return whether all have read it."""
        return all(mailboxes[self.mailbox] != self.place for mailboxes in self.readers)


def map_bytes(descriptor: int, place: int, size_bytes: int) -> Tensor:
    """Map memory of an arena."""
    return torch.frombuffer(mmap.mmap(descriptor, size_bytes, offset=place), dtype=torch.uint8)


def map_buffer(descriptor: int, place: int, size_bytes: int, packing: Packing, writer: str) -> SharedBuffer:
    """Map a buffer of another rank's arena.

    Raises:
        RunError: where it is not what the layout says; a peer's word is not taken for granted.
    """
    if size_bytes != packing.size_bytes:
        raise RunError(
            f"{writer} tells of a message of {size_bytes} bytes where one of {packing.size_bytes} is due; do all ranks "
            f"run the same version?"
        )
    check_place(descriptor, place, _HEAD_BYTES + size_bytes, writer)
    return SharedBuffer(descriptor, place, packing)


def check_place(descriptor: int, place: int, size_bytes: int, writer: str) -> None:
    """Check that so many bytes can be mapped.

    Raises:
        RunError: where they cannot.
    """
    whole = os.fstat(descriptor).st_size
    if place <= 0 or place % mmap.ALLOCATIONGRANULARITY or not 0 < size_bytes <= whole - place:
        raise RunError(
            f"{writer} tells of {size_bytes} bytes at {place} of its memory, which has {whole}; do all ranks run the "
            f"same version?"
        )
