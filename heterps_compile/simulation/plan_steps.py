"""A plan under the schedules: the step each takes, and what every device holds while it runs.

A plan says what a batch takes on every stage, and what one micro-batch of its schedule does. Where that is the whole
batch, what each further micro-batch pays again, launches and latencies, needs the pool; the number of operations of a
layer needs the model, and is at least one.

Left out: the simulation itself (``schedule/``), the looks of it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.memory import MemoryParts, has_room
from heterps_compile.cost.roofline import TRAINING_FACTOR
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.schedule.load import (
    MicroBatch,
    StageLoad,
    held_part,
    mean_micro_batch,
    micro_batch_counts,
    occupied,
    simulate_step,
    training_counts,
)
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
    def peak_bytes(self) -> tuple[float, ...]:
        """Return the most bytes that one replica of every stage holds at once."""
        parts = zip(self.kept_bytes, self.micro_batch_bytes, self.timeline.peak_in_flight, strict=True)
        return tuple(kept + each * peak for kept, each, peak in parts)

    def bytes_over_time(self) -> Iterator[tuple[tuple[int, int], list[tuple[float, float]]]]:
        """Yield for every (stage, replica) when what it holds changes, in seconds, and to how many bytes."""
        for worker, spans in worker_spans(self.timeline).items():
            kept, each = self.kept_bytes[worker[0]], self.micro_batch_bytes[worker[0]]
            yield worker, [(time_s, kept + each * held) for time_s, held in held_over_time(spans)]


def plan_loads(
    plan: Plan, pool: Cluster | None = None, operations: Mapping[str, int] | None = None
) -> tuple[StageLoad, ...]:
    """Return what a batch of a plan asks of its stages.

    Args:
        plan: The plan.
        pool: Its device types, for launches and latencies where the plan does not say what dividing a batch costs; None
            counts neither.
        operations: Kernels that every layer starts, by its name; one each where not known.

    Raises:
        UnknownNameError: where the pool lacks a device type of the plan.
    """
    return tuple(
        StageLoad(
            stage.replicas,
            _known(plan, stage, pool, operations or {}),
            activations_bytes,
            copies_bytes,
            stage.all_reduce_s,
            inputs_bytes=inputs_bytes,
            recomputes=stage.recompute,
            types=_types(plan, stage, pool, operations or {}),
            rows=stage.rows,
            own_s=stage.own_s,
        )
        for stage, (activations_bytes, copies_bytes, inputs_bytes) in zip(plan.stages, _held(plan), strict=True)
    )


def _types(
    plan: Plan, stage: PlannedStage, pool: Cluster | None, operations: Mapping[str, int]
) -> tuple[StageLoad, ...]:
    """Return the replicas by device type where a stage has several."""
    if not stage.mixed:
        return ()
    return tuple(StageLoad(part.replicas, _known(plan, part, pool, operations)) for part in stage.by_type)


def _known(
    plan: Plan, stage: PlannedStage, pool: Cluster | None, operations: Mapping[str, int]
) -> tuple[MicroBatch, ...]:
    """Return the batch undivided, and divided as the plan's schedule does, else in two by what the pool says."""
    if stage.mixed:
        shares = [each.share for each in stage.mixed]
        by_type = [_known(plan, part, pool, operations) for part in stage.by_type]
        return tuple(mean_micro_batch(each, shares) for each in zip(*by_type, strict=True))
    training, count = plan.request.mode == "training", plan.schedule.micro_batches
    planned = MicroBatch(
        count, stage.micro_batch_forward_s, stage.micro_batch_backward_s,
        delay_s=stage.micro_batch_delay_s, overlap_s=stage.micro_batch_overlap_s,
    )  # fmt: skip
    forward_share = 1 / TRAINING_FACTOR if training else 1.0
    if planned.whole_s > 0:
        forward_share = planned.forward_s / planned.whole_s
    compute_s, data_s = stage.replicas * stage.compute_s, stage.replicas * stage.own_data_s
    whole = replace(occupied(1, compute_s, data_s, forward_share), delay_s=stage.delay_s, overlap_s=stage.overlap_s)
    more_s = (0.0, 0.0)  # than an equal share of what binds forward and backward together: each is bound by itself
    if planned.whole_s > 0:
        if count > 1:
            return whole, planned
        more_s = planned.forward_s - whole.forward_s, planned.backward_s - whole.backward_s
        whole = replace(whole, forward_s=planned.forward_s, backward_s=planned.backward_s)
    if pool is None:
        return (whole,)
    device = pool.device_type(stage.device)
    launched = sum(operations.get(name, 1) for name in stage.layers) * (TRAINING_FACTOR if training else 1)
    transfers = (stage.received_bytes > 0) + (stage.sent_bytes > 0)
    half = occupied(
        2,
        (compute_s + launched * device.launch_s) / 2,
        (data_s + transfers * device.network_latency_s) / 2
        + (0.0 if stage.rows is None else stage.rows.ahead_s(stage.replicas, 2)),
        forward_share,
    )
    following = plan.stages[stage.index + 1 : stage.index + 2]
    latency_s = max((pool.way(stage.device, each.device).latency_s for each in following), default=0.0)
    delay_s = min(stage.delay_s, (stage.delay_s + latency_s) / 2)
    return whole, replace(
        half,
        forward_s=half.forward_s + more_s[0] / 2,
        backward_s=half.backward_s + more_s[1] / 2,
        delay_s=delay_s,
        overlap_s=min(whole.way_s, (whole.way_s + latency_s) / 2) - delay_s,
    )


def _held(plan: Plan) -> list[tuple[float, float, float]]:
    """Return the activations of a whole batch, the copies of weights of a micro-batch, and what enters with a batch.

    The plan's are those of the micro-batches that its schedule holds at once.
    """
    loads = [
        StageLoad(stage.replicas, (MicroBatch(1, stage.time_s),), 1.0, types=_types(plan, stage, None, {}))
        for stage in plan.stages
    ]
    chosen, training = plan.schedule, plan.request.mode == "training"
    timeline = simulate_step(chosen.name, loads, chosen.micro_batches, training=training)
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
