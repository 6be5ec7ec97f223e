"""Choose how many micro-batches a step has and the schedule they follow, by simulating every choice.

Forward and backward of every stage are those of its layers at a micro-batch's size, as measured where a profile has
them (``cost/layer_times.py``). What M micro-batches cannot divide is paid M times (``schedule/load.py``): more of them
fill the pipeline better and pay more of it, so that the best M lies between 1 and the batch. Values reach the next
stage after the way over what connects the two; schedules that have few micro-batches under way wait for it most.

What a step takes, and which is the best, ``schedule/shortest_step.py`` says. It is one batch alone, in inference too,
where batches may follow one another (``schedule/readings.py``). Replicas sum their gradients at its end, with the
latency of every message, which the steady state leaves out.

Zero-bubble is one of the schedules where the stages run on a backend of PyTorch's own ops, which computes gradients of
inputs apart from those of weights, and no stage computes its activations again. Searches for a step are made under the
others. Interleaved 1F1B is simulated and never chosen: it needs every stage in two chunks, which is another placement
than the one that was searched for. The reason tells where a schedule that is not chosen would be shorter.

Left out: stages that need not wait for the one before them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import ClassVar

from heterps_compile.cost.layer_times import LayerTimes
from heterps_compile.cost.memory import ALWAYS, MemoryParts
from heterps_compile.cost.problem import SearchResult
from heterps_compile.ir.graph import Graph
from heterps_compile.plan.planned_schedule import Schedule
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.schedule.load import (
    StageLoad,
    StageWhole,
    delayed,
    micro_batch_counts,
    training_counts,
)
from heterps_compile.schedule.micro_batch import MicroBatch, mean_micro_batch, without_straight
from heterps_compile.schedule.shortest_step import (
    SAME_TIME,
    Step,
    best_step,
    shortest_step,
    step_under,
    steps_worth_trying,
)
from heterps_compile.schedule.wires import link_bytes
from heterps_compile.schedule.zero_bubble import INPUT_PART, ZERO_BUBBLE
from heterps_compile.units import counted, format_bytes, format_seconds

from .drafts import Provisioned, Scheduled, advance

_NOT_SPLIT = "the stages do not compute gradients of inputs apart from those of weights"
_HARDLY = ", which is less than 5 % shorter"
_IN_CHUNKS = "it needs two chunks a stage, another placement"


@dataclass(frozen=True, slots=True)
class ChooseSchedule:
    """Pick the number of micro-batches and the schedule: the shortest step, then the least memory.

    Attributes:
        schedule: Name of a schedule that was decided on already, with ``micro_batches``; "" for a free choice.
        micro_batches: In a step; 0 for a free choice.
    """

    schedule: str = ""
    micro_batches: int = 0
    name: ClassVar[str] = "choose-schedule"

    def __call__(self, draft: Provisioned) -> Scheduled:
        """Fill in ``schedule``, and correct the stages' memory for the micro-batches it holds at once."""
        training = draft.request.mode == "training"
        if self.schedule:
            loads = _loads(draft, [self.micro_batches, *_counts(draft)], training=training)
            best = step_under(self.schedule, loads, self.micro_batches, training=training)
            reason = f"{self.schedule} with {counted(self.micro_batches, 'micro-batch')} was decided before"
            return _scheduled(draft, StepOf(loads, (best,), best), reason)
        chosen = step_of(draft)
        most = max(stage.replicas for stage in draft.stages)
        why = "" if draft.graph.is_divisible else _fixed(draft.graph, most, training=training)
        best, trials = chosen.best, chosen.trials
        undivided = why or _against_undivided(best, chosen.loads, trials)
        reason = f"{undivided}; {_against_others(best, trials, training=training)}"
        if training and len(chosen.loads) > 1:
            reason += _shorter(best, chosen.loads, splits=_splits(draft, chosen.loads))
        if best.schedule == ZERO_BUBBLE and draft.request.minimises_step:
            draft = replace(draft, search=_bounded_under_zero_bubble(draft))
        return _scheduled(draft, chosen, reason)


@dataclass(frozen=True, slots=True)
class StepOf:
    """The step that stages with replicas take.

    Attributes:
        loads: Of the stages, as they keep their activations.
        trials: What was simulated.
        best: The one to take.
    """

    loads: Sequence[StageLoad]
    trials: Sequence[Step]
    best: Step

    def stages(self, draft: Provisioned) -> tuple[PlannedStage, ...]:
        """Return the stages of a draft with their micro-batches, and with memory and computation as they are then."""
        best = self.best
        loads = [load.recomputing() if again else load for load, again in zip(self.loads, best.recomputes, strict=True)]
        scheduled = (
            _scheduled_stage(draft, stage, load, best.micro_batches)
            for stage, load in zip(draft.stages, loads, strict=True)
        )
        return tuple(
            replace(
                stage,
                recompute=load.recomputes,
                memory=None
                if stage.memory is None
                else stage.memory.under_way(peak, best.micro_batches, recomputes=load.recomputes),
            )
            for stage, load, peak in zip(scheduled, loads, best.peak_in_flight, strict=True)
        )


def _scheduled_stage(draft: Provisioned, stage: PlannedStage, load: StageLoad, micro_batches: int) -> PlannedStage:
    """Return a stage with what it computes for, and what micro-batches take, so many and others."""
    computing_s = [
        _kept_compute_s(draft, part) * (_factor(draft.times, part) if load.recomputes else 1.0)
        for part in stage.by_type
    ]
    counts = [known.count for known in load.known]
    if not stage.mixed:
        return replace(stage, compute_s=computing_s[0], times=_planned(load.known, micro_batches))
    types = tuple(
        replace(each, compute_s=compute_s * each.share, times=_planned(of.known, micro_batches))
        for each, of, compute_s in zip(stage.mixed, load.types, computing_s, strict=True)
    )
    dealt = [load.dealt(count, training=draft.request.mode == "training") for count in counts]
    means = [
        replace(
            known,
            forward_s=fmean(of.forward_s[replica] for replica in of.taken_by),
            backward_s=fmean(of.backward_s[replica] for replica in of.taken_by),
        )
        for known, of in zip(load.known, dealt, strict=True)
    ]
    compute_s = max(each.compute_s for each in types)
    return replace(stage, compute_s=compute_s, times=_planned(means, micro_batches), mixed=types)


def _planned(known: Sequence[MicroBatch], micro_batches: int) -> tuple[MicroBatch, ...]:
    """Return what a plan keeps of the times of micro-batches: so many, and those that others do not give."""
    return without_straight([replace(each, moving_s=0.0) for each in known], [micro_batches])


def step_of(draft: Provisioned) -> StepOf:
    """Return the best step of the stages of a draft, over all counts of micro-batches and schedules."""
    training, most = draft.request.mode == "training", max(stage.replicas for stage in draft.stages)
    counts = _counts(draft)
    loads = _loads(draft, counts, training=training)
    # a replica without a micro-batch has nothing to learn from
    least = most if training and most <= max(counts) else 1
    trials = list(steps_worth_trying(loads, counts, least, training=training, splits=_splits(draft, loads)))
    choose = shortest_step if draft.request.minimises_step else best_step
    return StepOf(loads, trials, choose([trial for trial in trials if trial.micro_batches >= least]))


def _splits(draft: Provisioned, loads: Sequence[StageLoad]) -> bool:
    """Return whether a training may run under zero-bubble; the first stage has nothing to split."""
    is_training = draft.request.mode == "training"
    return is_training and draft.splits_backward and len(loads) > 1 and not any(load.recomputes for load in loads)


def _counts(draft: Provisioned) -> list[int]:
    """Return the counts of micro-batches worth trying, ascending."""
    if not draft.graph.is_divisible:
        return [1]
    batch, most = draft.graph.batch, max(stage.replicas for stage in draft.stages)
    counts = micro_batch_counts(batch, most)
    if draft.request.mode != "training" or draft.request.minimises_step:
        return counts  # a step that was searched for has a count already
    return sorted({*counts, *training_counts(batch, most)})


def _fixed(graph: Graph, most_replicas: int, *, training: bool) -> str:
    """Say why the batch is not divided, and how a run trains all replicas all the same: each on batches of its own."""
    why, batch = f"1 micro-batch, as {graph.undivided}", graph.batch
    if training and most_replicas > 1:
        why += f"; train with --batch {most_replicas * batch} --micro-batches {most_replicas}, one for every replica"
    return why


def _bounded_under_zero_bubble(draft: Provisioned) -> SearchResult:
    """Return the search with bounds on steps under all schedules; it has those under GPipe and 1F1B.

    Zero-bubble without gradients of weights is 1F1B with a part of every backward, so that no step under it is shorter
    than that part of one under 1F1B; nor is it shorter than the steady state. Below a floor, plans that reach it under
    zero-bubble alone are none of the first bound.
    """
    search, part = draft.search, 0.0 if draft.request.min_throughput else INPUT_PART
    found = (max(0.0, search.bound), max(0.0, search.bound_of_all_orders))
    bound, of_all_orders = (max(min(each, max(0.0, search.steady_bound)), part * each) for each in found)
    return replace(search, bound=bound, bound_of_all_orders=of_all_orders)


def _scheduled(draft: Provisioned, chosen: StepOf, reason: str) -> Scheduled:
    """Fill in the schedule, and the stages' micro-batches and memory under it."""
    best = chosen.best
    schedule = Schedule(best.schedule, best.micro_batches, reason, best.step_s)
    return advance(draft, Scheduled, schedule=schedule, stages=chosen.stages(draft))


def _factor(times: LayerTimes, stage: PlannedStage) -> float:
    """Return by how much a stage that computes its activations again computes longer for a batch."""
    phases = times.stage_phases(stage.layers, stage.device)
    return 1 + (phases.forward_s / phases.whole_s if phases.whole_s > 0 else 0.0)


def _kept_compute_s(draft: Provisioned, stage: PlannedStage) -> float:
    """Return CT of a stage that keeps its activations; the problem has the other where all compute them again."""
    return stage.compute_s / _factor(draft.times, stage) if draft.recompute == ALWAYS else stage.compute_s


def _loads(draft: Provisioned, counts: Iterable[int], *, training: bool) -> list[StageLoad]:
    """Return what a step asks of every stage, its times known for some counts of micro-batches."""
    ways, parts = _ways(draft), [stage.by_type for stage in draft.stages]
    wholes = [[_whole(draft, part) for part in of_stage] for of_stage in parts]
    shares = [[each.share for each in stage.mixed] or [1.0] for stage in draft.stages]
    counts = sorted({1, 2, *counts})  # two tell what dividing does not shrink
    known: list[list[list[MicroBatch]]] = [
        [
            [
                whole.part(count, draft.times.stage_phases(part.layers, part.device, count), training=training)
                for part, whole in zip(of_stage, own, strict=True)
            ]
            for of_stage, own in zip(parts, wholes, strict=True)
        ]
        for count in counts
    ]
    means = [
        delayed(
            [each[0] if len(each) == 1 else mean_micro_batch(each, own) for each, own in zip(at, shares, strict=True)],
            [latency_s + batch_s / count for latency_s, batch_s in ways],
        )
        for count, at in zip(counts, known, strict=True)
    ]
    loads = []
    for index, (stage, of_stage) in enumerate(zip(draft.stages, parts, strict=True)):
        types = tuple(
            StageLoad(part.replicas, tuple(at[index][place] for at in known))
            for place, part in enumerate(of_stage if stage.mixed else ())
        )
        load = StageLoad(
            stage.replicas,
            tuple(mean[index] for mean in means),
            sync_s=stage.all_reduce_s,
            own_s=stage.own_s,
            types=types,
            rows=stage.rows,
        )
        room = min(draft.cluster.device_type(device).memory_bytes for device, _ in stage.units)
        loads.append(load.holding(stage.memory or MemoryParts(0, 0, 0, 0), room))
    return loads


def _ways(draft: Provisioned) -> list[tuple[float, float]]:
    """Return latency and a batch's time [S - 1] from every stage to the next, each at the pace of the slower side.

    A value that skips stages takes every one of them.
    """
    stage_of = {name: stage.index for stage in draft.stages for name in stage.layers}
    stages = [stage_of[layer.name] for layer in draft.layers.layers]
    values = (
        (stages[edge.producer], max((stages[reader] for reader in edge.consumers), default=0), float(edge.size_bytes))
        for edge in draft.layers.edges
        if edge.producer >= 0
    )
    sent_bytes = link_bytes(values, len(draft.stages))
    ways = []
    for (stage, following), size_bytes in zip(pairwise(draft.stages), sent_bytes, strict=False):
        pairs = [(here, there) for here, _ in stage.units for there, _ in following.units]
        sides = [draft.times.pool.way(*each) for pair in pairs for each in (pair, pair[::-1])]
        slowest = min(side.bytes_per_s for side in sides)
        ways.append((max(side.latency_s for side in sides), size_bytes / slowest) if size_bytes else (0.0, 0.0))
    return ways


def _whole(draft: Provisioned, stage: PlannedStage) -> StageWhole:
    times, transfers = draft.times, (stage.received_bytes > 0) + (stage.sent_bytes > 0)
    return StageWhole(
        stage.replicas,
        _kept_compute_s(draft, stage),
        stage.own_data_s,
        times.stage_phases(stage.layers, stage.device),
        transfers * times.pool.device_type(stage.device).network_latency_s,
        stage.rows,
    )


def _shorter(best: Step, loads: Sequence[StageLoad], *, splits: bool) -> str:
    """Tell of the schedules that would be shorter with as many micro-batches, and why they are not chosen."""
    reasons = {"interleaved-1f1b": _IN_CHUNKS} if splits else {ZERO_BUBBLE: _NOT_SPLIT, "interleaved-1f1b": _IN_CHUNKS}
    others = [(step_under(name, loads, best.micro_batches, training=True), why) for name, why in reasons.items()]
    return "".join(
        f"; {other.schedule} would take {format_seconds(other.step_s)}, but {why}"
        for other, why in others
        if other.step_s * SAME_TIME < best.step_s
    )


def _against_undivided(best: Step, loads: Sequence[StageLoad], trials: Sequence[Step]) -> str:
    undivided_s = min(trial.step_s for trial in trials if trial.micro_batches == 1)
    if best.micro_batches > 1:
        gain = f"{format_seconds(best.step_s)} a step, undivided {format_seconds(undivided_s)}"
        if undivided_s * SAME_TIME < best.step_s:
            gain += ", which would leave replicas without any"
        return f"{best.micro_batches} micro-batches: {gain}"
    again_s = sum(load.again_s for load in loads)
    cost = f"each further one would pay {format_seconds(again_s)} of launches and latency again"
    return f"1 micro-batch: {format_seconds(undivided_s)} a step, and {cost}"


def _against_others(best: Step, trials: Sequence[Step], *, training: bool) -> str:
    if not training:
        return "forward only, the next batch follows at once"
    others = [t for t in trials if t.micro_batches == best.micro_batches and t.schedule != best.schedule]
    told = (f"{t.schedule} {format_seconds(t.step_s)} and {format_bytes(t.held_bytes)}" for t in others)
    return (
        f"{best.schedule} takes {format_seconds(best.step_s)} and holds {format_bytes(best.held_bytes)} of "
        f"activations, {', '.join(told)}"
        + (_HARDLY if any(t.schedule == ZERO_BUBBLE and t.step_s * SAME_TIME < best.step_s for t in others) else "")
    )
