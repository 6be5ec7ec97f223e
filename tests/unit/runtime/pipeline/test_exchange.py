"""What a rank makes ready for the messages that will come, with a post office in place of a network."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hand_made import HandMade, plan_of
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.runtime.pipeline import exchange, over_gloo
from heterps_compile.runtime.pipeline.exchange import WINDOW, Exchange, ReceiveWindow
from heterps_compile.runtime.pipeline.layout import Layout, StepShape, make_layout
from heterps_compile.runtime.pipeline.over_gloo import Links, NetworkIn, NetworkOut
from heterps_compile.runtime.pipeline.rank_parts import RankParts
from heterps_compile.runtime.pipeline.routes import Route, make_routes
from heterps_compile.runtime.pipeline.transport import Receiver, Sender
from heterps_compile.schedule.order import Phase

MICRO_BATCHES = 12
ROUTE = Route(0, 0, 1, ("a",))


@dataclass
class PostOffice:
    """Keeps what was sent until it is waited for, and counts the buffers that are ready on each rank."""

    sent: dict[tuple[int, int, int], list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    ready: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def transport_of(self, world_size: int, rank: int, tags: int) -> "Counted":
        assert (world_size, tags) == (2, 2 * (MICRO_BATCHES + 1))
        return Counted(Counter(self, rank))


@dataclass
class Counter:
    """The links of one rank."""

    office: PostOffice
    rank: int

    def send(self, tensor: Tensor, target: int, tag: int) -> "Arrival":
        self.office.sent[self.rank, target, tag].append(tensor.clone().view(-1).view(torch.uint8))
        return Arrival(self.office, None, None, target)

    def receive(self, tensor: Tensor, source: int, tag: int) -> "Arrival":
        self.office.ready[self.rank] += 1
        return Arrival(self.office, tensor, (source, self.rank, tag), self.rank)


@dataclass
class Counted:
    """The transport of one rank."""

    links: Any

    def sender(self, peer: int, header_tag: int, wire: str, device: torch.device) -> Sender:
        return Sender(NetworkOut(self.links, peer, device), header_tag, wire)

    def receiver(self, peer: int, header_tag: int, device: torch.device, shown: str) -> Receiver:
        return Receiver(NetworkIn(self.links, peer, device, shown), peer, header_tag, device, shown)

    def connect_gpus(self, layout: Layout, routes: Sequence[Route]) -> None:
        assert routes == (ROUTE,)


@dataclass
class Arrival:
    """A message under way."""

    office: PostOffice
    buffer: Tensor | None
    key: tuple[int, int, int] | None
    rank: int

    def wait(self) -> None:
        if self.buffer is not None and self.key is not None:
            self.buffer.view(-1).view(torch.uint8).copy_(self.office.sent[self.key].pop(0))
            self.office.ready[self.rank] -= 1


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> PostOffice:
    made = PostOffice()
    monkeypatch.setattr(exchange, "Transport", made.transport_of)
    return made


def exchanges(window: ReceiveWindow = WINDOW) -> list[Exchange]:
    """Return the exchanges of two ranks of one stage each, which run forwards and then backwards."""
    stages = [HandMade("x", "a", lambda stage, x: (x,)), HandMade("a", "y", lambda stage, a: (a,))]
    plan = plan_of(stages, "y")
    layout = make_layout(plan, training=True, step=StepShape(schedule="gpipe", micro_batches=MICRO_BATCHES))
    routes = make_routes(plan.stages, plan.graph_outputs)
    assert routes == (ROUTE,)
    own: list[dict[int, Any]] = [{0: stages[0]}, {1: stages[1]}]
    parts = [RankParts(plan, layout, rank, own[rank], tied={}) for rank in (0, 1)]
    return [Exchange(of_rank, routes, wire="float32", window=window) for of_rank in parts]


def value_of(micro_batch: int) -> Tensor:
    return torch.full((4,), float(micro_batch), requires_grad=True)  # 16 bytes


def run_step(first: Exchange, second: Exchange) -> list[float]:
    for one in (first, second):
        one.begin()
    found = []
    for i in range(MICRO_BATCHES):
        first.send(ROUTE, i, Phase.FORWARD)(ROUTE.values, [value_of(i)])
        (value,) = second.receive(ROUTE, i, Phase.FORWARD)(0, 1)
        found.append(value[0].item())
    for i in range(MICRO_BATCHES):
        second.send(ROUTE, i, Phase.BACKWARD)(ROUTE.values, [value_of(i).detach()])
        first.receive(ROUTE, i, Phase.BACKWARD)(0, 1)
    for one in (first, second):
        one.flush()
    return found


def test_a_gradient_that_is_missing_in_one_micro_batch_alone_is_told(office):
    first, second = exchanges()
    run_step(first, second)
    gradients = second.send(ROUTE, 0, Phase.BACKWARD)
    gradients(ROUTE.values, [torch.zeros(4)])
    with pytest.raises(RunError, match=r"'a'.*None.*float32\[4\]"):
        gradients(ROUTE.values, [None])


def come(office: PostOffice, to: int) -> None:
    """Send a rank what one step has for it."""
    for i in range(MICRO_BATCHES):
        tag = ROUTE.tag(i, MICRO_BATCHES, is_backward=to == 0)
        office.sent[1 - to, to, tag].append(torch.zeros(16, dtype=torch.uint8))


def test_buffers_for_four_actions_are_ready_and_while_a_rank_waits_those_of_the_whole_step(office):
    first, second = exchanges()
    assert run_step(first, second) == list(range(MICRO_BATCHES))
    assert office.ready == {0: 0, 1: 0}
    come(office, 1)
    second.begin()
    assert office.ready[1] == 5  # of the action that runs, too
    second.post_receives(1)
    assert office.ready[1] == 6
    second.receive(ROUTE, 0, Phase.FORWARD)(1, 1)
    assert office.ready[1] == MICRO_BATCHES - 1


def test_large_messages_are_not_made_ready_before_the_next_four_actions(office):
    first, second = exchanges(ReceiveWindow(size_bytes=16 * 7))
    for _ in range(3):
        assert run_step(first, second) == list(range(MICRO_BATCHES))
        come(office, 1)
        second.begin()
        for i in range(MICRO_BATCHES):
            second.post_receives(i)
            second.receive(ROUTE, i, Phase.FORWARD)(1, 1)
            assert office.ready[1] == min(6, MICRO_BATCHES - 1 - i)


def test_a_rank_whose_receives_are_far_away_holds_no_buffers(office):
    first, second = exchanges()
    run_step(first, second)
    first.begin()
    assert office.ready[0] == 0  # its backwards come after all of its forwards
    first.post_receives(MICRO_BATCHES - 4)
    assert office.ready[0] == 1


def test_what_needs_no_buffers_takes_nothing_of_the_memory_that_may_lie_ready(office, monkeypatch):
    monkeypatch.setattr(NetworkIn, "wants_buffers", False)
    first, second = exchanges()
    for _ in range(2):
        assert run_step(first, second) == list(range(MICRO_BATCHES))
    second.begin()
    assert (office.ready[1], second._posted_bytes) == (0, 0)
    come(office, 1)
    second.receive(ROUTE, 0, Phase.FORWARD)(2, 1)
    assert (office.ready[1], second._posted_bytes) == (0, 0)


def test_messages_of_two_directions_go_over_connections_of_their_own(monkeypatch):
    used: list[tuple[str, int, int]] = []

    class Recorded:
        made = 0

        def __init__(self, store: None, ranks: range, rank: int) -> None:
            assert tuple(ranks) == (0, 1, 2)
            self.number, self.rank = Recorded.made % 2, rank
            Recorded.made += 1

        def start_send(self, tensor: Tensor, target: int, tag: int) -> None:
            used.append((f"{self.rank} to {target}", self.number, tag))

        def start_receive(self, tensor: Tensor, source: int, tag: int) -> None:
            used.append((f"{source} to {self.rank}", self.number, tag))

    monkeypatch.setattr(over_gloo, "GlooGroup", Recorded)
    monkeypatch.setattr(over_gloo, "world", lambda: SimpleNamespace(next_store=lambda ranks: None))
    low, high = Links(3, 0), Links(3, 2)
    low.send(torch.zeros(1), 2, 7)
    high.receive(torch.zeros(1), 0, 7)
    high.send(torch.zeros(1), 0, 8)
    low.receive(torch.zeros(1), 2, 8)
    assert used == [("0 to 2", 0, 7), ("0 to 2", 0, 7), ("2 to 0", 1, 8), ("2 to 0", 1, 8)]
