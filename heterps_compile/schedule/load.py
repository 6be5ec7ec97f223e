"""What a step asks of the stages, and the step that a schedule makes of it.

A micro-batch occupies one replica of a stage for the longer of its computation and its data movement. Of a batch
these are CT and DT of the plan; replicas take micro-batches in turn, so that with k replicas and M micro-batches one
of them lasts k * CT / M, and the plan's throughput holds while all are busy. What M cannot divide is paid M times:
starting every operation, and the latency of every transfer.

Left out: operations that run less efficiently on fewer samples; gradient synchronisation, which is paid once a step
but spread here, as in the plan's DT, over its micro-batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.cost.roofline import TRAINING_FACTOR

from .names import orders
from .simulate import Timeline, simulate

_USUAL_MICRO_BATCHES = 32
_ROUNDS_OF_REPLICAS = 8
"""Replicas that get 8 micro-batches or 9 differ by an eighth at most; more rounds only add launches."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """What a step asks of one stage.

    Attributes:
        replicas: That share its micro-batches.
        compute_s, data_s: CT and DT of a batch in the plan.
        compute_again_s, data_again_s: The part of them that every further micro-batch pays once more.
        activations_bytes: Activations of the batch.
    """

    replicas: int
    compute_s: float
    data_s: float
    compute_again_s: float
    data_again_s: float
    activations_bytes: float

    def micro_batch_s(self, micro_batches: int) -> float:
        """Give the time that one of so many micro-batches occupies one replica."""
        compute_s = self.replicas * self.compute_s + (micro_batches - 1) * self.compute_again_s
        data_s = self.replicas * self.data_s + (micro_batches - 1) * self.data_again_s
        return max(compute_s, data_s) / micro_batches


def simulate_step(
    name: str, loads: Sequence[StageLoad], micro_batches: int, *, training: bool, steps: int = 1
) -> Timeline:
    """Simulate a step under a schedule.

    Args:
        name: Of the schedule.
        loads: Of every stage.
        micro_batches: In the step.
        training: Whether there are backwards.
        steps: Of inference, which follow one another without a pause; in training a step ends before the next begins.

    Raises:
        UnknownNameError: for an unknown schedule.
    """
    count = micro_batches if training else micro_batches * steps
    replicas = [load.replicas for load in loads]
    times_s = [load.micro_batch_s(micro_batches) for load in loads]
    forward_s = [time_s / TRAINING_FACTOR for time_s in times_s] if training else times_s
    backward_s = [whole - part for whole, part in zip(times_s, forward_s, strict=True)] if training else None
    return simulate(orders(name, replicas, count, training=training), forward_s, backward_s, replicas=replicas)


def held_part(timeline: Timeline, micro_batches: int, *, training: bool) -> float:
    """Give the part of a batch's activations that is held for a micro-batch, of one chunk where there are chunks.

    In training a chunk keeps those of its layers, an equal part; in inference any chunk may have the largest layer.
    """
    return 1 / (micro_batches * (timeline.chunks if training else 1))


def held_bytes(
    loads: Sequence[StageLoad], timeline: Timeline, micro_batches: int, *, training: bool
) -> tuple[float, ...]:
    """Give the most bytes of activations that one replica of every stage holds at once."""
    part = held_part(timeline, micro_batches, training=training)
    peaks = timeline.peak_in_flight
    return tuple(load.activations_bytes * peak * part for load, peak in zip(loads, peaks, strict=True))


def micro_batch_counts(batch: int, replicas: int) -> list[int]:
    """Give the divisors of a batch worth trying, ascending: at most 32, or 8 for each of a stage's replicas."""
    most = min(batch, max(_USUAL_MICRO_BATCHES, _ROUNDS_OF_REPLICAS * replicas))
    return [count for count in range(1, most + 1) if batch % count == 0]
