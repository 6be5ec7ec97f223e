"""ZB-H1: 1F1B whose weight gradients wait for the time in which a stage would have nothing to do.

Four micro-batches through two stages; a forward takes 2, a backward in one 4, gradients of inputs (B) 3, of weights (W)
2, which is more in all::

    stage 0 | F0 -- F1 -- .  .  .  B0 -- -- -- F2 -- B1 -- -- -- F3 -- B2 -- -- -- .  .  .  B3 -- -- --
    stage 1 | .  .  F0 -- B0 -- -- F1 -- B1 -- -- W0 -- F2 -- B2 -- -- W1 -- F3 -- B3 -- -- W2 -- W3 --

The stage before waits for B alone, and not for W, which fills the time in which a stage of 1F1B has nothing to do: the
more stages and the fewer micro-batches there are, the more that gains. Nobody waits for gradients of the first stage's
inputs: its backward stays in one. Stage s leaves the W of as many micro-batches to later as there are stages, or with
replicas workers, before it. A micro-batch is held until its W, in no stage more of them than in the first one of 1F1B;
gradients that wait for W are held besides.

In inference there is no backward, and the order is GPipe's.

Two parts take longer than one backward: nodes of the graph are visited twice, and norms compute both gradients each
time. Both are given as parts of a backward in one (:func:`parts_of_backward`).

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.1 (ZB-H1).

Left out: ZB-H2, which holds about twice as many micro-batches to leave no bubble at all; the paper's search for an
order that suits unequal times; optimiser steps that do not wait for the norm of all gradients.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from .order import Action, Phase

ZERO_BUBBLE = "zero-bubble"

INPUT_PART, WEIGHT_PART = 0.75, 0.5
"""Of a backward in one: the gradients of inputs, and those of weights, in stages of PyTorch on a CPU.

Medians over linear, convolution and transformer stages: 0.54 to 0.89 and 0.46 to 1.11, both together 1.10 to 2.00, the
most in the smallest stages (``tools/bench_zero_bubble.py``).
"""

_IN_ONE = MappingProxyType({Phase.BACKWARD: 1.0, Phase.WEIGHT: 0.0})
_IN_TWO = MappingProxyType({Phase.BACKWARD: INPUT_PART, Phase.WEIGHT: WEIGHT_PART})


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
        if stage > 0 and i >= late:
            yield Action(stage, i - late, Phase.WEIGHT)
    for i in range(max(0, micro_batches - late), micro_batches):  # none in the first stage
        yield Action(stage, i, Phase.WEIGHT)


def backward_factor(schedule: str, stage: int) -> float:
    """Return the factor by which a split lengthens the backwards of a stage."""
    return INPUT_PART + WEIGHT_PART if schedule == ZERO_BUBBLE and stage > 0 else 1.0


def parts_of_backward(order: Iterable[Action]) -> Mapping[Phase, float]:
    """Return the times of the parts of a backward, relative to an undivided one."""
    return _IN_TWO if any(action.phase is Phase.WEIGHT for action in order) else _IN_ONE
