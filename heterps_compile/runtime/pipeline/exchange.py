"""What one rank exchanges with the others: along which route, with which of their replicas, and what stays here.

Who sends what to whom is the same in every step, so it is worked out once. Buffers are made ready ahead: a rank that
has heard that another is ready sends at once, else it would have to ask first. Those of the next four actions are ready
at any time; more of them, up to 16 MiB, are made ready where the rank has to wait anyway. Ranks of one machine share
memory and need none of that.

Left out: how a message travels (``transport.py``).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from heterps_compile.schedule.order import Action, Phase

from .layout import Layout
from .record import Recorder
from .routes import Route, count_tags
from .step import as_leaves
from .transport import Receiver, Sender, Transport

_ACTIONS_AHEAD = 4
"""For how many actions ahead buffers are made ready whatever they take; fewer let senders wait."""

_BYTES_AHEAD = 2**24
"""How much may lie ready where more than these are."""

_Key = tuple[int, int, bool]
"""A message of a step: index of the route, micro-batch, whether it is of the backward."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """A message that comes from another rank, for the action at a place in this one's order."""

    place: int
    receiver: Receiver
    tag: int


class Exchange:
    """The messages of one rank.

    Attributes:
        into: Routes that lead to each stage of this rank.
        out_of: Routes that lead from it.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        routes: Sequence[Route],
        *,
        wire: str,
        device: torch.device,
        recorder: Recorder,
    ) -> None:
        """Prepare the messages of a rank, and connect it; waits for the other ranks.

        Args:
            layout: What every rank does.
            rank: This one.
            routes: All of the plan.
            wire: What float32 values are sent as.
            device: Where this rank computes.
            recorder: Is told of messages.
        """
        self._layout, self._rank, self._recorder = layout, rank, recorder
        own = layout.stages_of(rank)
        self.into = {stage: tuple(route for route in routes if route.target == stage) for stage in own}
        self.out_of = {stage: tuple(route for route in routes if route.source == stage) for stage in own}
        self._here: dict[_Key, list[Any]] = {}
        self._senders: dict[tuple[int, bool, int], Sender] = {}
        self._receivers: dict[tuple[int, bool, int], Receiver] = {}
        self._outgoing: dict[_Key, tuple[Sender, int]] = {}
        self._incoming: dict[_Key, tuple[Receiver, int]] = {}
        self._expected: list[_Expected] = []
        self._place = self._next = self._ready_bytes = 0
        self._transport: Transport | None = None
        if layout.world_size > 1 and routes:
            self._transport = Transport(layout.world_size, rank, count_tags(routes, layout.micro_batches))
            self._prepare(self._transport, wire, device)

    def _prepare(self, transport: Transport, wire: str, device: torch.device) -> None:
        """Work out what goes to other ranks and what comes from them; what is not found there stays here."""
        for place, action in enumerate(self._layout.actions(self._rank)):
            micro_batch, is_backward = action.micro_batch, action.phase is Phase.BACKWARD
            stage = self._layout.stage_of(action)
            before, after = (self.into[stage], self.out_of[stage])
            for route in after if is_backward else before:
                peer = self._owner(route, action, at_its_source=not is_backward)
                if peer != self._rank:
                    key = (route.index, is_backward, peer)
                    if key not in self._receivers:
                        header_tag, shown = self._header_tag(route, is_backward), self._layout.describe(peer)
                        self._receivers[key] = transport.receiver(peer, header_tag, device, shown)
                    receiver, tag = self._receivers[key], self._tag(route, micro_batch, is_backward)
                    self._incoming[route.index, micro_batch, is_backward] = receiver, tag
                    if receiver.wants_buffers:
                        self._expected.append(_Expected(place, receiver, tag))
            for route in before if is_backward else after:
                peer = self._owner(route, action, at_its_source=is_backward)
                if peer != self._rank:
                    key = (route.index, is_backward, peer)
                    if key not in self._senders:
                        self._senders[key] = transport.sender(peer, self._header_tag(route, is_backward), wire, device)
                    tag = self._tag(route, micro_batch, is_backward)
                    self._outgoing[route.index, micro_batch, is_backward] = self._senders[key], tag

    def _owner(self, route: Route, action: Action, *, at_its_source: bool) -> int:
        return self._layout.owner(route.source if at_its_source else route.target, action.micro_batch)

    def _tag(self, route: Route, micro_batch: int, is_backward: bool) -> int:
        return route.tag(micro_batch, self._layout.micro_batches, is_backward=is_backward)

    def _header_tag(self, route: Route, is_backward: bool) -> int:
        return route.header_tag(self._layout.micro_batches, is_backward=is_backward)

    def begin(self) -> None:
        """Begin a step."""
        self._next = self._ready_bytes = 0
        self.look_ahead(0)

    def look_ahead(self, place: int) -> None:
        """Make buffers ready for the action at a place in the order, and for some after it."""
        self._place = place
        self._make_ready(0)

    def _make_ready(self, bytes_ahead: int) -> None:
        """Make buffers ready for the next actions, and for those after them until they take so much."""
        near = self._place + _ACTIONS_AHEAD
        while self._next < len(self._expected):
            expected = self._expected[self._next]
            receiver = expected.receiver
            if expected.place > near and self._ready_bytes + receiver.size_bytes > bytes_ahead:
                return
            receiver.post(expected.tag)  # unless nothing came yet, and nobody knows what will
            self._ready_bytes += receiver.size_bytes
            self._next += 1

    def send(self, route: Route, micro_batch: int, names: Sequence[str], values: Sequence[Any]) -> None:
        """Send the values of a route to the stage that reads them; returns at once."""
        self._send((route.index, micro_batch, False), names, values)

    def send_back(self, route: Route, micro_batch: int, names: Sequence[str], gradients: Sequence[Any]) -> None:
        """Send gradients of values of a route to the stage that made them; returns at once."""
        self._send((route.index, micro_batch, True), names, gradients)

    def receive(self, step: int, route: Route, micro_batch: int) -> list[Any]:
        """Wait for the values of a route; those that want a gradient are leaves."""
        return self._receive(step, (route.index, micro_batch, False), len(route.values))

    def receive_back(self, step: int, route: Route, micro_batch: int, count: int) -> list[Any]:
        """Wait for the gradients of so many values of a route; None for a value that was not used."""
        received = self._receive(step, (route.index, micro_batch, True), count)
        sent = self._outgoing.get((route.index, micro_batch, False))
        if sent is not None:  # the values have arrived, since gradients of them come back
            sender, tag = sent
            sender.settle(tag)
        return received

    def flush(self) -> None:
        """Wait until all that was sent has arrived, where somebody has to wait for it, and free what nobody needs."""
        for sender in self._senders.values():
            sender.flush()
        for receiver in self._receivers.values():
            receiver.let_go()

    def close(self) -> None:
        """Wait until all that was sent has arrived, and leave the others."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def _send(self, key: _Key, names: Sequence[str], values: Sequence[Any]) -> None:
        outgoing = self._outgoing.get(key)
        if outgoing is None:
            self._here[key] = as_leaves(values)
        else:
            sender, tag = outgoing
            sender.send(tag, names, values)

    def _receive(self, step: int, key: _Key, count: int) -> list[Any]:
        incoming = self._incoming.get(key)
        if incoming is None:
            return self._here.pop(key)
        receiver, tag = incoming
        began_s = time.perf_counter()
        self._make_ready(_BYTES_AHEAD)
        if receiver.wants_buffers:
            self._ready_bytes -= receiver.size_bytes
        received = receiver.take(tag, count)
        ended_s = time.perf_counter()
        self._recorder.message(step, receiver.peer, self._rank, receiver.size_bytes, began_s, ended_s)
        self._recorder.waited(step, "receive", began_s, ended_s)
        return received
