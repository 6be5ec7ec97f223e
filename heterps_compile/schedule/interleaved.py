"""Interleaved 1F1B: every stage's layers in two chunks; micro-batches come round twice, stages wait half as long.

Four micro-batches through two stages of two chunks each, the second chunk in lower case; forward and backward of a
chunk equally long::

    stage 0 | F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 .  b2 .  b3 B2 B3
    stage 1 | .  F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3 .

and in inference, forward only::

    stage 0 | F0 F1 f0 f1 F2 F3 f2 f3 .
    stage 1 | .  F0 F1 f0 f1 F2 F3 f2 f3

Micro-batches go in rounds of as many as there are workers: a round runs through the first chunks of all stages, then
through the second ones. A stage holds more than under 1F1B.

Which layers a stage holds is not the plan's: the first half of the model is spread over all stages, and then the
second. What a stage does in a step is taken to stay the same.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
section 2.2.

Left out: more than two chunks; the time that the additional borders take.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from .order import Action, Phase

CHUNKS = 2


def interleaved(stage: int, replicas: Sequence[int], micro_batches: int, training: bool) -> Iterator[Action]:
    """Give the actions of one stage in order; an :data:`~heterps_compile.schedule.order.Order`."""
    workers = sum(replicas)
    forwards = _in_rounds(workers, micro_batches, range(CHUNKS))
    if not training:
        yield from (Action(stage, i, Phase.FORWARD, chunk) for i, chunk in forwards)
        return
    after = sum(replicas[stage:]) - replicas[-1]
    warm_up = 2 * after + (CHUNKS - 1) * workers + replicas[-1] - 1
    yield from (Action(stage, i, Phase.FORWARD, chunk) for i, chunk in islice(forwards, warm_up))
    for i, chunk in _in_rounds(workers, micro_batches, range(CHUNKS - 1, -1, -1)):
        for forward in islice(forwards, 1):
            yield Action(stage, forward[0], Phase.FORWARD, forward[1])
        yield Action(stage, i, Phase.BACKWARD, chunk)


def _in_rounds(size: int, micro_batches: int, chunks: range) -> Iterator[tuple[int, int]]:
    """Give (micro-batch, chunk) pairs: every round of so many micro-batches through all chunks."""
    for first in range(0, micro_batches, size):
        for chunk in chunks:
            for i in range(first, min(first + size, micro_batches)):
                yield i, chunk
