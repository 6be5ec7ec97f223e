"""ZB-H1: 1F1B whose weight gradients wait for the time in which a stage would have nothing to do.

Four micro-batches through three stages; forward, gradients of inputs (B) and gradients of weights (W) equally long::

    stage 0 | F0 F1 F2 .  .  B0 W0 F3 B1 W1 B2 W2 B3 W3
    stage 1 | .  F0 F1 .  B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
    stage 2 | .  .  F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

Only B is waited for by the stage before, so that the step is shorter than that of 1F1B, whose backward is B and W in
one. A micro-batch is held until its W, and still no stage holds more of them than the first one of 1F1B. Stage s leaves
the W of as many micro-batches to later as there are stages, or with replicas workers, before it.

In inference there is no backward, and the order is GPipe's.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.1 (ZB-H1).

Left out: ZB-H2, which holds about twice as many micro-batches to leave no bubble at all; the paper's search for an
order that suits unequal times; optimiser steps that do not wait for the norm of all gradients.
"""

from collections.abc import Iterator, Sequence

from .order import Action, Phase


def zero_bubble(stage: int, replicas: Sequence[int], micro_batches: int, training: bool) -> Iterator[Action]:
    """Yield the actions of one stage in order; an :data:`~heterps_compile.schedule.order.Order`."""
    warm_up = min(micro_batches, sum(replicas[stage:]) - 1) if training else micro_batches
    for i in range(warm_up):
        yield Action(stage, i, Phase.FORWARD)
    if not training:
        return
    late = sum(replicas[:stage])
    for i in range(micro_batches):
        if warm_up + i < micro_batches:
            yield Action(stage, warm_up + i, Phase.FORWARD)
        yield Action(stage, i, Phase.BACKWARD)
        if i >= late:
            yield Action(stage, i - late, Phase.WEIGHT)
    for i in range(max(0, micro_batches - late), micro_batches):
        yield Action(stage, i, Phase.WEIGHT)
