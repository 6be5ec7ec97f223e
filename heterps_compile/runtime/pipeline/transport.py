"""Send and receive messages between ranks, point to point, nothing pickled.

Ranks of one machine share memory, others talk over ``torch.distributed``: a route's messages in one direction go one of
these two ways. What is the same in all of them is told once, in a header ahead of the first.

Left out: the two ways (``shared_memory/endpoints.py``, ``over_gloo.py``), what the values are (``message.py``), which
ranks talk (``routes.py``).
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from heterps_compile.runtime.pipeline.shared_memory.endpoints import MemoryIn, MemoryOut
from heterps_compile.runtime.pipeline.shared_memory.mailboxes import Mailboxes

from .message import Packing, check_values, describe, packing_of_header
from .over_gloo import Links, NetworkIn, NetworkOut
from .world import world


class Outgoing(Protocol):
    """One way of messages to a rank."""

    def send_header(self, header: Tensor, tag: int) -> None: ...  # noqa: D102 - see over_gloo.py

    def send(self, packing: Packing, values: Sequence[Any], tag: int) -> None: ...  # noqa: D102

    def settle(self, tag: int) -> None: ...  # noqa: D102

    def flush(self) -> None: ...  # noqa: D102


class Incoming(Protocol):
    """One way of messages from a rank."""

    @property
    def wants_buffers(self) -> bool: ...  # noqa: D102 - see over_gloo.py

    def take_header(self, tag: int) -> bytes: ...  # noqa: D102

    def post(self, packing: Packing, tag: int) -> None: ...  # noqa: D102

    def take(self, packing: Packing, tag: int) -> Sequence[Tensor | None]: ...  # noqa: D102

    def let_go(self) -> None: ...  # noqa: D102


class Sender:
    """Sends one route's messages in one direction to one rank."""

    def __init__(self, way: Outgoing, header_tag: int, wire: str) -> None:
        self._way, self._header_tag, self._wire = way, header_tag, wire
        self._packing: Packing | None = None
        self.settle = way.settle
        self.flush = way.flush

    def send_gradients(self, tag: int, names: Sequence[str], gradients: Sequence[Tensor | None]) -> None:
        """Send gradients of values that were received: they have the same layout every time, or there are none.

        Raises:
            RunError: naming a value that has a gradient and had none in the first message, or none where it had one.
        """
        packing = self._packing
        if packing is not None:
            for place, expected in enumerate(packing.expected):
                if (expected is None) is not (gradients[place] is None):
                    break
            else:
                self._way.send(packing, gradients, tag)
                return
        self.send(tag, names, gradients)

    def send(self, tag: int, names: Sequence[str], values: Sequence[Any]) -> None:
        """Send values.

        Raises:
            RunError: naming a value that is not as in the first message, or the rank that is gone.
        """
        packing = self._packing
        if packing is not None:
            for place, expected in enumerate(packing.expected):  # check_values() describes them, which is slow
                value = values[place]
                if expected is None or not isinstance(value, Tensor):
                    break
                dtype, shape, requires_grad = expected
                if value.dtype is not dtype or value.shape != shape or value.requires_grad is not requires_grad:
                    break
            else:
                self._way.send(packing, values, tag)
                return
            check_values(packing, values, names)
        else:
            specs = [describe(value, name) for value, name in zip(values, names, strict=True)]
            packing = self._packing = Packing(specs, self._wire)
            self._way.send_header(torch.frombuffer(bytearray(packing.header()), dtype=torch.uint8), self._header_tag)
        self._way.send(packing, values, tag)


class Receiver:
    """Receives one route's messages in one direction from one rank.

    Attributes:
        peer: The rank.
        size_bytes: Of a message; 0 before the first one.
        wants_buffers: Whether receives have to be posted ahead.
    """

    def __init__(self, way: Incoming, peer: int, header_tag: int, device: torch.device, shown: str) -> None:
        self.peer, self.size_bytes, self.wants_buffers = peer, 0, way.wants_buffers
        self._way, self._header_tag, self._device, self._shown = way, header_tag, device, shown
        self._packing: Packing | None = None
        self._unpack: Callable[[Sequence[Tensor | None]], list[Any]]
        self.let_go = way.let_go

    def post(self, tag: int) -> None:
        """Make a buffer ready for a message, if its layout is known; a second time does nothing."""
        if self._packing is not None:
            self._way.post(self._packing, tag)

    def take(self, tag: int, count: int) -> list[Any]:
        """Wait for a message of so many values and give them.

        Raises:
            RunError: where the header is none, or the rank is gone.
        """
        if self._packing is None:
            self._packing = packing_of_header(self._way.take_header(self._header_tag), count, self._shown)
            self.size_bytes = self._packing.size_bytes
            self._unpack = self._packing.unpacker(self._device)
        return self._unpack(self._way.take(self._packing, tag))


class Transport:
    """What one rank talks to the others over."""

    def __init__(self, world_size: int, rank: int, tags: int) -> None:
        """Connect; waits for the others, of which every one does the same.

        Args:
            world_size: Ranks of the pipeline.
            rank: This one.
            tags: How many there are, from 0.
        """
        neighbours, ranks = world().neighbours, range(world_size)
        self._peers = [peer for peer in ranks if peer in neighbours.ranks]
        self._mailboxes = Mailboxes(neighbours, self._peers, tags)
        self._links = None if neighbours.have(ranks) else Links(world_size, rank)

    def sender(self, peer: int, header_tag: int, wire: str, device: torch.device) -> Sender:
        """Return what sends to a rank."""
        if self._links is None or peer in self._peers:
            return Sender(MemoryOut(self._mailboxes, peer), header_tag, wire)
        return Sender(NetworkOut(self._links, peer, device), header_tag, wire)

    def receiver(self, peer: int, header_tag: int, device: torch.device, shown: str) -> Receiver:
        """Return what receives from a rank, which ``shown`` tells in words."""
        if self._links is None or peer in self._peers:
            return Receiver(MemoryIn(self._mailboxes, peer, shown), peer, header_tag, device, shown)
        return Receiver(NetworkIn(self._links, peer, device, shown), peer, header_tag, device, shown)
