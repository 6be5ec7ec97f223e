"""Choose how many micro-batches a step has and the schedule they follow, by simulating every choice.

What M micro-batches cannot divide is paid M times (``schedule/load.py``): more of them fill the pipeline better and pay
more of it, so that the best M lies between 1 and the batch.

The shortest step wins; among equals, the one that holds the fewest bytes of activations. In training the bubble is
that of one step, which ends before the next begins; in inference batches follow one another without a pause, and the
bubble is what stages wait for the slowest.

Two schedules are simulated and never chosen, and the reason tells where they would be shorter: zero-bubble needs
gradients of inputs and of weights apart, which no backend computes, and interleaved 1F1B needs every stage in two
chunks, which is another placement than the one that was searched for.

Left out: stages that need not wait for the one before them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from heterps_compile.cost.memory import MemoryParts
from heterps_compile.cost.roofline import TRAINING_FACTOR
from heterps_compile.plan.plan import Schedule
from heterps_compile.schedule.load import StageLoad, held_bytes, micro_batch_counts, simulate_step
from heterps_compile.units import format_bytes, format_seconds

from .contract import Draft, refine

_NOT_CHOSEN = {
    "zero-bubble": "no backend computes gradients of inputs and of weights apart",
    "interleaved-1f1b": "it needs two chunks a stage, another placement",
}
"""Schedules of training that are shorter where the pipeline waits, and why they are not chosen all the same."""

_SAME_TIME = 1 + 1e-9
"""Times closer than this factor differ by rounding alone."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A simulated choice."""

    name: str
    micro_batches: int
    step_s: float
    bubble: float
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
    requires: ClassVar[tuple[str, ...]] = ("layers", "costs", "stages")
    ensures: ClassVar[tuple[str, ...]] = ("schedule", "stages")

    def __call__(self, draft: Draft) -> Draft:
        """Fill in ``schedule``, and correct the stages' memory for the micro-batches it holds at once."""
        training = draft.request.mode == "training"
        loads = _loads(draft, training=training)
        if self.schedule:
            best = _try(self.schedule, loads, self.micro_batches, training=training)
            reason = f"{self.schedule} with {self.micro_batches} micro-batches was decided before"
            return _scheduled(draft, best, reason, loads, training=training)
        if draft.graph.batch_symbol is None:
            trials = list(_simulated(loads, [1], training=training))
            why = f"1 micro-batch, as the model fixes its batch at {draft.graph.batch}"
        else:
            counts = micro_batch_counts(draft.graph.batch, max(load.replicas for load in loads))
            trials = list(_simulated(loads, counts, training=training))
            why = ""
        shortest_s = min(trial.step_s for trial in trials)
        equals = [trial for trial in trials if trial.step_s <= shortest_s * _SAME_TIME]
        best = min(equals, key=lambda trial: (trial.held_bytes, trial.micro_batches))
        reason = f"{why or _against_undivided(best, loads, trials)}; {_against_others(best, trials, training=training)}"
        if training and len(loads) > 1:
            reason += _shorter(best, loads)
        return _scheduled(draft, best, reason, loads, training=training)


def _scheduled(draft: Draft, best: _Trial, reason: str, loads: Sequence[StageLoad], *, training: bool) -> Draft:
    """Fill in the schedule, and the stages' memory under it."""
    bubble = best.bubble if training else _steady_bubble(loads)
    schedule = Schedule(best.name, best.micro_batches, reason, best.step_s, bubble)
    assert draft.stages is not None  # noqa: S101 - run_passes has checked it; this tells the type checker
    stages = tuple(
        replace(stage, memory=_in_flight(stage.memory, peak, best.micro_batches))
        for stage, peak in zip(draft.stages, best.peak_in_flight, strict=True)
    )
    return refine(draft, schedule=schedule, stages=stages)


def _in_flight(memory: MemoryParts | None, peak: int, micro_batches: int) -> MemoryParts | None:
    """Give what a replica holds of a stage when only so many of its micro-batches are under way at once."""
    if memory is None:
        return None
    return replace(memory, activations_bytes=math.ceil(memory.activations_bytes * peak / micro_batches))


def _loads(draft: Draft, *, training: bool) -> list[StageLoad]:
    assert draft.layers is not None  # noqa: S101 - run_passes has checked it; this tells the type checker
    assert draft.costs is not None  # noqa: S101
    assert draft.stages is not None  # noqa: S101
    operations = {layer.name: cost.operations for layer, cost in zip(draft.layers.layers, draft.costs, strict=True)}
    loads = []
    for stage in draft.stages:
        device = draft.cluster.device_type(stage.device)
        launched = sum(operations[name] for name in stage.layers) * (TRAINING_FACTOR if training else 1)
        transfers = (stage.received_bytes > 0) + (stage.sent_bytes > 0)
        loads.append(
            StageLoad(
                replicas=stage.replicas,
                compute_s=stage.compute_s,
                data_s=stage.data_s,
                compute_again_s=launched * device.launch_s,
                data_again_s=transfers * device.network_latency_s,
                activations_bytes=stage.memory.activations_bytes if stage.memory else 0,
            )
        )
    return loads


def _simulated(loads: Sequence[StageLoad], counts: Sequence[int], *, training: bool) -> Iterator[_Trial]:
    """Simulate every schedule for every count that could be the best, the most promising first."""
    promising = sorted(counts, key=lambda count: _shortest_step_s(loads, count, training=training))
    shortest_s = float("inf")
    for count in promising:
        if count != 1 and _shortest_step_s(loads, count, training=training) > shortest_s * _SAME_TIME:
            continue  # 1 is always simulated: the reason compares with it
        for name in ("gpipe", "1f1b") if training else ("gpipe",):
            trial = _try(name, loads, count, training=training)
            shortest_s = min(shortest_s, trial.step_s)
            yield trial


def _try(name: str, loads: Sequence[StageLoad], count: int, *, training: bool) -> _Trial:
    timeline = simulate_step(name, loads, count, training=training)
    held = held_bytes(loads, timeline, count, training=training)
    in_all = sum(load.replicas * held_by_one for load, held_by_one in zip(loads, held, strict=True))
    return _Trial(name, count, timeline.makespan_s, timeline.bubble, in_all, timeline.peak_in_flight)


def _shorter(best: _Trial, loads: Sequence[StageLoad]) -> str:
    """Tell of the schedules that would be shorter with as many micro-batches, and why they are not chosen."""
    others = [(_try(name, loads, best.micro_batches, training=True), why) for name, why in _NOT_CHOSEN.items()]
    return "".join(
        f"; {other.name} would take {format_seconds(other.step_s)}, but {why}"
        for other, why in others
        if other.step_s * _SAME_TIME < best.step_s
    )


def _steady_bubble(loads: Sequence[StageLoad]) -> float:
    """Give the share of all replicas' time in which they wait while batch follows batch at the slowest stage's pace."""
    times_s = [max(load.compute_s, load.data_s) for load in loads]
    busy_s = sum(load.replicas * time_s for load, time_s in zip(loads, times_s, strict=True))
    return 1 - busy_s / (max(times_s) * sum(load.replicas for load in loads))


def _shortest_step_s(loads: Sequence[StageLoad], count: int, *, training: bool) -> float:
    """Give a lower bound on the step under any schedule.

    The busiest replica of a stage cannot start before one micro-batch has come through the stages before; once it
    has ended, its last micro-batch must still go through those after, or in training back through those before.
    """
    times_s = [load.micro_batch_s(count) for load in loads]
    bounds_s = []
    for stage, load in enumerate(loads):
        others_s = sum(times_s[:stage]) + (0.0 if training else sum(times_s[stage + 1 :]))
        bounds_s.append(others_s + -(-count // load.replicas) * times_s[stage])
    return max(bounds_s)


def _against_undivided(best: _Trial, loads: Sequence[StageLoad], trials: Sequence[_Trial]) -> str:
    undivided_s = min(trial.step_s for trial in trials if trial.micro_batches == 1)
    if best.micro_batches > 1:
        gain = f"{format_seconds(best.step_s)} a step, undivided {format_seconds(undivided_s)}"
        return f"{best.micro_batches} micro-batches: {gain}"
    again_s = sum(max(load.compute_again_s, load.data_again_s) for load in loads)
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
