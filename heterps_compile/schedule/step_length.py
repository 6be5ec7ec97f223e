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

_Forward = tuple[list[float], int, float, float, float, list[float], list[float]]
"""Of a stage: when replicas are free, their number, a forward, delays before and behind, when wires are free."""


def step_length_s(schedule: str, loads: Sequence[StageLoad], micro_batches: int, *, training: bool) -> float:
    """Return the step under GPipe or 1F1B; O(stages * micro-batches).

    Args:
        schedule: ``"gpipe"`` or ``"1f1b"``.
        loads: Of every stage.
        micro_batches: In the step.
        training: Whether there are backwards.
    """
    each = [load.micro_batch(micro_batches) for load in loads]
    widths, delays_s = [load.replicas for load in loads], [one.delay_s for one in each]
    free_s = [[load.pull_s(micro_batches)] * load.replicas for load in loads]
    sending_s, receiving_s = ([[0.0] * width for width in widths] for _ in range(2))
    columns = free_s, widths, [one.forward_s for one in each], [0.0, *delays_s], delays_s, sending_s, receiving_s
    forwards, last = list(zip(*columns, strict=False)), len(loads) - 1
    if not training:
        for i in range(micro_batches):
            _forward(forwards, i)
        return max(max(*free, load.moved_s) for free, load in zip(free_s, loads, strict=True))
    warm_ups = [
        min(micro_batches, sum(widths[s:]) - 1) if schedule == "1f1b" else micro_batches for s in range(last + 1)
    ]
    sending_s, receiving_s = ([[0.0] * width for width in widths] for _ in range(2))
    across_s = [[0.0] * micro_batches for _ in loads]
    for i in range(micro_batches + max(warm_ups)):
        if i < micro_batches:
            _forward(forwards, i)
        for s in range(last, -1, -1):
            j = i - warm_ups[s]
            if 0 <= j < micro_batches:
                free, place = free_s[s], j % widths[s]
                ready_s = received_s(receiving_s[s], place, across_s[s + 1][j], delays_s[s]) if s < last else 0.0
                free[place] = max(ready_s, free[place]) + each[s].backward_s
                if s:
                    across_s[s][j] = sent_s(sending_s[s], place, free[place], delays_s[s - 1])
    return max(
        max(*free, load.moved_s) + load.push_s + load.sync_s + load.own_s
        for free, load in zip(free_s, loads, strict=True)
    )


def _forward(stages: Sequence[_Forward], i: int) -> None:
    """Run the forward of one micro-batch through all stages."""
    across_s = 0.0
    for free, width, forward_s, before_s, delay_s, sending_s, receiving_s in stages:
        place = i % width
        ready_s = received_s(receiving_s, place, across_s, before_s)
        free[place] = end_s = (ready_s if ready_s > free[place] else free[place]) + forward_s
        across_s = sent_s(sending_s, place, end_s, delay_s)
