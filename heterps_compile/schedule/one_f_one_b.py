"""1F1B: after a warm-up, one forward and one backward by turns.

Four micro-batches through three stages, forward and backward equally long::

    stage 0 | F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
    stage 1 | .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .
    stage 2 | .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .

It takes as long as GPipe where stages are equal, but stage s of S holds at most S - s micro-batches, not all.
With replicas, stage s holds at most as many as there are replicas from stage s on, one for each to work on. Here
stage 0 takes twice as long as stage 1, and two replicas make up for it::

    stage 0, replica 0 | F0 -- F2 -- B0 -- .  .  B2 -- .  .
    stage 0, replica 1 | F1 -- F3 -- .  .  B1 -- .  .  B3 --
    stage 1            | .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .

In inference there is no backward, and the order is GPipe's.

Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.2 (1F1B
and its round robin over replicas), with the flush after each step of "Memory-Efficient Pipeline-Parallel DNN
Training", ICML 2021, section 2.2.

Left out: extra warm-up to hide slow transfers; stale weights.
"""

from collections.abc import Iterator, Sequence

from .order import Action, Phase


def one_f_one_b(stage: int, replicas: Sequence[int], micro_batches: int, training: bool) -> Iterator[Action]:
    """Yield the actions of one stage in order; an :data:`~heterps_compile.schedule.order.Order`."""
    warm_up = min(micro_batches, sum(replicas[stage:]) - 1) if training else micro_batches
    for i in range(warm_up):
        yield Action(stage, i, Phase.FORWARD)
    for i in range(warm_up, micro_batches):
        yield Action(stage, i, Phase.FORWARD)
        yield Action(stage, i - warm_up, Phase.BACKWARD)
    if training:
        for i in range(micro_batches - warm_up, micro_batches):
            yield Action(stage, i, Phase.BACKWARD)
