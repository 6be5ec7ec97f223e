r"""Messages and sums between ranks with a GPU each, over NCCL, without the CPU's memory.

NCCL has no tags: the k-th receive of a communicator takes its k-th send, and both run on the one stream of that
communicator. With one communicator for a pair of ranks, a send waits behind a receive that waits for the other rank;
two ranks that do so wait for ever. So each route has a channel for each pair and direction: a communicator of two::

    rank 0                                        rank 1
    computes F0 --- event ---> send F0  ~~~~~~>   recv F0 --- event ---> computes F0
    computes F1 --- event ---> send F1  ~~~~~~>   recv F1                (stream of the channel 0 -> 1)
    computes B0 <-- event ---- recv B0  <~~~~~~   send B0 <-- event ---- computes B0
                                                                         (stream of the channel 1 -> 0)

Why no rank waits for ever:

1. A channel has messages of one size. The sender's actions send micro-batches in the order in which the receiver's
   actions take them, under every schedule; :func:`refuse_other_order` checks it for each route before the first step.
   So the k-th receive is of the k-th message, whichever micro-batch it is posted for.
2. A send waits for its value, for the sends before it in its channel, and for its receive. A receive is posted at the
   latest by the action that takes it, from a stream that waits for no computing. So a message arrives once its
   sender's action has run and its receiver's action has begun, as over a network with unlimited buffers, under which
   schedules end (``layout.py`` refuses those that do not).
3. The host waits for no GPU: it posts, and streams wait for events. It does wait for the other rank while a
   communicator connects, so all connect before the first step, in one order for all ranks: the members of the first
   one that is not connected have connected all theirs before it.
4. Communicators that are used at one time need room on the GPU at one time. At most one operation of a channel runs,
   and takes few blocks of threads (``over_nccl.py``).

A value that is sent is kept until the stream that computes waits for the end of its send. A message with a number of
Python goes through the host, where reading it does not wait for the GPU; so does a header.

Left out: CUDA (``over_nccl.py``), which ranks have GPUs (``gpu_table.py``). Source: PyTorch's ProcessGroupNCCL, and the
guide of NCCL, "Point-to-point communication" and "Using multiple NCCL communicators concurrently".
"""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.runtime.c10d import Store
from heterps_compile.schedule.order import Phase

from .layout import Layout
from .message import Incoming, Outgoing, Packing
from .rank_group import PendingWork, RankGroup
from .routes import Route

if TYPE_CHECKING:
    from .over_nccl import Nccl

_SENDER, _RECEIVER = range(2)
"""Their places in a channel."""


class GpuOut:
    """Sends one route's messages to one rank."""

    _group: Any

    def __init__(self, host: Outgoing, nccl: "Nccl") -> None:
        """Prepare; :meth:`connect` waits for the receiver.

        Args:
            host: The way through the CPU's memory.
            nccl: Of this rank.
        """
        self._host, self._nccl = host, nccl
        self.send_header = host.send_header
        self._sent: dict[int, tuple[dist.Work, Tensor]] = {}

    def connect(self, store: Store) -> None:
        """Connect with the receiver, which does the same, by a message of one byte."""
        self._group = self._nccl.connect(store, _SENDER, 2, is_channel=True)
        self._group.send([_bytes(1, self._nccl)], _RECEIVER, 0).wait()

    def send(self, packing: Packing, values: Sequence[Any], tag: int) -> None:
        """Send values; returns at once."""
        if packing.has_numbers:
            self._host.send(packing, values, tag)
            return
        value = packing.as_it_lies(values, self._nccl.device.type)
        if value is None:
            content = _bytes(packing.size_bytes, self._nccl)
            packing.pack(values, packing.views(content))
        else:
            content = value.view(-1).view(torch.uint8)
        self._sent[tag] = self._group.send([content], _RECEIVER, 0), content

    def settle(self, tag: int) -> None:
        """Let go of a message, once what is computed later waits for the end of its send."""
        if tag in self._sent:
            work, _ = self._sent.pop(tag)
            work.wait()
        self._host.settle(tag)

    def flush(self) -> None:
        """Let go of all that was sent."""
        for tag in list(self._sent):
            self.settle(tag)
        self._host.flush()


class GpuIn:
    """Receives one route's messages from one rank.

    Attributes:
        wants_buffers: Whether receives have to be posted ahead.
    """

    wants_buffers = True
    _group: Any

    def __init__(self, host: Incoming, nccl: "Nccl") -> None:
        """Prepare; :meth:`connect` waits for the sender.

        Args:
            host: The way through the CPU's memory.
            nccl: Of this rank.
        """
        self._host, self._nccl = host, nccl
        self.take_header, self.let_go = host.take_header, host.let_go
        self._posted: set[int] = set()
        self._arriving: deque[tuple[dist.Work, Tensor]] = deque()

    def connect(self, store: Store) -> None:
        """Connect with the sender, which does the same, by a message of one byte."""
        self._group = self._nccl.connect(store, _RECEIVER, 2, is_channel=True)
        self._group.recv([_bytes(1, self._nccl)], _SENDER, 0).wait()

    def post(self, packing: Packing, tag: int) -> None:
        """Post the next receive of the channel; a second time for a message does nothing."""
        if packing.has_numbers:
            self._host.post(packing, tag)
        elif tag not in self._posted:
            self._posted.add(tag)
            with self._nccl.aside():
                content = _bytes(packing.size_bytes, self._nccl)
                self._arriving.append((self._group.recv([content], _SENDER, 0), content))

    def take(self, packing: Packing, tag: int) -> Sequence[Tensor | None]:
        """Return the views of a message, for which what is computed later waits."""
        if packing.has_numbers:
            return self._host.take(packing, tag)
        self.post(packing, tag)
        self._posted.remove(tag)
        work, content = self._arriving.popleft()
        work.wait()
        self._nccl.use(content)
        return packing.views(content)


class GpuGroup:
    """Some ranks with a GPU each: dense tensors of GPUs are summed over NCCL, all else as ``host`` does it.

    Attributes:
        ranks: Its members.
    """

    def __init__(self, host: RankGroup, nccl: "Nccl", store: Store, place: int) -> None:
        """Connect; waits for the other members.

        Args:
            host: The same ranks, through the CPU's memory.
            nccl: Of this rank.
            store: Of the group alone.
            place: Of this rank among the members.
        """
        self.ranks, self._host, self._device_type = host.ranks, host, nccl.device.type
        self.gather, self.start_send, self.start_receive = host.gather, host.start_send, host.start_receive
        self._group = nccl.connect(store, place, len(self.ranks))
        self._group.allreduce([_bytes(1, nccl)], dist.ReduceOp.MAX).wait()

    def sum(self, tensor: Tensor) -> PendingWork:
        """Begin to sum a tensor in place; dense, or sparse with every row once."""
        return self._combine(tensor, dist.ReduceOp.SUM) if self._is_dense(tensor) else self._host.sum(tensor)

    def maximum(self, tensor: Tensor) -> Any:
        """Begin to take the largest of every element, in place."""
        return self._combine(tensor, dist.ReduceOp.MAX) if self._is_dense(tensor) else self._host.maximum(tensor)

    def _is_dense(self, tensor: Tensor) -> bool:
        return not tensor.is_sparse and tensor.device.type == self._device_type and tensor.is_contiguous()

    def _combine(self, tensor: Tensor, how: Any) -> Any:
        return self._group.allreduce([tensor.detach()], how)


def refuse_other_order(layout: Layout, routes: Sequence[Route]) -> None:
    """Check that micro-batches are sent in the order in which they are taken, along every route and between all ranks.

    Raises:
        RunError: naming two ranks that differ.
    """
    for route in routes:
        for phase, sender, taker in (
            (Phase.FORWARD, route.source, route.target),
            (Phase.BACKWARD, route.target, route.source),
        ):
            for source in layout.ranks_of(sender):
                for target in layout.ranks_of(taker):
                    sent = _order(layout, (source, sender), (target, taker), phase)
                    taken = _order(layout, (target, taker), (source, sender), phase)
                    if sent != taken:
                        raise RunError(
                            f"the schedule has {layout.describe(source)} send micro-batches {sent} and "
                            f"{layout.describe(target)} take {taken}; expected one order, in which NCCL passes them. "
                            f"Fix: choose another schedule (--schedule)"
                        )


def _order(layout: Layout, own: tuple[int, int], other: tuple[int, int], phase: Phase) -> list[int]:
    """Return the micro-batches that a rank has with another, in the order of its actions; both with their stages."""
    (rank, stage), (peer, its_stage) = own, other
    return [
        action.micro_batch
        for action in layout.actions(rank)
        if layout.stage_of(action) == stage
        and action.phase is phase
        and layout.owner(its_stage, action.micro_batch) == peer
    ]


def _bytes(count: int, nccl: "Nccl") -> Tensor:
    return torch.empty(count, dtype=torch.uint8, device=nccl.device)
