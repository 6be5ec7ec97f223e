"""Send and receive messages between ranks, point to point, nothing pickled.

Ranks with a GPU each talk over NCCL; of the others, those of one machine share memory, and the rest talk over gloo: a
route's messages in one direction go one of these three ways. What is the same in all of them is told once, in a header
ahead of the first.

Left out: the ways (``between_gpus.py``, ``shared_memory/endpoints.py``, ``over_gloo.py``), what the values are
(``message.py``), which ranks talk (``routes.py``).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heterps_compile.runtime.pipeline.shared_memory.endpoints import MemoryIn, MemoryOut
from heterps_compile.runtime.pipeline.shared_memory.mailboxes import Mailboxes

from .layout import Layout
from .message import Incoming, Outgoing, Packing, check_values, describe, packing_of_header
from .over_gloo import Links, NetworkIn, NetworkOut
from .routes import Route
from .world import world

if TYPE_CHECKING:
    from .between_gpus import GpuIn, GpuOut


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
        self._rank = rank
        self._channels: dict[tuple[int, int, int], GpuIn | GpuOut] = {}  # by header's tag, sender and receiver

    def sender(self, peer: int, header_tag: int, wire: str, device: torch.device, *, to_host: bool = False) -> Sender:
        """Return what sends to a rank; with ``to_host`` never over NCCL."""
        way: Outgoing
        if self._links is None or peer in self._peers:
            way = MemoryOut(self._mailboxes, peer)
        else:
            way = NetworkOut(self._links, peer, device)
        if not to_host and world().gpus.connects((self._rank, peer)):
            from .between_gpus import GpuOut  # noqa: PLC0415 - between GPUs alone

            way = self._channels[header_tag, self._rank, peer] = GpuOut(way, world().nccl)
        return Sender(way, header_tag, wire)

    def receiver(
        self, peer: int, header_tag: int, device: torch.device, shown: str, *, to_host: bool = False
    ) -> Receiver:
        """Return what receives from a rank, which ``shown`` tells in words; with ``to_host`` never over NCCL."""
        way: Incoming
        if self._links is None or peer in self._peers:
            way = MemoryIn(self._mailboxes, peer, shown)
        else:
            way = NetworkIn(self._links, peer, device, shown)
        if not to_host and world().gpus.connects((self._rank, peer)):
            from .between_gpus import GpuIn  # noqa: PLC0415 - between GPUs alone

            way = self._channels[header_tag, peer, self._rank] = GpuIn(way, world().nccl)
        return Receiver(way, peer, header_tag, device, shown)

    def connect_gpus(self, layout: Layout, routes: Sequence[Route]) -> None:
        """Connect the channels over NCCL, once all senders and receivers of the routes are made; all ranks do it.

        Raises:
            RunError: where a route's messages are sent in another order than they are taken.
        """
        if self._channels:
            from .between_gpus import refuse_other_order  # noqa: PLC0415 - between GPUs alone

            refuse_other_order(layout, routes)
        for key, channel in sorted(self._channels.items(), key=lambda item: item[0]):
            channel.connect(world().next_store(key[1:], of=f"channel-{key[0]}"))
