"""GPipe, the fill-drain schedule: every forward, then every backward.

Four micro-batches through three stages, forward and backward equally long::

    stage 0 | F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3
    stage 1 | .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .
    stage 2 | .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  .

and in inference, forward only::

    stage 0 | F0 F1 F2 F3 .  .
    stage 1 | .  F0 F1 F2 F3 .
    stage 2 | .  .  F0 F1 F2 F3

In training a stage holds the activations of every micro-batch.

Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS 2019,
section 2.3. The paper draws the backwards last to first; here they run first to last, which takes as long.

Left out: recomputing activations in the backward.
"""

from collections.abc import Iterator, Sequence

from .order import Action, Phase


def gpipe(stage: int, replicas: Sequence[int], micro_batches: int, training: bool) -> Iterator[Action]:
    """Yield the actions of one stage in order; an :data:`~heterps_compile.schedule.order.Order`."""
    del replicas  # every forward comes before every backward, however many replicas share them
    for i in range(micro_batches):
        yield Action(stage, i, Phase.FORWARD)
    if training:
        for i in range(micro_batches):
            yield Action(stage, i, Phase.BACKWARD)
