"""What a step asks of the stages, and the step that a schedule makes of it.

A micro-batch occupies one replica of a stage for the longer of its computation and its data movement, and in training
forward and backward share that time as they share the computation. Replicas take micro-batches in turn, so that with
k replicas and M micro-batches one of them lasts k * CT / M, and the plan's throughput holds while all are busy. What M
cannot divide is paid M times: starting every operation, and the latency of every transfer.

The next stage begins when the values are there. Where stages move data for longer than they compute, part of that way
falls into the time they are occupied; the rest is the delay between the two, which holds up whoever has nothing else to
do. Gradients come back with the same delay.

Times are known for some M. Between these they are read off a straight line over the samples of a micro-batch, beyond
them the line goes on (``cost/profile.py`` draws it).

Left out: gradient synchronisation apart, which is paid once a step but spread here, as in the plan's DT, over its
micro-batches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from heterps_compile.cost.profile import interpolate

from .names import orders
from .simulate import Timeline, simulate

_USUAL_MICRO_BATCHES = 32
_ROUNDS_OF_REPLICAS = 8
"""Replicas that get 8 micro-batches or 9 differ by an eighth at most; more rounds only add launches."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """How long one of so many micro-batches occupies one replica.

    Attributes:
        count: Micro-batches in the step.
        forward_s, backward_s: Of one of them; in inference there is no backward.
        moving_s: Part of the forward in which data moves and nothing is computed.
        delay_s: From the end of its forward until the next stage can begin, and back with the gradients.
    """

    count: int
    forward_s: float
    backward_s: float = 0.0
    moving_s: float = 0.0
    delay_s: float = 0.0

    @property
    def whole_s(self) -> float:
        """Return forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True)
class StageLoad:
    """What a step asks of one stage.

    Attributes:
        replicas: That share its micro-batches.
        known: Micro-batches whose times are known, by count, ascending; the first is the whole batch.
        activations_bytes: Activations of the batch.
        copies_bytes: Narrow copies of weights, of every micro-batch.
    """

    replicas: int
    known: tuple[MicroBatch, ...]
    activations_bytes: float = 0.0
    copies_bytes: float = 0.0

    def micro_batch(self, count: int) -> MicroBatch:
        """Return the times of one of so many micro-batches."""
        for known in self.known:
            if known.count == count:
                return known
        by_size = self.known[::-1]

        def read_off(times_s: Iterable[float]) -> float:
            return interpolate(
                [(1 / each.count, time_s) for each, time_s in zip(by_size, times_s, strict=True)], 1 / count
            )

        return MicroBatch(
            count,
            read_off(each.forward_s for each in by_size),
            read_off(each.backward_s for each in by_size),
            delay_s=read_off(each.delay_s for each in by_size),
        )

    def micro_batch_bytes(self, part: float, micro_batches: int) -> float:
        """Return what is held for a micro-batch: its part of the activations, and copies of weights."""
        return part * (self.activations_bytes + micro_batches * self.copies_bytes)

    @property
    def again_s(self) -> float:
        """Return what the second micro-batch takes beyond its half of the batch: what dividing does not shrink."""
        return max(0.0, 2 * self.micro_batch(2).whole_s - self.micro_batch(1).whole_s)


def occupied(count: int, compute_s: float, data_s: float, forward_share: float) -> MicroBatch:
    """Return the times of one of so many micro-batches, of computation and data movement that overlap.

    Args:
        count: Micro-batches in the step.
        compute_s: Of one of them on one replica.
        data_s: As above.
        forward_share: Part of the computation that is forward; 1 in inference.
    """
    time_s = max(compute_s, data_s)
    forward_s = time_s * forward_share
    return MicroBatch(count, forward_s, time_s - forward_s, (time_s - compute_s) * forward_share)


def delayed(stages: Sequence[MicroBatch], ways_s: Sequence[float]) -> list[MicroBatch]:
    """Return the micro-batches of all stages with the delays between them.

    Args:
        stages: Of S stages, without delays.
        ways_s: [S - 1], from the end of a forward's computation until its values are in the next stage.
    """
    last = len(stages) - 1
    # a stage between two others moves the values of both
    moving_s = [each.moving_s / (2 if 0 < stage < last else 1) for stage, each in enumerate(stages)]
    delays_s = [max(0.0, way_s - sum(pair)) for way_s, pair in zip(ways_s, pairwise(moving_s), strict=True)]
    return [replace(each, delay_s=delay_s) for each, delay_s in zip(stages, [*delays_s, 0.0], strict=True)]


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
    each = [load.micro_batch(micro_batches) for load in loads]
    forward_s = [one.forward_s for one in each]
    backward_s = [one.backward_s for one in each] if training else None
    order, delays_s = orders(name, replicas, count, training=training), [one.delay_s for one in each[:-1]]
    return simulate(order, forward_s, backward_s, replicas=replicas, transfer_s=delays_s)


def held_part(timeline: Timeline, micro_batches: int, *, training: bool) -> float:
    """Return the part of a batch's activations that is held for a micro-batch, of one chunk where there are chunks.

    In training a chunk keeps those of its layers, an equal part; in inference any chunk may have the largest layer.
    """
    return 1 / (micro_batches * (timeline.chunks if training else 1))


def held_bytes(
    loads: Sequence[StageLoad], timeline: Timeline, micro_batches: int, *, training: bool
) -> tuple[float, ...]:
    """Return the most bytes that one replica of every stage holds at once for its micro-batches."""
    part = held_part(timeline, micro_batches, training=training)
    peaks = timeline.peak_in_flight
    return tuple(load.micro_batch_bytes(part, micro_batches) * peak for load, peak in zip(loads, peaks, strict=True))


def micro_batch_counts(batch: int, replicas: int) -> list[int]:
    """Return the divisors of a batch worth trying, ascending: at most 32, or 8 for each of a stage's replicas."""
    most = min(batch, max(_USUAL_MICRO_BATCHES, _ROUNDS_OF_REPLICAS * replicas))
    return [count for count in range(1, most + 1) if batch % count == 0]
