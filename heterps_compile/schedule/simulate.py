"""From orders and times to a timeline: when each action runs, and how long stages wait.

A replica runs its actions one at a time, in its order. An action starts once the replica is free and its input is
there:

1. a forward needs the same micro-batch's forward in the stage before;
2. a backward needs the same micro-batch's backward in the stage after;
3. a backward of the last stage needs the same micro-batch's forward there.

Between neighbours a transfer may take time of its own; it occupies neither side.

Left out: links that several transfers share; a stage that does not read from the one before it is taken to wait for
it all the same, so the estimate is never too short; synchronisation of gradients, which belongs to a stage's time.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.errors import HeterpsError

from .order import Action, Phase, deal


@dataclass(frozen=True, slots=True)
class Span:
    """An action, the replica of its stage that ran it, and when."""

    action: Action
    replica: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated step.

    Attributes:
        spans: Every action; those of one replica in the order it ran them.
        replicas: Of every stage.
        makespan_s: From the start of the first action to the end of the last.
        bubble: Share of all replicas' time in which they wait, in [0, 1].
        peak_in_flight: Per stage, the most micro-batches one replica holds at once: begun forward and, in training, not
            yet gone backward.
    """

    spans: tuple[Span, ...]
    replicas: tuple[int, ...]
    makespan_s: float
    bubble: float
    peak_in_flight: tuple[int, ...]


def simulate(
    orders: Sequence[Sequence[Action]],
    forward_s: Sequence[float],
    backward_s: Sequence[float] | None = None,
    *,
    replicas: Sequence[int] | None = None,
    transfer_s: Sequence[float] | None = None,
) -> Timeline:
    """Run the orders of all stages against each other; O(actions).

    Args:
        orders: For each of S stages, its actions in order.
        forward_s: [S], one micro-batch forward on one replica.
        backward_s: [S], one micro-batch backward on one replica; None for inference.
        replicas: [S], replicas of every stage, which take its micro-batches round robin; one each by default.
        transfer_s: [S - 1], one micro-batch from stage s to s + 1, and its gradient back; 0 by default.

    Raises:
        HeterpsError: where the orders wait for each other in a circle, or for an action that nobody runs.
    """
    stages = len(orders)
    counts = tuple(replicas) if replicas is not None else (1,) * stages
    moves = list(transfer_s) if transfer_s is not None else [0.0] * (stages - 1)
    backwards = list(backward_s) if backward_s is not None else [0.0] * stages
    workers = [(stage, replica) for stage in range(stages) for replica in range(counts[stage])]
    queues = [tuple(deal(orders[stage], replica, counts[stage])) for stage, replica in workers]

    spans: list[list[Span]] = [[] for _ in workers]
    end_s: dict[Action, float] = {}
    waiting: dict[Action, list[int]] = {}
    runnable = deque(range(len(workers)))
    while runnable:
        worker = runnable.popleft()
        queue, done = queues[worker], spans[worker]
        while len(done) < len(queue):
            action = queue[len(done)]
            needed = _input_of(action, stages)
            if needed is None:
                ready_s = 0.0
            elif needed in end_s:
                gap = min(needed.stage, action.stage)
                ready_s = end_s[needed] + (moves[gap] if needed.stage != action.stage else 0.0)
            else:
                waiting.setdefault(needed, []).append(worker)
                break
            start_s = max(ready_s, done[-1].end_s if done else 0.0)
            length_s = (forward_s if action.phase is Phase.FORWARD else backwards)[action.stage]
            done.append(Span(action, workers[worker][1], start_s, start_s + length_s))
            end_s[action] = start_s + length_s
            runnable.extend(waiting.pop(action, ()))
    if waiting:
        needed, stuck = next(iter(waiting.items()))
        raise HeterpsError(
            f"the schedule stops: stage {workers[stuck[0]][0]} waits for {needed} of stage {needed.stage}, "
            f"which never runs ({sum(map(len, spans))} of {sum(map(len, queues))} actions ran)"
        )
    return _timeline(workers, spans, counts)


def _input_of(action: Action, stages: int) -> Action | None:
    """Give the action whose result this one reads, by the three rules of the module."""
    if action.phase is Phase.FORWARD:
        return None if action.stage == 0 else Action(action.stage - 1, action.micro_batch, Phase.FORWARD)
    if action.stage == stages - 1:
        return Action(action.stage, action.micro_batch, Phase.FORWARD)
    return Action(action.stage + 1, action.micro_batch, Phase.BACKWARD)


def _timeline(
    workers: Sequence[tuple[int, int]], spans: Sequence[Sequence[Span]], replicas: tuple[int, ...]
) -> Timeline:
    makespan_s = max((done[-1].end_s for done in spans if done), default=0.0)
    busy_s = sum(span.end_s - span.start_s for done in spans for span in done)
    peaks = [0] * len(replicas)
    for (stage, _), done in zip(workers, spans, strict=True):
        trains = any(span.action.phase is Phase.BACKWARD for span in done)
        held = 0
        for span in done:
            held += 1 if span.action.phase is Phase.FORWARD else -1
            peaks[stage] = max(peaks[stage], held)
            if not trains:
                held = 0  # nothing is kept for a backward that never comes
    bubble = 1 - busy_s / (len(workers) * makespan_s) if makespan_s > 0 else 0.0
    return Timeline(tuple(s for done in spans for s in done), replicas, makespan_s, max(0.0, bubble), tuple(peaks))
