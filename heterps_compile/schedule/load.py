"""What a step asks of the stages, and the step that a schedule makes of it.

A micro-batch occupies one replica of a stage for the longer of its computation and its data movement, and in training
forward and backward share that time as they share the computation. Replicas take micro-batches in turn, so that with
k replicas and M micro-batches one of them lasts k * CT / M, and the plan's throughput holds while all are busy. What M
cannot divide is paid M times: starting every operation, and the latency of every transfer.

The next stage begins when the values are there. Where stages move data for longer than they compute, part of that way
falls into the time they are occupied; the rest is the delay between the two, which holds up a replica that has nothing
else to do. A message occupies the wire between them for its whole way (``wires.py``). Gradients come back alike.

Of tables on servers a stage waits for the rows of its first micro-batch before its first forward, and pushes their
gradients behind its last backward (``cost/served_rows.py``).

Replicas sum their gradients once a step, after the last backward of their stage (``simulate.py``): that takes as long
however many micro-batches there were. A stage whose last backward comes early sums beside the others' backwards; its
own it does not, for one message has the gradients of all its layers (``runtime/pipeline/gradient_sums.py``).

Left out: the update of the weights; norms that clip gradients, which ranks agree on before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from heterps_compile.cost import stage_law
from heterps_compile.cost.memory import ALWAYS, AUTO, MEMORY_TOLERANCE, NEVER, SAFETY_FACTOR, MemoryParts
from heterps_compile.cost.problem import Problem
from heterps_compile.cost.roofline import TRAINING_FACTOR, Phases
from heterps_compile.cost.served_rows import ServedRows

from .micro_batch import MicroBatch, micro_batch_of
from .mixed_stage import BY_SPEED, EQUAL, MixedStage, mixed_stage
from .names import orders
from .order import MOST_ACTIONS
from .simulate import ServersTraffic, Timeline, simulate_mixed

USUAL_MICRO_BATCHES = 32
_MOST_TO_FEED = 1024
"""Micro-batches: with more, launches are most of a step."""

ROUNDS_OF_REPLICAS = 8
"""Replicas that get 8 micro-batches or 9 differ by an eighth at most; more rounds only add launches."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """What a step asks of one stage.

    Attributes:
        replicas: That share its micro-batches.
        known: Micro-batches whose times are known, by count, ascending; the first is the whole batch.
        activations_bytes: Activations of the batch.
        copies_bytes: Narrow copies of weights, of every micro-batch.
        sync_s: The all-reduce of its replicas' gradients, once a step of training (``sync_rules/network.py``).
        own_s: What replicas do by themselves behind that, once a step of training (``cost/own_work.py``).
        kept_bytes: What a replica holds whatever the schedule is: weights, gradients, states of the optimizer.
        unit_bytes: Memory of a unit.
        safety_factor: On all that a replica holds.
        inputs_bytes: What enters it with a batch, which is kept where its activations are computed again.
        recompute: One of :data:`~heterps_compile.cost.memory.RECOMPUTATIONS`.
        recomputes: Whether it computes its activations again; its times are then those of that.
        types: Its replicas by device type, where it has several: their counts and times. ``known`` is then the mean of
            the types by their parts of a batch.
        rows: Of its tables on servers; None where it has none.
        moved_s: The network card of a unit, for all that it receives and sends; 0 if that occupies the stage anyway.
    """

    replicas: int
    known: tuple[MicroBatch, ...]
    activations_bytes: float = 0.0
    copies_bytes: float = 0.0
    sync_s: float = 0.0
    kept_bytes: float = 0.0
    unit_bytes: float = float("inf")
    safety_factor: float = SAFETY_FACTOR
    inputs_bytes: float = 0.0
    recompute: str = NEVER
    recomputes: bool = False
    types: tuple["StageLoad", ...] = ()
    rows: ServedRows | None = None
    own_s: float = 0.0
    moved_s: float = 0.0

    def pull_s(self, micro_batches: int) -> float:
        """Return what it waits for rows of servers before its first forward in a step of so many micro-batches."""
        return 0.0 if self.rows is None else self.rows.pull_s(self.replicas, micro_batches)

    @property
    def push_s(self) -> float:
        """Return what the gradients of rows take to servers behind its last backward of training."""
        return 0.0 if self.rows is None else self.rows.push_s

    def dealt(self, micro_batches: int, *, training: bool, steps: int = 1) -> MixedStage:
        """Return its replicas, with the micro-batches that each takes in some steps of so many."""
        each = [own.micro_batch(micro_batches) for own in self.types or (self,) for _ in range(own.replicas)]
        forward_s, backward_s = [one.forward_s for one in each], [one.backward_s * training for one in each]
        if not self.types:
            return mixed_stage(forward_s, backward_s, micro_batches * steps, EQUAL)
        step = mixed_stage(forward_s, backward_s, micro_batches, BY_SPEED)
        return replace(step, taken_by=step.taken_by * steps)

    def micro_batch(self, count: int) -> MicroBatch:
        """Return the times of one of so many micro-batches."""
        return micro_batch_of(self.known, count)

    def micro_batch_bytes(self, part: float, micro_batches: int) -> float:
        """Return what is held for every micro-batch under way: its part of the activations, and copies of weights.

        Where activations are computed again: its part of what enters.
        """
        return part * self.inputs_bytes if self.recomputes else part * self._undivided_bytes(micro_batches)

    def repeated_bytes(self, part: float, micro_batches: int) -> float:
        """Return what is held besides for the one micro-batch whose activations are computed again."""
        return part * self._undivided_bytes(micro_batches) if self.recomputes else 0.0

    def _undivided_bytes(self, micro_batches: int) -> float:
        return self.activations_bytes + micro_batches * self.copies_bytes

    def holding(self, memory: MemoryParts, unit_bytes: float) -> "StageLoad":
        """Return the load with what a replica holds, a batch undivided, and what a unit has."""
        held = replace(
            self,
            activations_bytes=memory.activations_bytes,
            copies_bytes=memory.copies_bytes,
            kept_bytes=memory.held_bytes,
            unit_bytes=unit_bytes,
            safety_factor=memory.safety_factor,
            inputs_bytes=memory.inputs_bytes,
            recompute=memory.recompute,
        )
        return held.recomputing() if memory.recompute == ALWAYS else held

    def recomputing(self) -> "StageLoad":
        """Return the load of the stage that computes its activations again."""
        known = tuple(each.recomputed() for each in self.known)
        types = tuple(each.recomputing() for each in self.types)
        return self if self.recomputes else replace(self, recomputes=True, known=known, types=types)

    def to_fit(self, peak: int, part: float, micro_batches: int) -> "StageLoad":
        """Return the load as it fits a unit that holds so many micro-batches at once, if it may change and that helps.

        Args:
            peak: Micro-batches, of one chunk where there are chunks.
            part: Of a batch's activations, as :func:`held_part` has it.
            micro_batches: In the step.
        """
        held = self.held_bytes(peak, part, micro_batches)
        if self.recompute != AUTO or self.recomputes or self.has_room(self.replica_bytes(held)):
            return self
        again = self.recomputing()
        return again if again.held_bytes(peak, part, micro_batches) < held else self

    def held_bytes(self, peak: int, part: float, micro_batches: int) -> float:
        """Return the most bytes that a replica holds at once for its micro-batches; arguments as above."""
        return self.micro_batch_bytes(part, micro_batches) * peak + self.repeated_bytes(part, micro_batches)

    def replica_bytes(self, held_bytes: float) -> float:
        """Return all that a replica holds, where it holds so much of micro-batches."""
        return (self.kept_bytes + held_bytes) * self.safety_factor

    def has_room(self, replica_bytes: float) -> bool:
        """Return whether a unit has that much memory."""
        return replica_bytes <= self.unit_bytes * (1 + MEMORY_TOLERANCE)

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
    return MicroBatch(count, *map(float, stage_law.occupied(compute_s, data_s, forward_share)))


@dataclass(frozen=True, slots=True)
class StageWhole:
    """A stage on its units, and a batch that it takes whole.

    Attributes:
        replicas: Units.
        compute_s, data_s: CT and DT of a batch with so many, without the all-reduce and rows of servers.
        phases: Of a batch on one unit.
        latency_s: Of all messages between stages that it receives and sends with a batch.
        rows: Of its tables on servers; None where it has none.
    """

    replicas: int
    compute_s: float
    data_s: float
    phases: Phases
    latency_s: float
    rows: ServedRows | None = None

    def part(self, count: int, phases: Phases, *, training: bool) -> MicroBatch:
        """Return the times of one of so many micro-batches: its part of CT and DT, and what dividing does not shrink.

        All but the first that a replica takes up add to gradients at hand.

        Args:
            count: Micro-batches in the step.
            phases: Of one of them on one unit.
            training: Whether there are backwards.
        """
        rows_s = 0.0 if self.rows is None else self.rows.ahead_s(self.replicas, count)
        usual = 1 / TRAINING_FACTOR if training else 1.0
        own = phases.forward_s, phases.backward_s, phases.accumulate_s, self.phases.whole_s
        alone = stage_law.Alone(*own, self.latency_s, rows_s, usual)
        passes = stage_law.micro_batch(alone, self.compute_s, self.data_s, self.replicas, count)
        return MicroBatch(count, *map(float, passes))


def delayed(stages: Sequence[MicroBatch], ways_s: Sequence[float]) -> list[MicroBatch]:
    """Return the micro-batches of all stages with the delays between them.

    Args:
        stages: Of S stages, without delays.
        ways_s: [S - 1], from the end of a forward's computation until its values are in the next stage.
    """
    last = len(stages) - 1
    # a stage between two others moves the values of both
    moving_s = [each.moving_s / (2 if 0 < stage < last else 1) for stage, each in enumerate(stages)]
    overlaps_s = [min(way_s, sum(pair)) for way_s, pair in zip(ways_s, pairwise(moving_s), strict=True)]
    return [
        replace(each, delay_s=way_s - overlap_s, overlap_s=overlap_s)
        for each, way_s, overlap_s in zip(stages, [*ways_s, 0.0], [*overlaps_s, 0.0], strict=True)
    ]


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
    order = orders(name, [load.replicas for load in loads], count, training=training)
    each = [load.micro_batch(micro_batches) for load in loads[:-1]]
    dealt = [load.dealt(micro_batches, training=training, steps=1 if training else steps) for load in loads]
    sync_s = [load.sync_s if training else 0.0 for load in loads]
    own_s = [load.own_s if training else 0.0 for load in loads]
    servers = [ServersTraffic(load.pull_s(micro_batches), load.push_s if training else 0.0) for load in loads]
    return simulate_mixed(
        order, dealt, transfer_s=[one.way_s for one in each], delay_s=[one.delay_s for one in each],
        sync_s=sync_s, own_s=own_s, servers=servers, moved_s=[load.moved_s for load in loads],
    )  # fmt: skip


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
    return tuple(load.held_bytes(peak, part, micro_batches) for load, peak in zip(loads, peaks, strict=True))


def least_part(problem: Problem, *, is_divisible: bool) -> float:
    """Return the least part of a batch's activations that any schedule holds: that of one of the most micro-batches."""
    if not is_divisible:
        return 1.0
    return 1 / micro_batch_counts(problem.batch, int(min(problem.max_units.max(initial=1), problem.batch)))[-1]


def with_least_activations(problem: Problem, *, is_divisible: bool) -> Problem:
    """Return a problem of whole batches' activations with the least of them that any schedule holds."""
    part = least_part(problem, is_divisible=is_divisible)
    return replace(problem, activation_bytes=problem.activation_bytes * part)


def micro_batch_counts(batch: int, replicas: int) -> list[int]:
    """Return the divisors of a batch worth trying, ascending: at most 32, or 8 for each of a stage's replicas."""
    most = min(batch, max(USUAL_MICRO_BATCHES, min(ROUNDS_OF_REPLICAS * replicas, MOST_ACTIONS)))
    return [count for count in range(1, most + 1) if batch % count == 0]


def feeding_count(batch: int, replicas: int) -> int:
    """Return the fewest micro-batches that divide a batch and give every replica one; 0 where more than 1,024 do."""
    return next((count for count in range(replicas, min(batch, _MOST_TO_FEED) + 1) if batch % count == 0), 0)


def training_counts(batch: int, replicas: int) -> list[int]:
    """Return the counts worth trying of which every replica has one; where none does, all that are worth trying.

    A replica without a micro-batch has nothing to learn from, and a run refuses it.
    """
    counts = sorted({*micro_batch_counts(batch, replicas), feeding_count(batch, replicas)} - {0})
    return [count for count in counts if count >= replicas] or counts
