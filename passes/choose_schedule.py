"""Choose how many micro-batches a step has and the schedule they follow, by simulating every choice.

Forward and backward of every stage are those of its layers at a micro-batch's size, as measured where a profile has
them (``cost/layer_times.py``). What M micro-batches cannot divide is paid M times (``schedule/load.py``): more of them
fill the pipeline better and pay more of it, so that the best M lies between 1 and the batch. Values reach the next
stage after the way over what connects the two; schedules that have few micro-batches under way wait for it most.

The shortest step wins; among equals, and with as many micro-batches among those at most 2 % longer, the one that holds
the fewest bytes of activations: 1F1B waits for every delay between stages and holds a part of what GPipe holds. The
step is one batch alone, in inference too, where batches may follow one another (``schedule/readings.py``).

Two schedules are simulated and never chosen, and the reason tells where they would be shorter: zero-bubble needs
gradients of inputs and of weights apart, which no backend computes, and interleaved 1F1B needs every stage in two
chunks, which is another placement than the one that was searched for.

Left out: stages that need not wait for the one before them.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from heterps_compile.cost.layer_times import LayerTimes
from heterps_compile.cost.memory import MemoryParts
from heterps_compile.cost.roofline import TRAINING_FACTOR
from heterps_compile.plan.plan import PlannedStage, Schedule
from heterps_compile.schedule.load import (
    MicroBatch,
    StageLoad,
    delayed,
    held_bytes,
    micro_batch_counts,
    occupied,
    simulate_step,
)
from heterps_compile.units import format_bytes, format_seconds

from .drafts import Provisioned, Scheduled, advance

_NOT_CHOSEN = {
    "zero-bubble": "no backend computes gradients of inputs and of weights apart",
    "interleaved-1f1b": "it needs two chunks a stage, another placement",
}
"""Schedules of training that are shorter where the pipeline waits, and why they are not chosen all the same."""

_HARDLY_LONGER = 1.02
"""Predicted steps differ from measured ones by more than this."""

_SAME_TIME = 1 + 1e-9
"""Times closer than this factor differ by rounding alone."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A simulated choice."""

    name: str
    micro_batches: int
    step_s: float
    held_bytes: float
    peak_in_flight: tuple[int, ...]


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
            loads = _loads(draft, [self.micro_batches], training=training)
            best = _try(self.schedule, loads, self.micro_batches, training=training)
            reason = f"{self.schedule} with {self.micro_batches} micro-batches was decided before"
            return _scheduled(draft, best, reason, loads, training=training)
        most = max(stage.replicas for stage in draft.stages)
        counts, why = [1], _fixed(draft.graph.batch, most, training=training)
        if draft.graph.batch_symbol is not None:
            counts, why = micro_batch_counts(draft.graph.batch, most), ""
        loads = _loads(draft, counts, training=training)
        # a replica without a micro-batch has nothing to learn from
        least = most if training and most <= max(counts) else 1
        trials = list(_simulated(loads, counts, least, training=training))
        best = _best([trial for trial in trials if trial.micro_batches >= least])
        reason = f"{why or _against_undivided(best, loads, trials)}; {_against_others(best, trials, training=training)}"
        if training and len(loads) > 1:
            reason += _shorter(best, loads)
        return _scheduled(draft, best, reason, loads, training=training)


def _fixed(batch: int, most_replicas: int, *, training: bool) -> str:
    """Say why the batch is not divided, and how a run trains all replicas all the same: each on batches of its own."""
    why = f"1 micro-batch, as the model fixes its batch at {batch}"
    if training and most_replicas > 1:
        why += f"; train with --batch {most_replicas * batch} --micro-batches {most_replicas}, one for every replica"
    return why


def _scheduled(
    draft: Provisioned, best: _Trial, reason: str, loads: Sequence[StageLoad], *, training: bool
) -> Scheduled:
    """Fill in the schedule, and the stages' micro-batches and memory under it."""
    schedule = Schedule(best.name, best.micro_batches, reason, best.step_s)
    stages = tuple(
        replace(
            stage,
            micro_batch_forward_s=load.micro_batch(best.micro_batches).forward_s,
            micro_batch_backward_s=load.micro_batch(best.micro_batches).backward_s,
            delay_s=load.micro_batch(1).delay_s,
            micro_batch_delay_s=load.micro_batch(best.micro_batches).delay_s,
            memory=_in_flight(stage.memory, peak, best.micro_batches),
        )
        for stage, load, peak in zip(draft.stages, loads, best.peak_in_flight, strict=True)
    )
    return advance(draft, Scheduled, schedule=schedule, stages=stages)


def _in_flight(memory: MemoryParts | None, peak: int, micro_batches: int) -> MemoryParts | None:
    """Return what a replica holds of a stage when only so many of its micro-batches are under way at once."""
    if memory is None:
        return None
    return replace(
        memory,
        activations_bytes=math.ceil(memory.activations_bytes * peak / micro_batches),
        copies_bytes=memory.copies_bytes * peak,
    )


def _loads(draft: Provisioned, counts: Iterable[int], *, training: bool) -> list[StageLoad]:
    """Return what a step asks of every stage, its times known for some counts of micro-batches."""
    ways = _ways(draft)
    known = [
        delayed(
            [_micro_batch(draft.times, stage, count, training=training) for stage in draft.stages],
            [way.micro_batch_s(count) for way in ways],
        )
        for count in sorted({1, 2, *counts})  # two tell what dividing does not shrink
    ]
    return [
        StageLoad(
            replicas=stage.replicas,
            known=of_stage,
            activations_bytes=stage.memory.activations_bytes if stage.memory else 0,
            copies_bytes=stage.memory.copies_bytes if stage.memory else 0,
        )
        for stage, of_stage in zip(draft.stages, zip(*known, strict=True), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Way:
    """From a stage to the next: the latency, and the time of a batch's values that the next one reads."""

    latency_s: float = 0.0
    batch_s: float = 0.0

    def micro_batch_s(self, count: int) -> float:
        """Return the way of one of so many micro-batches."""
        return self.latency_s + self.batch_s / count


def _ways(draft: Provisioned) -> list[_Way]:
    """Return the ways [S - 1] from every stage to the next, each at the pace of the slower side."""
    stage_of = {name: stage.index for stage in draft.stages for name in stage.layers}
    stages = [stage_of[layer.name] for layer in draft.layers.layers]
    sent_bytes = [0] * len(draft.stages)
    for edge in draft.layers.edges:
        if edge.producer >= 0 and stages[edge.producer] + 1 in (stages[reader] for reader in edge.consumers):
            sent_bytes[stages[edge.producer]] += edge.size_bytes
    ways = []
    for (stage, following), size_bytes in zip(pairwise(draft.stages), sent_bytes, strict=False):
        pair = (stage.device, following.device)
        sides = [draft.times.pool.link(*pair), draft.times.pool.link(*pair[::-1])]
        slowest = min(side.bytes_per_s for side in sides)
        ways.append(_Way(max(side.latency_s for side in sides), size_bytes / slowest) if size_bytes else _Way())
    return ways


def _micro_batch(times: LayerTimes, stage: PlannedStage, count: int, *, training: bool) -> MicroBatch:
    """Return the times of one of so many micro-batches: its part of CT and DT, and what dividing does not shrink.

    All but the first that a replica takes up add to gradients at hand.
    """
    whole, part = times.stage_phases(stage.layers, stage.device), times.stage_phases(stage.layers, stage.device, count)
    rounds = max(1.0, count / stage.replicas)
    backward_s = (part.backward_s + (rounds - 1) * part.accumulate_s) / rounds
    own_s = part.forward_s + backward_s
    transfers = (stage.received_bytes > 0) + (stage.sent_bytes > 0)
    latency_s = transfers * times.pool.device_type(stage.device).network_latency_s
    return occupied(
        count,
        stage.replicas * stage.compute_s / count + own_s - whole.whole_s / count,
        (stage.replicas * stage.data_s + (count - 1) * latency_s) / count,
        part.forward_s / own_s if training and own_s > 0 else 1 / TRAINING_FACTOR if training else 1.0,
    )


def _simulated(loads: Sequence[StageLoad], counts: Sequence[int], least: int, *, training: bool) -> Iterator[_Trial]:
    """Simulate every schedule for every count from ``least`` on that could be the best, the most promising first."""
    promising = sorted(counts, key=lambda count: _shortest_step_s(loads, count, training=training))
    shortest_s = float("inf")
    for count in promising:
        is_hopeless = _shortest_step_s(loads, count, training=training) > shortest_s * _SAME_TIME
        if count != 1 and (count < least or is_hopeless):
            continue  # 1 is always simulated: the reason compares with it
        for name in ("gpipe", "1f1b") if training else ("gpipe",):
            trial = _try(name, loads, count, training=training)
            shortest_s = min(shortest_s, trial.step_s if count >= least else shortest_s)
            yield trial


def _try(name: str, loads: Sequence[StageLoad], count: int, *, training: bool) -> _Trial:
    timeline = simulate_step(name, loads, count, training=training)
    held = held_bytes(loads, timeline, count, training=training)
    in_all = sum(load.replicas * held_by_one for load, held_by_one in zip(loads, held, strict=True))
    return _Trial(name, count, timeline.makespan_s, in_all, timeline.peak_in_flight)


def _shorter(best: _Trial, loads: Sequence[StageLoad]) -> str:
    """Tell of the schedules that would be shorter with as many micro-batches, and why they are not chosen."""
    others = [(_try(name, loads, best.micro_batches, training=True), why) for name, why in _NOT_CHOSEN.items()]
    return "".join(
        f"; {other.name} would take {format_seconds(other.step_s)}, but {why}"
        for other, why in others
        if other.step_s * _SAME_TIME < best.step_s
    )


def _shortest_step_s(loads: Sequence[StageLoad], count: int, *, training: bool) -> float:
    """Return a lower bound on the step under any schedule.

    The busiest replica of a stage cannot start before one micro-batch has come through the stages before; once it
    has ended, its last micro-batch must still go through those after, or in training back through those before.
    """
    times_s = [load.micro_batch(count).whole_s for load in loads]
    bounds_s = []
    for stage, load in enumerate(loads):
        others_s = sum(times_s[:stage]) + (0.0 if training else sum(times_s[stage + 1 :]))
        bounds_s.append(others_s + -(-count // load.replicas) * times_s[stage])
    return max(bounds_s)


def _best(trials: Sequence[_Trial]) -> _Trial:
    """Return the trial to follow, by the rule of the module."""
    shortest_s = min(trial.step_s for trial in trials)

    def is_equal(trial: _Trial, within: float) -> bool:
        return trial.step_s <= shortest_s * within

    def burden(trial: _Trial) -> tuple[float, int]:
        return trial.held_bytes, trial.micro_batches

    best = min((trial for trial in trials if is_equal(trial, _SAME_TIME)), key=burden)
    alike = (trial for trial in trials if trial.micro_batches == best.micro_batches)
    return min((trial for trial in alike if is_equal(trial, _HARDLY_LONGER)), key=burden)


def _against_undivided(best: _Trial, loads: Sequence[StageLoad], trials: Sequence[_Trial]) -> str:
    undivided_s = min(trial.step_s for trial in trials if trial.micro_batches == 1)
    if best.micro_batches > 1:
        gain = f"{format_seconds(best.step_s)} a step, undivided {format_seconds(undivided_s)}"
        if undivided_s * _SAME_TIME < best.step_s:
            gain += ", which would leave replicas without any"
        return f"{best.micro_batches} micro-batches: {gain}"
    again_s = sum(load.again_s for load in loads)
    cost = f"each further one would pay {format_seconds(again_s)} of launches and latency again"
    return f"1 micro-batch: {format_seconds(undivided_s)} a step, and {cost}"


def _against_others(best: _Trial, trials: Sequence[_Trial], *, training: bool) -> str:
    if not training:
        return "forward only, the next batch follows at once"
    other = next(t for t in trials if t.micro_batches == best.micro_batches and t.name != best.name)
    return (
        f"{best.name} takes {format_seconds(best.step_s)} and holds {format_bytes(best.held_bytes)} of activations, "
        f"{other.name} {format_seconds(other.step_s)} and {format_bytes(other.held_bytes)}"
    )
