"""A reference simulator of a step: slow, plain, and written without the product's schedules or simulation.

The law::

    computation   a replica runs its actions in the order of its schedule; micro-batch i is of replica i mod k
    values        a value leaves its stage when the forward of its micro-batch ends, and crosses one boundary after
                  another up to its last reader; its gradient, as large, comes back the same way
    boundaries    between neighbouring stages; forward and backward are two directions. Each replica sends one message
                  at a time and receives one at a time: latency + bytes / rate, while everything computes
    overlap       where stages are occupied with a part of that, a value is there by so much before its ports are free
    rows          of tables on servers: a replica pulls those of a micro-batch before its forward, one micro-batch
                  ahead, one pull at a time; a stage pushes all of them after its last backward
    end           after the last backward of all replicas of a stage: push, synchronisation, update, one after another

The steady batch is the longest time for which one batch occupies any one replica, port, pull or synchronisation: no
step is shorter. Not covered: interleaved and zero-bubble schedules, replicas fed by speed, units that share a card.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

GPIPE, ONE_F_ONE_B = "gpipe", "1f1b"
FORWARD, BACKWARD, FREE = "forward", "backward", "free"
Action = tuple[str, int]
"""A direction and a micro-batch."""

Resource = tuple[str | int, ...]


@dataclass(frozen=True)
class Stage:
    """A stage; times in seconds, of one micro-batch in each replica [K]."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...] = ()
    synchronise_s: float = 0.0
    update_s: float = 0.0
    pull_s: float = 0.0
    push_s: float = 0.0
    held_bytes: float = 0.0
    kept_bytes: float = 0.0


@dataclass(frozen=True)
class Value:
    """What a stage makes for later stages: bytes of one micro-batch."""

    maker: int
    readers: tuple[int, ...]
    size_bytes: float


@dataclass(frozen=True)
class Boundary:
    """Between a stage and the next: rate of every port in bytes a second, latency in seconds, most overlap."""

    bytes_per_s: float
    latency_s: float = 0.0
    overlap_s: float = 0.0


@dataclass(frozen=True)
class Pipeline:
    """Stages [S], the boundaries between them [S - 1], and what crosses."""

    stages: tuple[Stage, ...]
    boundaries: tuple[Boundary, ...]
    values: tuple[Value, ...]
    micro_batches: int
    schedule: str = GPIPE
    training: bool = True
    overhead_s: float = 0.0


@dataclass(frozen=True)
class Step:
    """What happened: seconds, and per stage and replica the most micro-batches under way and the bytes held then."""

    step_s: float
    steady_s: float
    under_way: tuple[tuple[int, ...], ...]
    memory_bytes: tuple[tuple[float, ...], ...]


def bundled(values: Sequence[Value]) -> tuple[Value, ...]:
    """Join all that crosses a boundary into one message, which leaves with the stage's own values."""
    sums: dict[int, float] = {}
    for value in values:
        for left in range(value.maker, max(value.readers)):
            sums[left] = sums.get(left, 0.0) + value.size_bytes
    return tuple(Value(left, (left + 1,), size) for left, size in sorted(sums.items()))


def actions(pipeline: Pipeline, stage: int, replica: int) -> list[Action]:
    """List the actions of a replica in order; under 1F1B ceil(replicas from here on / own) forwards come first."""
    widths = [len(each.forward_s) for each in pipeline.stages]
    mine = range(replica, pipeline.micro_batches, widths[stage])
    if not pipeline.training:
        return [(FORWARD, i) for i in mine]
    first = len(mine)
    if pipeline.schedule == ONE_F_ONE_B:
        first = min(first, -(-sum(widths[stage:]) // widths[stage]))
    order = [(FORWARD, i) for i in mine[:first]]
    for done, ahead in zip(mine, mine[first:], strict=False):
        order += [(BACKWARD, done), (FORWARD, ahead)]
    return order + [(BACKWARD, i) for i in mine[len(mine) - first :]]


class Event(NamedTuple):
    """What ended: an action of a replica, the way of a message to a stage, its ports' use, a part of a step's end."""

    kind: str
    stage: int
    micro_batch: int = 0
    value: int = -1


class Message(NamedTuple):
    """A value or its gradient (``"forward"``, ``"backward"``) that waits at a stage for its next boundary."""

    direction: str
    stage: int
    micro_batch: int
    value: int


class _Run:
    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.now, self.ended, self.count = pipeline, 0.0, 0.0, 0
        self.width = [len(stage.forward_s) for stage in pipeline.stages]
        self.left = {(s, r): actions(pipeline, s, r)[::-1] for s, k in enumerate(self.width) for r in range(k)}
        self.backwards = [0 for _ in pipeline.stages]
        self.happened: set[Event] = set()
        self.taken: set[Resource] = set()
        self.busy_s: dict[Resource, float] = {}
        self.waiting: list[Message] = []
        self.events: list[tuple[float, int, Event, tuple[Resource, ...]]] = []

    def occupy(self, resources: tuple[Resource, ...], time_s: float, event: Event, early_s: float = 0.0) -> None:
        """Hold resources for a time; the event happens at its end, or by some time before."""
        for each in resources:
            self.taken.add(each)
            self.busy_s[each] = self.busy_s.get(each, 0.0) + time_s
        self.count += 2
        ends = [(time_s, event, resources)]
        if early_s:
            ends = [(time_s - early_s, event, ()), (time_s, Event(FREE, event.stage), resources)]
        for place, (end_s, what, freed) in enumerate(ends):
            heapq.heappush(self.events, (self.now + end_s, self.count + place, what, freed))

    def run(self) -> float:
        self.start_what_can()
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                _, _, event, resources = heapq.heappop(self.events)
                self.taken -= set(resources)
                if event.kind == FREE:
                    continue
                self.ended = self.now
                self.happened.add(event)
                self.follow(event)
            self.start_what_can()
        assert not any(self.left.values()), "actions are left that nothing lets begin"
        assert not self.waiting, "messages are left that nothing lets begin"
        return self.ended + self.pipeline.overhead_s

    def follow(self, event: Event) -> None:
        kind, s, i, arrived = event
        by_distance = sorted(enumerate(self.pipeline.values), key=lambda each: max(each[1].readers))
        for number, value in by_distance:
            made = kind == FORWARD and value.maker == s
            if (made or (kind == "value" and arrived == number)) and s < max(value.readers):
                self.waiting.append(Message(FORWARD, s, i, number))
            added = kind == BACKWARD and s in value.readers
            if (added or (kind == "gradient" and arrived == number)) and self.returns(number, i, s):
                self.waiting.append(Message(BACKWARD, s, i, number))
        stage = self.pipeline.stages[s]
        self.backwards[s] += kind == BACKWARD
        if kind == BACKWARD and self.backwards[s] == self.pipeline.micro_batches:
            self.occupy((("push", s),), stage.push_s, Event("pushed", s))
        elif kind == "pushed":
            self.occupy((("synchronise", s),), stage.synchronise_s, Event("synchronised", s))
        elif kind == "synchronised":
            self.occupy((("update", s),), stage.update_s, Event("updated", s))

    def returns(self, number: int, i: int, s: int) -> bool:
        """Whether a gradient leaves a stage: what came from behind and what the stage itself adds are complete."""
        value = self.pipeline.values[number]
        last = max(value.readers)
        came = s == last or Event("gradient", s, i, number) in self.happened
        added = s not in value.readers or Event(BACKWARD, s, i) in self.happened
        return value.maker < s <= last and came and added

    def start_what_can(self) -> None:
        for (s, r), left in self.left.items():
            stage = self.pipeline.stages[s]
            if left and ("replica", s, r) not in self.taken and self.ready(s, *left[-1]):
                kind, i = left.pop()
                self.occupy(
                    (("replica", s, r),),
                    (stage.forward_s if kind == FORWARD else stage.backward_s)[r],
                    Event(kind, s, i),
                )
            self.start_pull(s, r)
        for message in list(self.waiting):
            direction, s, i, number = message
            t = s + 1 if direction == FORWARD else s - 1
            boundary = self.pipeline.boundaries[min(s, t)]
            ports: tuple[Resource, ...] = (
                ("out", direction, s, i % self.width[s]),
                ("in", direction, t, i % self.width[t]),
            )
            if not self.taken & set(ports):
                self.waiting.remove(message)
                time_s = boundary.latency_s + self.pipeline.values[number].size_bytes / boundary.bytes_per_s
                early_s = min(boundary.overlap_s, time_s)
                event = Event("value" if direction == FORWARD else "gradient", t, i, number)
                self.occupy(ports, time_s, event, early_s)

    def start_pull(self, s: int, r: int) -> None:
        """Begin to pull the rows of the next micro-batch if the forward of the one before has begun."""
        left = [i for kind, i in self.left[s, r][::-1] if kind == FORWARD]
        pull_s, resource = self.pipeline.stages[s].pull_s, ("pull", s, r)
        if pull_s and left and resource not in self.taken and Event("pulled", s, left[0]) not in self.happened:
            self.occupy((resource,), pull_s, Event("pulled", s, left[0]))

    def ready(self, s: int, kind: str, i: int) -> bool:
        values, last = list(enumerate(self.pipeline.values)), len(self.pipeline.stages) - 1
        if kind == FORWARD:
            needed = [Event("value", s, i, number) for number, value in values if s in value.readers]
            needed += [Event("pulled", s, i)] * (self.pipeline.stages[s].pull_s > 0)
            needed += [Event(FORWARD, s - 1, i)] * (s > 0)
        else:
            needed = [Event("gradient", s, i, number) for number, value in values if value.maker == s]
            needed += [Event(FORWARD, s, i)] + [Event(BACKWARD, s + 1, i)] * (s < last)
        return self.happened.issuperset(needed)


def simulate(pipeline: Pipeline) -> Step:
    """Run one batch through a pipeline that is empty before and after."""
    run = _Run(pipeline)
    step_s = run.run()
    under_way = tuple(tuple(_most_under_way(pipeline, s, r) for r in range(width)) for s, width in enumerate(run.width))
    memory = tuple(
        tuple(stage.held_bytes + most * stage.kept_bytes for most in mosts)
        for stage, mosts in zip(pipeline.stages, under_way, strict=True)
    )
    return Step(step_s, max(run.busy_s.values()), under_way, memory)


def _most_under_way(pipeline: Pipeline, stage: int, replica: int) -> int:
    now = most = 0
    for kind, _ in actions(pipeline, stage, replica):
        now += 1 if kind == FORWARD else -1
        most = max(most, now)
    return most if pipeline.training else min(most, 1)
