"""How long a step takes, and nothing else: what ``simulate.py`` finds of GPipe and 1F1B, without a timeline.

Both schedules run forwards in order, and a stage's backward i once its forward i + w has begun its turn: w is the
warm-up of 1F1B, and all micro-batches in GPipe. Taken by rounds, every action finds what it waits for done::

    round 0   F0 of every stage, first to last
    round 1   F1 of every stage; B(1 - w) of every stage, last to first, where there is one
    ...       until the last stage of the longest warm-up has ended

so that one pass over rounds and stages gives every end. It is some ten times as quick as the simulation, which a search
over steps asks for thousands of plans.

Left out: replicas that differ, chunks, gradients of weights apart, which micro-batches are held.
"""

from collections.abc import Sequence

from .load import StageLoad
from .wires import received_s, sent_s

_Wires = tuple[list[float], list[float], int, float]
"""When the wires of senders and of receivers are free, the number of receivers, and a message's time on a wire."""


def step_length_s(schedule: str, loads: Sequence[StageLoad], micro_batches: int, *, training: bool) -> float:
    """Return the step under GPipe or 1F1B; O(stages * micro-batches).

    Args:
        schedule: ``"gpipe"`` or ``"1f1b"``.
        loads: Of every stage.
        micro_batches: In the step.
        training: Whether there are backwards.
    """
    each = [load.micro_batch(micro_batches) for load in loads]
    widths, last = [load.replicas for load in loads], len(loads) - 1
    free_s = [[load.pull_s(micro_batches)] * load.replicas for load in loads]
    forward_s, backward_s, delays_s = zip(*((one.forward_s, one.backward_s, one.delay_s) for one in each), strict=True)
    ahead = [_wires(widths, each[s].way_s, forward_s, s, s + 1) for s in range(last)]
    forwards = list(zip(free_s, widths, forward_s, delays_s, [*ahead, None], strict=True))
    if not training:
        for i in range(micro_batches):
            _forward(forwards, i)
        return max(max(*free, load.moved_s) for free, load in zip(free_s, loads, strict=True))
    warm_ups = [
        min(micro_batches, sum(widths[s:]) - 1) if schedule == "1f1b" else micro_batches for s in range(last + 1)
    ]
    back = [None, *(_wires(widths, each[s].way_s, backward_s, s + 1, s) for s in range(last))]
    arrives_s = [[0.0] * micro_batches for _ in loads]
    for i in range(micro_batches + max(warm_ups)):
        if i < micro_batches:
            _forward(forwards, i)
        for s in range(last, -1, -1):
            j = i - warm_ups[s]
            if 0 <= j < micro_batches:
                free, place = free_s[s], j % widths[s]
                free[place] = end_s = max(arrives_s[s][j], free[place]) + backward_s[s]
                if s:
                    arrives_s[s - 1][j] = _arrives_s(back[s], j, place, end_s, delays_s[s - 1])
    return max(
        max(*free, load.moved_s) + load.push_s + load.sync_s + load.own_s
        for free, load in zip(free_s, loads, strict=True)
    )


def _wires(widths: Sequence[int], way_s: float, takes_s: Sequence[float], here: int, there: int) -> _Wires | None:
    """Return the wires from a stage to a neighbour; None if they are free whenever a replica is.

    They are where an action of either stage takes as long as a message.
    """
    if way_s <= min(takes_s[here], takes_s[there]):
        return None
    return [0.0] * widths[here], [0.0] * widths[there], widths[there], way_s


def _arrives_s(wires: _Wires | None, i: int, sender: int, end_s: float, delay_s: float) -> float:
    """Return when a replica of the next stage has what a replica has made of a micro-batch."""
    if wires is None:
        return end_s + delay_s
    sending_s, receiving_s, receivers, way_s = wires
    arrives_s = received_s(receiving_s, i % receivers, sent_s(sending_s, sender, end_s, way_s), way_s)
    return arrives_s - (way_s - delay_s)


def _forward(stages: Sequence[tuple[list[float], int, float, float, _Wires | None]], i: int) -> None:
    """Run the forward of one micro-batch through all stages."""
    ready_s = 0.0
    for free, width, forward_s, delay_s, wires in stages:
        place = i % width
        end_s = (ready_s if ready_s > free[place] else free[place]) + forward_s
        free[place] = end_s
        ready_s = end_s + delay_s if wires is None else _arrives_s(wires, i, place, end_s, delay_s)
