"""What one rank exchanges with the others: along which route, with which of their replicas, and what stays here.

Left out: how a message travels (``transport.py``).
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

from heterps_compile.schedule.order import Action, Phase

from .layout import Layout
from .record import Recorder
from .routes import Route
from .step import as_leaves
from .transport import Receiver, Sender

_ACTIONS_AHEAD = 4
"""For how many actions ahead buffers are made ready; more of them hold more memory, fewer let senders wait."""


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
        """Prepare the messages of a rank.

        Args:
            layout: What every rank does.
            rank: This one.
            routes: All of the plan.
            wire: What float32 values are sent as.
            device: Where this rank computes.
            recorder: Is told of messages.
        """
        self._layout, self._rank, self._wire, self._device, self._recorder = layout, rank, wire, device, recorder
        own = layout.stages_of(rank)
        self.into = {stage: tuple(route for route in routes if route.target == stage) for stage in own}
        self.out_of = {stage: tuple(route for route in routes if route.source == stage) for stage in own}
        self._senders: dict[tuple[int, bool, int], Sender] = {}
        self._receivers: dict[tuple[int, bool, int], Receiver] = {}
        self._here: dict[tuple[int, bool, int], list[Any]] = {}
        actions = layout.actions(rank)
        self._expected = [
            (place, route, action.micro_batch, action.phase is Phase.BACKWARD)
            for place, action in enumerate(actions)
            for route in self._awaited(action)
            if self._peer(route, action.micro_batch, is_backward=action.phase is Phase.BACKWARD) != rank
        ]
        self._next = 0

    def _awaited(self, action: Action) -> tuple[Route, ...]:
        stage = self._layout.stage_of(action)
        return self.into[stage] if action.phase is Phase.FORWARD else self.out_of[stage]

    def _peer(self, route: Route, micro_batch: int, *, is_backward: bool) -> int:
        """Give the rank from which a message comes."""
        return self._layout.owner(route.target if is_backward else route.source, micro_batch)

    def begin(self) -> None:
        """Begin a step."""
        self._next = 0
        self.look_ahead(0)

    def look_ahead(self, place: int) -> None:
        """Make buffers ready for the action at a place in the order, and for some after it."""
        while self._next < len(self._expected) and self._expected[self._next][0] <= place + _ACTIONS_AHEAD:
            _, route, micro_batch, is_backward = self._expected[self._next]
            self._next += 1
            peer = self._peer(route, micro_batch, is_backward=is_backward)
            receiver = self._receivers.get((route.index, is_backward, peer))
            if receiver is not None:  # else nothing came yet, and nobody knows what will
                receiver.post(route.tag(micro_batch, self._layout.micro_batches, is_backward=is_backward))

    def send(self, route: Route, micro_batch: int, names: Sequence[str], values: Sequence[Any]) -> None:
        """Send the values of a route to the stage that reads them; returns at once."""
        self._send(route, micro_batch, names, values, is_backward=False)

    def send_back(self, route: Route, micro_batch: int, names: Sequence[str], gradients: Sequence[Any]) -> None:
        """Send gradients of values of a route to the stage that made them; returns at once."""
        self._send(route, micro_batch, names, gradients, is_backward=True)

    def receive(self, step: int, route: Route, micro_batch: int) -> list[Any]:
        """Wait for the values of a route; those that want a gradient are leaves."""
        return self._receive(step, route, micro_batch, len(route.values), is_backward=False)

    def receive_back(self, step: int, route: Route, micro_batch: int, count: int) -> list[Any]:
        """Wait for the gradients of so many values of a route; None for a value that was not used."""
        received = self._receive(step, route, micro_batch, count, is_backward=True)
        sender = self._senders.get((route.index, False, self._layout.owner(route.target, micro_batch)))
        if sender is not None:  # the values have arrived, since gradients of them come back
            sender.settle(route.tag(micro_batch, self._layout.micro_batches, is_backward=False))
        return received

    def flush(self) -> None:
        """Wait until all that was sent has arrived."""
        for sender in self._senders.values():
            sender.flush()

    def _send(
        self, route: Route, micro_batch: int, names: Sequence[str], values: Sequence[Any], *, is_backward: bool
    ) -> None:
        to = self._layout.owner(route.source if is_backward else route.target, micro_batch)
        if to == self._rank:
            self._here[route.index, is_backward, micro_batch] = as_leaves(values)
            return
        key = (route.index, is_backward, to)
        count = self._layout.micro_batches
        if key not in self._senders:
            header_tag = route.header_tag(count, is_backward=is_backward)
            self._senders[key] = Sender(to, names, header_tag, self._wire, self._device)
        self._senders[key].send(route.tag(micro_batch, count, is_backward=is_backward), values)

    def _receive(self, step: int, route: Route, micro_batch: int, values: int, *, is_backward: bool) -> list[Any]:
        peer = self._peer(route, micro_batch, is_backward=is_backward)
        if peer == self._rank:
            return self._here.pop((route.index, is_backward, micro_batch))
        key = (route.index, is_backward, peer)
        count = self._layout.micro_batches
        if key not in self._receivers:
            header_tag = route.header_tag(count, is_backward=is_backward)
            self._receivers[key] = Receiver(peer, values, header_tag, self._device, self._layout.describe(peer))
        receiver = self._receivers[key]
        began_s = time.perf_counter()
        received = receiver.take(route.tag(micro_batch, count, is_backward=is_backward))
        ended_s = time.perf_counter()
        self._recorder.message(step, peer, self._rank, receiver.size_bytes, began_s, ended_s)
        self._recorder.waited(step, "receive", began_s, ended_s)
        return received
