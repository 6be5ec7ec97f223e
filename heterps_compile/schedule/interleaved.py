"""Interleaved 1F1B: every stage's layers in two chunks; micro-batches come round twice, stages wait half as long.

Four micro-batches through two stages of two chunks each, the second chunk in lower case; forward and backward of a
chunk equally long::

    stage 0 | F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 .  b2 .  b3 B2 B3
    stage 1 | .  F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3 .

and in inference, forward only::

    stage 0 | F0 F1 f0 f1 F2 F3 f2 f3 .
    stage 1 | .  F0 F1 f0 f1 F2 F3 f2 f3

Micro-batches go in rounds of as many as there are workers, or some more where these do not divide them: a round runs
through the first chunks of all stages, then through the second ones. No round is smaller than that, unless it is the
only one: a worker in the first stage would wait for the end of a round that cannot end before it goes on. A stage holds
more than under 1F1B.

Which layers a stage holds is not the plan's: the first half of the model is spread over all stages, and then the
second. What a stage does in a step is taken to stay the same.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
section 2.2.

Left out: more than two chunks; the time that the additional borders take.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

from .order import Action, Phase

CHUNKS = 2


def interleaved(stage: int, replicas: Sequence[int], micro_batches: int, training: bool) -> Iterator[Action]:
    """Yield the actions of one stage in order; an :data:`~heterps_compile.schedule.order.Order`."""
    rounds = _rounds(micro_batches, sum(replicas))
    forwards = _in_rounds(rounds, range(CHUNKS))
    if not training:
        yield from (Action(stage, i, Phase.FORWARD, chunk) for i, chunk in forwards)
        return
    after = sum(replicas[stage:]) - replicas[-1]
    warm_up = 2 * after + (CHUNKS - 1) * max(map(len, rounds)) + replicas[-1] - 1
    yield from (Action(stage, i, Phase.FORWARD, chunk) for i, chunk in islice(forwards, warm_up))
    for i, chunk in _in_rounds(rounds, range(CHUNKS - 1, -1, -1)):
        for forward in islice(forwards, 1):
            yield Action(stage, forward[0], Phase.FORWARD, forward[1])
        yield Action(stage, i, Phase.BACKWARD, chunk)


def _rounds(micro_batches: int, workers: int) -> list[range]:
    """Divide the micro-batches into rounds of like size, as many as have at least one for each worker.

    ::

        8 micro-batches, 4 workers    0-3  4-7
        7 micro-batches, 2 workers    0-2  3-4  5-6
        3 micro-batches, 4 workers    0-2
    """
    count = max(1, micro_batches // workers)
    size, larger = divmod(micro_batches, count)
    ends = list(accumulate(size + (i < larger) for i in range(count)))
    return [range(first, end) for first, end in zip([0, *ends], ends, strict=False)]


def _in_rounds(rounds: Sequence[range], chunks: range) -> Iterator[tuple[int, int]]:
    """Return (micro-batch, chunk) pairs: every round through all chunks."""
    return ((i, chunk) for members in rounds for chunk in chunks for i in members)
