"""What one rank exchanges with the others: along which route, with which of their replicas, and what stays here.

Who sends what to whom is the same in every step, so it is worked out once: an action finds its messages as functions
that know where they come from and go to. Over a network receives are posted ahead: a rank that has heard that another
is ready sends at once, else it would have to ask first. Those of the next four actions are posted at any time; more of
them, up to 16 MiB, where the rank has to wait anyway. Ranks of one machine share memory and need none of that.

Left out: how a message travels (``transport.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from torch import Tensor

from heterps_compile.schedule.order import Action, Phase

from .rank_parts import RankParts
from .recorder import listener
from .routes import Route, count_tags
from .transport import Receiver, Sender, Transport


@dataclass(frozen=True, slots=True)
class ReceiveWindow:
    """How many receives are posted ahead over a network.

    Attributes:
        actions: For so many actions ahead, whatever they take; fewer let senders wait.
        size_bytes: What may be posted at most where a rank has to wait anyway, beyond these.
    """

    actions: int = 4
    size_bytes: int = 2**24


WINDOW = ReceiveWindow()

_Key = tuple[int, int, bool]
"""A message of a step: index of the route, micro-batch, whether it is of the backward."""


Receive = Callable[[int, int], list[Any]]
"""Waits for a message of a step, of so many values; those that want a gradient are leaves.

A gradient that there is not is None."""

Send = Callable[[Sequence[str], Sequence[Any]], None]
"""Sends values, which have these names; returns at once."""


class _Here:
    """A message that stays on its rank."""

    __slots__ = ("_values",)

    def send(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self._values = _as_leaves(values)

    def receive(self, step: int, count: int) -> list[Any]:
        values, self._values = self._values, []
        return values


@dataclass(frozen=True, slots=True)
class _Expected:
    """A message that comes from another rank, for the action at a place in this one's order."""

    place: int
    micro_batch: int
    receiver: Receiver
    tag: int


class Exchange:
    """The messages of one rank.

    Attributes:
        into: Routes that lead to each stage of this rank.
        out_of: Routes that lead from it.
        transport: What it talks to the others over; None where there is nothing to say.
        own_tags: The first tag that no route has, from which on ``more_tags`` are free.
    """

    def __init__(
        self,
        parts: RankParts,
        routes: Sequence[Route],
        *,
        wire: str,
        window: ReceiveWindow = WINDOW,
        more_tags: int = 0,
    ) -> None:
        """Prepare the messages of a rank, and connect it; waits for the other ranks.

        Args:
            parts: Of the rank.
            routes: All of the plan.
            wire: What float32 values are sent as.
            window: How many receives are posted ahead.
            more_tags: For messages of others, over the same connections.
        """
        layout, rank = parts.layout, parts.rank
        self._layout, self._rank, self._window = layout, rank, window
        self._message, self._waited = listener(parts.recorder, "message"), listener(parts.recorder, "waited")
        self._wire, self._device = wire, parts.device
        own = layout.stages_of(rank)
        self.into = {stage: tuple(route for route in routes if route.target == stage) for stage in own}
        self.out_of = {stage: tuple(route for route in routes if route.source == stage) for stage in own}
        self._senders: dict[tuple[int, bool, int], Sender] = {}
        self._receivers: dict[tuple[int, bool, int], Receiver] = {}
        self._send: dict[_Key, Send] = {}
        self._receive: dict[_Key, Receive] = {}
        self._settle: dict[tuple[int, int], Callable[[], None]] = {}
        self._here: dict[_Key, _Here] = {}
        self._expected: list[_Expected] = []
        self._place = self._next = self._posted_bytes = 0
        self._micro_batches = layout.micro_batches
        self.transport: Transport | None = None
        self.own_tags = count_tags(routes, layout.micro_batches)
        if layout.world_size > 1 and (routes or more_tags):
            self.transport = Transport(layout.world_size, rank, self.own_tags + more_tags)
            for place, action in enumerate(layout.actions(rank)):
                if action.phase is not Phase.WEIGHT:
                    self._prepare(self.transport, place, action)
            self.transport.connect_gpus(layout, routes)

    def _prepare(self, transport: Transport, place: int, action: Action) -> None:
        """Work out what an action has from other ranks and for them; what is not found there stays here."""
        is_backward, micro_batch = action.phase is Phase.BACKWARD, action.micro_batch
        stage = self._layout.stage_of(action)
        before, after = (self.into[stage], self.out_of[stage])
        for route in before if is_backward else after:
            peer = self._owner(route, action, at_its_source=is_backward)
            if peer != self._rank:
                key = (route.index, is_backward, peer)
                if key not in self._senders:
                    header_tag = self._header_tag(route, is_backward)
                    self._senders[key] = transport.sender(peer, header_tag, self._wire, self._device)
                tag, sender = self._tag(route, micro_batch, is_backward), self._senders[key]
                send = sender.send_gradients if is_backward else sender.send
                self._send[route.index, micro_batch, is_backward] = partial(send, tag)
                if not is_backward:
                    self._settle[route.index, micro_batch] = partial(sender.settle, tag)
        for route in after if is_backward else before:
            peer = self._owner(route, action, at_its_source=not is_backward)
            if peer != self._rank:
                key = (route.index, is_backward, peer)
                if key not in self._receivers:
                    header_tag, shown = self._header_tag(route, is_backward), self._layout.describe(peer)
                    self._receivers[key] = transport.receiver(peer, header_tag, self._device, shown)
                receiver, tag = self._receivers[key], self._tag(route, micro_batch, is_backward)
                take: Callable[..., list[Any]] = self._take
                if receiver.wants_buffers:
                    self._expected.append(_Expected(place, micro_batch, receiver, tag))
                    if is_backward:
                        take = partial(self._take_answer, self._settle[route.index, micro_batch])
                self._receive[route.index, micro_batch, is_backward] = partial(take, receiver, tag)

    def _owner(self, route: Route, action: Action, *, at_its_source: bool) -> int:
        return self._layout.owner(route.source if at_its_source else route.target, action.micro_batch)

    def _tag(self, route: Route, micro_batch: int, is_backward: bool) -> int:
        return route.tag(micro_batch, self._layout.micro_batches, is_backward=is_backward)

    def _header_tag(self, route: Route, is_backward: bool) -> int:
        return route.header_tag(self._layout.micro_batches, is_backward=is_backward)

    def receive(self, route: Route, micro_batch: int, phase: Phase) -> Receive:
        """Return what waits for the values of a route, or in the backward for their gradients."""
        key = (route.index, micro_batch, phase is Phase.BACKWARD)
        return self._receive.get(key) or self._here.setdefault(key, _Here()).receive

    def send(self, route: Route, micro_batch: int, phase: Phase) -> Send:
        """Return what sends the values of a route to the stage that reads them, or in the backward gradients back."""
        key = (route.index, micro_batch, phase is Phase.BACKWARD)
        return self._send.get(key) or self._here.setdefault(key, _Here()).send

    @property
    def needs_buffers(self) -> bool:
        """Whether messages come for which receives have to be posted."""
        return bool(self._expected)

    def begin(self, micro_batches: int | None = None) -> None:
        """Begin a step; of so many micro-batches, where it has not all."""
        self._micro_batches = self._layout.micro_batches if micro_batches is None else micro_batches
        if self._expected:
            self._next = self._posted_bytes = 0
            self.post_receives(0)

    def post_receives(self, place: int) -> None:
        """Post the receives of the action at a place in the order, and of some after it."""
        self._place = place
        self._fill_window(0)

    def _take(self, receiver: Receiver, tag: int, step: int, count: int) -> list[Any]:
        """Wait for a message of another rank."""
        began_s = perf_counter()
        if self._expected:
            self._fill_window(self._window.size_bytes)
            if receiver.wants_buffers:
                self._posted_bytes -= receiver.size_bytes
        received = receiver.take(tag, count)
        ended_s = perf_counter()
        if self._message is not None:
            self._message(step, receiver.peer, self._rank, receiver.size_bytes, began_s, ended_s)
        if self._waited is not None:
            self._waited(step, "receive", began_s, ended_s)
        return received

    def _take_answer(
        self, settle: Callable[[], None], receiver: Receiver, tag: int, step: int, count: int
    ) -> list[Any]:
        """Wait for gradients; then what they are of has arrived."""
        received = self._take(receiver, tag, step, count)
        settle()
        return received

    def _fill_window(self, size_bytes: int) -> None:
        """Post the receives of the next actions, and of those after them until they take so much."""
        near = self._place + self._window.actions
        while self._next < len(self._expected):
            expected = self._expected[self._next]
            if expected.micro_batch >= self._micro_batches:  # nobody sends it
                self._next += 1
                continue
            receiver = expected.receiver
            if expected.place > near and self._posted_bytes + receiver.size_bytes > size_bytes:
                return
            receiver.post(expected.tag)  # unless nothing came yet, and nobody knows what will
            self._posted_bytes += receiver.size_bytes
            self._next += 1

    def flush(self) -> None:
        """Wait until all that was sent has arrived, where somebody has to wait for it, and free what nobody needs."""
        for sender in self._senders.values():
            sender.flush()
        for receiver in self._receivers.values():
            receiver.let_go()


def _as_leaves(values: Sequence[Any]) -> list[Any]:
    """Return values that stay on their rank as those that arrive from another: leaves with the same memory."""
    return [v.detach().requires_grad_(v.requires_grad) if isinstance(v, Tensor) else v for v in values]
