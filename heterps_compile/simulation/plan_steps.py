"""A plan under the schedules: the step each takes, and what every device holds while it runs.

A plan says what micro-batches take on every stage, for some counts of them; others lie on the line between these.

Left out: the simulation itself (``schedule/``), the looks of it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from heterps_compile.cost.memory import MemoryParts, has_room
from heterps_compile.cost.roofline import TRAINING_FACTOR
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.schedule.load import (
    StageLoad,
    held_part,
    micro_batch_counts,
    occupied,
    simulate_step,
    training_counts,
)
from heterps_compile.schedule.micro_batch import MicroBatch
from heterps_compile.schedule.names import SCHEDULES
from heterps_compile.schedule.readings import Estimate, rate
from heterps_compile.schedule.simulate import Timeline, held_over_time, worker_spans

_SAME_TIME = 1 + 1e-9  # times closer than this factor differ by rounding alone


@dataclass(frozen=True, slots=True)
class Step:
    """A simulated step of a plan, or in inference several that follow one another.

    Attributes:
        schedule: Its name.
        micro_batches: In one step.
        steps: How many.
        timeline: Who runs what when.
        samples: In all.
        kept_bytes: [S], what a replica holds all the time: weights, gradients, optimiser state, and of a stage that
            computes its activations again those of one micro-batch; with the safety factor.
        micro_batch_bytes: [S], what one micro-batch (of one chunk) adds while it is held; with the safety factor.
    """

    schedule: str
    micro_batches: int
    steps: int
    timeline: Timeline
    samples: int
    kept_bytes: tuple[float, ...]
    micro_batch_bytes: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """Return the time of the step, or of all, fill and drain included."""
        return self.timeline.makespan_s

    @property
    def estimate(self) -> Estimate:
        """Return what one batch alone takes where it is one step; of several, what they take together."""
        return Estimate(self.step_s, rate(self.samples, self.step_s), self.timeline.bubble)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Return the most bytes that one replica of every stage holds at once, rounded up."""
        parts = zip(self.kept_bytes, self.micro_batch_bytes, self.timeline.peak_in_flight, strict=True)
        return tuple(math.ceil(kept + each * peak) for kept, each, peak in parts)

    def bytes_over_time(self) -> Iterator[tuple[tuple[int, int], list[tuple[float, float]]]]:
        """Yield for every (stage, replica) when what it holds changes, in seconds, and to how many bytes."""
        for worker, spans in worker_spans(self.timeline).items():
            kept, each = self.kept_bytes[worker[0]], self.micro_batch_bytes[worker[0]]
            yield worker, [(time_s, kept + each * held) for time_s, held in held_over_time(spans)]


def plan_loads(plan: Plan) -> tuple[StageLoad, ...]:
    """Return what a batch of a plan asks of its stages."""
    return tuple(
        replace(
            load,
            activations_bytes=activations_bytes,
            copies_bytes=copies_bytes,
            inputs_bytes=inputs_bytes,
            sync_s=stage.all_reduce_s,
            recomputes=stage.recompute,
            rows=stage.rows,
            own_s=stage.own_s,
        )
        for stage, load, (activations_bytes, copies_bytes, inputs_bytes) in zip(
            plan.stages, _timed(plan), _held(plan), strict=True
        )
    )


def _timed(plan: Plan) -> list[StageLoad]:
    training = plan.request.mode == "training"
    return [
        StageLoad(
            stage.replicas,
            _known(stage, training=training),
            types=tuple(
                StageLoad(part.replicas, _known(part, training=training)) for part in stage.by_type if stage.mixed
            ),
        )
        for stage in plan.stages
    ]


def _known(stage: PlannedStage, *, training: bool) -> tuple[MicroBatch, ...]:
    """Return the times of a stage; of an older plan the batch undivided is that of the steady state."""
    if stage.times and stage.times[0].count == 1:
        return stage.times
    compute_s, data_s = stage.replicas * stage.compute_s, stage.replicas * stage.own_data_s
    return occupied(1, compute_s, data_s, 1 / TRAINING_FACTOR if training else 1.0), *stage.times


def _held(plan: Plan) -> list[tuple[float, float, float]]:
    """Return the activations of a whole batch, the copies of weights of a micro-batch, and what enters with a batch.

    The plan's are those of the micro-batches that its schedule holds at once.
    """
    chosen, training = plan.schedule, plan.request.mode == "training"
    timeline = simulate_step(chosen.name, _timed(plan), chosen.micro_batches, training=training)
    part = held_part(timeline, chosen.micro_batches, training=training)
    held = []
    for stage, peak in zip(plan.stages, timeline.peak_in_flight, strict=True):
        memory, kept = _memory(stage.memory), 1 if stage.recompute else peak
        made_bytes = memory.activations_bytes - memory.inputs_bytes
        held.append((made_bytes / kept / part, memory.copies_bytes / kept, memory.inputs_bytes / peak / part))
    return held


def _memory(memory: MemoryParts | None) -> MemoryParts:
    return memory or MemoryParts(0, 0, 0, 0)


def simulate_plan(plan: Plan, loads: Sequence[StageLoad], schedule: str, micro_batches: int, steps: int = 1) -> Step:
    """Simulate a step of a plan.

    Args:
        plan: The plan.
        loads: Of its stages, by :func:`plan_loads`.
        schedule: Name of a schedule; the plan's own or another one.
        micro_batches: In the step.
        steps: Of inference, which follow one another; 1 in training.

    Raises:
        UnknownNameError: for an unknown schedule.
    """
    training = plan.request.mode == "training"
    steps = 1 if training else steps
    timeline = simulate_step(schedule, loads, micro_batches, training=training, steps=steps)
    kept, each = [], []
    for stage, load in zip(plan.stages, loads, strict=True):
        memory = _memory(stage.memory)
        part = held_part(timeline, micro_batches, training=training)
        kept.append((memory.held_bytes + load.repeated_bytes(part, micro_batches)) * memory.safety_factor)
        each.append(load.micro_batch_bytes(part, micro_batches) * memory.safety_factor)
    return Step(schedule, micro_batches, steps, timeline, steps * plan.batch, tuple(kept), tuple(each))


def has_fixed_batch(plan: Plan) -> bool:
    """Return whether the model fixes its batch, so that no dimension that was open is bound to it."""
    return plan.batch not in plan.bindings.values()


def possible_counts(plan: Plan) -> list[int]:
    """Return the counts of micro-batches worth trying; 1 alone where the model fixes its batch."""
    if has_fixed_batch(plan):
        return [1]
    counts_of = training_counts if plan.request.mode == "training" else micro_batch_counts
    return counts_of(plan.batch, max(stage.replicas for stage in plan.stages))


def fits(plan: Plan, step: Step) -> bool:
    """Return whether every unit has memory for what a step holds."""
    there = {device.name: device.memory_bytes for device in plan.devices}
    return all(
        has_room(there.get(device, math.inf), peak_bytes)
        for stage, peak_bytes in zip(plan.stages, step.peak_bytes, strict=True)
        for device, _ in stage.units
    )


def shortest(plan: Plan, steps: Sequence[Step]) -> Step:
    """Return the shortest of the steps that fit; of all where none does."""
    return min([step for step in steps if fits(plan, step)] or steps, key=lambda step: step.step_s)


def best_step(plan: Plan, loads: Sequence[StageLoad], schedule: str, counts: Sequence[int]) -> Step:
    """Simulate every count of micro-batches; the shortest that fits wins, among equals the one that holds the least."""
    steps = [simulate_plan(plan, loads, schedule, count) for count in counts]
    steps = [step for step in steps if fits(plan, step)] or steps
    shortest_s = min(step.step_s for step in steps) * _SAME_TIME
    return min(
        (step for step in steps if step.step_s <= shortest_s),
        key=lambda step: (sum(step.peak_bytes), step.micro_batches),
    )


def best_steps(
    plan: Plan,
    loads: Sequence[StageLoad],
    counts: Sequence[int],
    schedules: Sequence[str] = tuple(SCHEDULES),
) -> list[Step]:
    """Return the best step of every schedule over some counts of micro-batches, such as :func:`possible_counts`."""
    return [best_step(plan, loads, name, counts) for name in schedules]
