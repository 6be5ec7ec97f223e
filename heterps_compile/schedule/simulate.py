"""From orders and times to a timeline: when each action runs, and how long stages wait.

A replica runs its actions one at a time, in its order. An action starts once the replica is free and its input is
there:

1. a forward needs the same micro-batch's forward in the stage before; of a later chunk in the first stage, that of the
   chunk before in the last stage;
2. a backward needs the same micro-batch's backward in the stage after; of an earlier chunk in the last stage, that of
   the chunk after in the first stage;
3. a backward of the last chunk of the last stage needs the same micro-batch's forward there;
4. gradients of weights need the backward of the same micro-batch and chunk in the same stage.

A stage whose tables lie on servers waits for the rows of its first micro-batch before its first action, and pushes
their gradients once all its replicas have ended their last. Then, or else at once, replicas may sum their gradients
together: an all-reduce. Then they do what each does by itself, the
optimizer's step among it. None of it holds up another stage, and the step ends when the last stage has ended it::

    stage 0, replica 0 | F0 .  .  B0 R  U
             replica 1 | F1 .  .  B1 R  U
    stage 1, replica 0 | .  F0 B0 R  U  .    stage 1 sums while stage 0 still has a backward
             replica 1 | .  F1 B1 R  U  .

    stage with tables | p  F0 F1 B0 B1 P  R  U       p: pull, P: push, U: what a replica does by itself

Between neighbours a transfer occupies the wires of both replicas, and neither replica (``wires.py``). Where a part of
it overlaps with actions, its values are there by so much earlier than the wires are free. From the last stage round to
the first it takes as long as the longest between neighbours. Chunks of a stage take equal parts of its
time; where gradients of weights have actions of their own, a backward takes longer (``zero_bubble.py``).

Not covered: a stage that does not read from the one before it waits for it too, so the estimate is never too short.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from heterps_compile.errors import HeterpsError

from .mixed_stage import MixedStage
from .order import Action, Phase
from .readings import idle_share
from .wires import received_s, sent_s
from .zero_bubble import parts_of_backward


@dataclass(frozen=True, slots=True)
class Span:
    """An action, the replica of its stage that ran it, and when."""

    action: Action
    replica: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class ServersTraffic:
    """What a stage takes for rows of tables on servers beside its actions."""

    pull_s: float = 0.0
    push_s: float = 0.0


PULL, PUSH, ALL_REDUCE, UPDATE = "pull", "push", "all-reduce", "update"
"""Before the first action of a stage, and in this order after its last."""


@dataclass(frozen=True, slots=True)
class Around:
    """What all replicas of a stage do together before their first action or after their last.

    Attributes:
        kind: ``PULL`` rows of tables on servers, ``PUSH`` their gradients, ``ALL_REDUCE`` gradients, or ``UPDATE``,
            which each replica does alone.
        stage: Of the pipeline.
        start_s, end_s: As every action has them.
    """

    kind: str
    stage: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated step.

    Attributes:
        spans: Every action; those of one replica in the order it ran them.
        replicas: Of every stage.
        makespan_s: From the start of the first action to the end of the last, or of what follows it.
        bubble: Share of all replicas' time in which they wait, in [0, 1].
        peak_in_flight: Per stage, the most micro-batches one replica holds at once: begun forward and, in training, not
            yet gone backward. Where stages are cut into chunks, micro-batches of one chunk are counted. One that waits
            for the gradients of its weights counts twice: gradients wait with its activations, of fewer bytes.
        chunks: Into which every stage is cut.
        around: Of every stage in its order.
    """

    spans: tuple[Span, ...]
    replicas: tuple[int, ...]
    makespan_s: float
    bubble: float
    peak_in_flight: tuple[int, ...]
    chunks: int = 1
    around: tuple[Around, ...] = ()


def simulate_mixed(
    orders: Sequence[Sequence[Action]],
    mixed: Sequence[MixedStage],
    *,
    transfer_s: Sequence[float] | None = None,
    delay_s: Sequence[float] | None = None,
    sync_s: Sequence[float] | None = None,
    own_s: Sequence[float] | None = None,
    servers: Sequence[ServersTraffic] = (),
    moved_s: Sequence[float] | None = None,
) -> Timeline:
    """Run the orders of all stages against each other, where replicas of a stage may differ; O(actions * replicas).

    Args:
        orders: For each of S stages, its actions in order.
        mixed: [S], what a micro-batch takes on every replica, and which replica takes it.
        transfer_s: [S - 1], one micro-batch from stage s to s + 1, and its gradient back; 0 by default.
        delay_s: [S - 1], the part of that in which neither stage is occupied; all of it by default.
        sync_s: [S], the all-reduce of the replicas of every stage; 0 by default.
        own_s: [S], what they do by themselves behind that; 0 by default.
        servers: [S], rows of tables on servers of every stage; none by default.
        moved_s: [S], the network card of a unit of every stage, for all that it receives and sends; no stage ends
            before. 0 by default.

    Raises:
        HeterpsError: where the orders wait for each other in a circle, or for an action that nobody runs.
    """
    stages, counts = len(orders), tuple(len(stage.forward_s) for stage in mixed)
    none = [0.0] * stages
    ways_s, delays_s = _ways(transfer_s or none[1:]), _ways(delay_s or transfer_s or none[1:])
    chunks = 1 + max((action.chunk for order in orders for action in order), default=0)
    workers = [(stage, replica) for stage in range(stages) for replica in range(counts[stage])]
    parts = [parts_of_backward(order) for order in orders]
    lengths_s = [
        {
            Phase.FORWARD: mixed[stage].forward_s[replica] / chunks,
            **{phase: mixed[stage].backward_s[replica] * part / chunks for phase, part in parts[stage].items()},
        }
        for stage, replica in workers
    ]
    queues = [
        tuple(action for action in orders[stage] if mixed[stage].taken_by[action.micro_batch] == replica)
        for stage, replica in workers
    ]

    spans: list[list[Span]] = [[] for _ in workers]
    sending_s, receiving_s = ({phase: [0.0] * len(workers) for phase in Phase} for _ in range(2))
    end_s: dict[Action, float] = {}
    across_s: dict[Action, float] = {}
    waiting: dict[Action, list[int]] = {}
    runnable = deque(range(len(workers)))
    traffic = tuple(servers) or (ServersTraffic(),) * stages
    while runnable:
        worker = runnable.popleft()
        queue, done = queues[worker], spans[worker]
        while len(done) < len(queue):
            action = queue[len(done)]
            needed = input_of(action, stages, chunks)
            if needed is None:
                ready_s = 0.0
            elif needed in end_s and (needed.stage, needed.chunk) == (action.stage, action.chunk):
                ready_s = end_s[needed]
            elif needed in end_s:
                free_s, way_s = receiving_s[needed.phase], ways_s[needed.phase][needed.stage]
                ready_s = received_s(free_s, worker, across_s[needed], way_s)
                ready_s -= way_s - delays_s[needed.phase][needed.stage]
            else:
                waiting.setdefault(needed, []).append(worker)
                break
            start_s = max(ready_s, done[-1].end_s if done else traffic[workers[worker][0]].pull_s)
            length_s = lengths_s[worker][action.phase]
            done.append(Span(action, workers[worker][1], start_s, start_s + length_s))
            end_s[action] = start_s + length_s
            free_s, way_s = sending_s[action.phase], ways_s[action.phase][action.stage]
            across_s[action] = sent_s(free_s, worker, end_s[action], way_s)
            runnable.extend(waiting.pop(action, ()))
    if waiting:
        needed, stuck = next(iter(waiting.items()))
        raise HeterpsError(
            f"the schedule stops: stage {workers[stuck[0]][0]} waits for {needed} of stage {needed.stage}, "
            f"which never runs ({sum(map(len, spans))} of {sum(map(len, queues))} actions ran)"
        )
    ends_s = list(moved_s or none)
    return _timeline(
        workers, spans, counts, chunks, ends_s, sync_s=sync_s or none, own_s=own_s or none, servers=traffic
    )


def input_of(action: Action, stages: int, chunks: int) -> Action | None:
    """Return the action whose result this one reads, by the four rules of the module, None for an input."""
    stage, i, phase, chunk = action.stage, action.micro_batch, action.phase, action.chunk
    if phase is Phase.WEIGHT:
        return Action(stage, i, Phase.BACKWARD, chunk)
    if phase is Phase.FORWARD:
        if stage > 0:
            return Action(stage - 1, i, phase, chunk)
        return Action(stages - 1, i, phase, chunk - 1) if chunk > 0 else None
    if stage < stages - 1:
        return Action(stage + 1, i, phase, chunk)
    return Action(0, i, phase, chunk + 1) if chunk < chunks - 1 else Action(stage, i, Phase.FORWARD, chunk)


def _ways(transfer_s: Sequence[float]) -> dict[Phase, list[float]]:
    """Return how long the result of an action of every phase takes from every stage to the one that reads it."""
    around_s = max(transfer_s, default=0.0)
    return {
        Phase.FORWARD: [*transfer_s, around_s],
        Phase.BACKWARD: [around_s, *transfer_s],
        Phase.WEIGHT: [0.0] * (len(transfer_s) + 1),
    }


def _timeline(
    workers: Sequence[tuple[int, int]],
    spans: Sequence[Sequence[Span]],
    replicas: tuple[int, ...],
    chunks: int,
    ends_s: list[float],
    *,
    sync_s: Sequence[float],
    own_s: Sequence[float],
    servers: Sequence[ServersTraffic],
) -> Timeline:
    peaks = [0] * len(replicas)
    for (stage, _), done in zip(workers, spans, strict=True):
        peaks[stage] = max(peaks[stage], peak_held(span.action for span in done))
        ends_s[stage] = max(ends_s[stage], done[-1].end_s if done else 0.0)
    around = [Around(PULL, stage, 0.0, moved.pull_s) for stage, moved in enumerate(servers) if moved.pull_s > 0]
    pushes_s = [moved.push_s for moved in servers]
    for kind, each_s in ((PUSH, pushes_s), (ALL_REDUCE, sync_s), (UPDATE, own_s)):
        begins_s, ends_s = ends_s, [end_s + lasts_s for end_s, lasts_s in zip(ends_s, each_s, strict=True)]
        parts = enumerate(zip(begins_s, ends_s, each_s, strict=True))
        around += [Around(kind, stage, begin_s, end_s) for stage, (begin_s, end_s, lasts_s) in parts if lasts_s > 0]
    makespan_s = max(ends_s, default=0.0)
    busy_s = sum(span.end_s - span.start_s for done in spans for span in done)
    busy_s += sum(count * (sum_s + alone_s) for count, sum_s, alone_s in zip(replicas, sync_s, own_s, strict=True))
    busy_s += sum(count * (each.pull_s + each.push_s) for count, each in zip(replicas, servers, strict=True))
    bubble = idle_share(busy_s, len(workers), makespan_s)
    actions = tuple(span for done in spans for span in done)
    around.sort(key=lambda each: each.stage)
    return Timeline(actions, replicas, makespan_s, bubble, tuple(peaks), chunks, tuple(around))


def peak_held(actions: Iterable[Action]) -> int:
    """Return the most micro-batches, or chunks of them, that a worker holds at once while it does these actions.

    A forward takes one up; its last action lets it go: the gradients of weights, else the backward. In between those
    it counts twice. Without any backward nothing is kept.
    """
    done = list(actions)
    phases = {action.phase for action in done}
    if Phase.BACKWARD not in phases:
        return min(1, len(done))
    more = _more_held(phases)
    return max(accumulate(more[action.phase] for action in done))


def _more_held(phases: Collection[Phase]) -> Mapping[Phase, int]:
    """Return by how many more micro-batches are held once an action of a phase has begun, or, if fewer, has ended."""
    if Phase.WEIGHT in phases:
        return {Phase.FORWARD: 1, Phase.BACKWARD: 1, Phase.WEIGHT: -2}
    return {Phase.FORWARD: 1, Phase.BACKWARD: -1}


def worker_spans(timeline: Timeline) -> dict[tuple[int, int], list[Span]]:
    """Return what every (stage, replica) runs, in its order; a replica without a micro-batch runs nothing."""
    spans: dict[tuple[int, int], list[Span]] = {
        (stage, replica): [] for stage, count in enumerate(timeline.replicas) for replica in range(count)
    }
    for span in timeline.spans:
        spans[span.action.stage, span.replica].append(span)
    return spans


def held_over_time(spans: list[Span]) -> Iterator[tuple[float, int]]:
    """Yield when a worker's count of held micro-batches (of one chunk, where there are chunks) changes, and to what.

    A micro-batch is taken up as its forward starts and let go as its last action ends: the gradients of weights, else
    the backward, else, in inference, the forward itself. It counts twice from the start of a backward on that leaves
    the gradients of weights to later.
    """
    phases = {span.action.phase for span in spans}
    more, held = _more_held(phases), 0
    yield 0.0, held
    for span in spans:
        held += more[span.action.phase]
        yield span.start_s if more[span.action.phase] > 0 else span.end_s, held
        if Phase.BACKWARD not in phases:
            held -= 1
            yield span.end_s, held
