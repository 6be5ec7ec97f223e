"""Why steps took longer than the plan says, or less long: parts that add up to the difference.

The plan's step is simulated again with what was measured in place of what was planned, one cause after the other, the
one first that by itself changes the step most. What each adds is its part of the difference::

    planned                                        27 ms
    stage 1 as measured                  + 12  ->  39 ms
    the optimizer, between two steps     +  2  ->  41 ms
    data that stage 0 waited for         + 0.5 ->  41.5 ms
    measured, from step to step                    42.5 ms    1 ms is not explained

A cause is what a rank does by itself: it computes, waits for its data or for rows of served tables, runs what lies
between actions and between steps. If computing got clearly less CPU time than wall time, its CPU time is compared with
the plan, and the rest is a separate cause, :data:`TAKEN`: a busy machine, not a wrong plan. The optimizer as measured
stands in place of the plan's, and waiting for rows in place of the plan's pull and push, as servers answer the first
pull of a step after the pushes of the one before. How ranks wait for one another follows from these. A step of training
begins and ends in the first stage, so what lies between steps counts there; in inference a step takes what the slowest
stage takes for it. What follows from none of these is not explained: messages that take longer than planned, sums of
gradients.

Measured numbers are means, since medians do not add up. Left out: runs that are not as their plan says.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.schedule.load import StageLoad, simulate_step
from heterps_compile.schedule.micro_batch import MicroBatch
from heterps_compile.schedule.zero_bubble import backward_factor
from heterps_compile.units import counted, format_seconds

from .events import RankStart, RankStep
from .step_report import StepReport

DATA, PULL, RUNTIME, DIVIDING, OTHER, UNEXPLAINED = "data", "pull", "runtime", "dividing", "other", "unexplained"
"""Causes beside stages and what is told to lie between steps."""

TAKEN = "taken"
"""Wall time of computing in which other processes had the cores."""

OPTIMIZER = "optimizer"
"""Of what is told to lie between steps, what a plan has too: measured, it stands in place of that."""

_ALIKE = 0.02  # of the planned time; less than timers and the system's other work make
_TOLD = 0.05  # of the difference; smaller parts are told together
_FACTOR_FROM = 2.0
_TAKEN_FROM = 0.1  # of the wall time; page faults and the system's other work stay below


@dataclass(frozen=True, slots=True)
class StageMeans:
    """What a stage took for a micro-batch and a step, in the mean over its replicas.

    Attributes:
        forward_s, backward_s: Computing of one micro-batch, without :data:`TAKEN`.
        own_s: Of one micro-batch, what its ranks did beside computing without waiting for other ranks: :data:`DATA`,
            :data:`PULL`, :data:`RUNTIME`, :data:`TAKEN`.
        between_s: Of one step, what lay between it and the one before, by what it was, on the replica that took
            longest.
    """

    forward_s: float
    backward_s: float
    own_s: Mapping[str, float] = field(default_factory=dict)
    between_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeanStep:
    """What was measured of a step, in the mean over many.

    Attributes:
        pace_s: From step to step.
        stages: By index.
    """

    pace_s: float
    stages: Mapping[int, StageMeans]


def mean_step(starts: Mapping[int, RankStart], reports: Sequence[StepReport]) -> MeanStep | None:
    """Return the mean of the steps that had one before them.

    Args:
        starts: Of the ranks, by rank.
        reports: Of the steps.

    Returns:
        The means; None without such a step, and if a rank runs several stages or none.
    """
    followed = [report for report in reports if len(report.gaps_s) == len(report.ranks)]
    told: dict[int, list[tuple[RankStep, float]]] = {}
    for report in followed:
        for rank in report.ranks:
            told.setdefault(rank.rank, []).append((rank, report.gaps_s[rank.rank]))
    stages: dict[int, list[list[tuple[RankStep, float]]]] = {}
    for number, steps in told.items():
        if len(starts[number].stages) != 1 or not any(step.micro_batches for step, _ in steps):
            return None
        stages.setdefault(starts[number].stages[0], []).append(steps)
    if not followed:
        return None
    means = {stage: _stage_means(ranks, len(followed)) for stage, ranks in sorted(stages.items())}
    return MeanStep(sum(report.pace_s for report in followed) / len(followed), MappingProxyType(means))


def are_cores_taken(wall_s: float, cpu_s: float) -> bool:
    """Check if computing got clearly less CPU time than wall time; False if CPU time is not known (0)."""
    return 0 < cpu_s < (1 - _TAKEN_FROM) * wall_s


def _stage_means(ranks: Sequence[Sequence[tuple[RankStep, float]]], count: int) -> StageMeans:
    """Return the means of a stage over its ranks, each with its steps and the gaps before them."""
    steps = [step for of_rank in ranks for step, _ in of_rank]
    micro_batches = sum(step.micro_batches for step in steps)
    own_s = {what: sum(step.wait_s.get(what, 0.0) for step in steps) for what in (DATA, PULL)}
    own_s[RUNTIME] = sum(step.step_s - step.busy_s - sum(step.wait_s.values()) for step in steps)
    computed_s = sum(step.busy_s for step in steps)
    cpu_s = sum(sum(step.cpu_s.values()) if step.cpu_s else step.busy_s for step in steps)  # GPUs have no CPU time
    kept = cpu_s / computed_s if are_cores_taken(computed_s, cpu_s) else 1.0
    if kept < 1:
        own_s[TAKEN] = computed_s - cpu_s
    longest_s = max((_between_s(of_rank) for of_rank in ranks), key=lambda between_s: sum(between_s.values()))
    return StageMeans(
        kept * sum(sum(step.forward_s.values()) for step in steps) / micro_batches,
        kept * sum(sum(step.backward_s.values()) for step in steps) / micro_batches,
        {what: time_s / micro_batches for what, time_s in own_s.items()},
        {what: time_s / count for what, time_s in longest_s.items()},
    )


def _between_s(steps: Sequence[tuple[RankStep, float]]) -> dict[str, float]:
    """Add up the time of a rank between steps, by activity."""
    total_s: dict[str, float] = defaultdict(float)
    for step, gap_s in steps:
        for what, time_s in step.between_s.items():
            total_s[what] += time_s
        total_s[OTHER] += gap_s - sum(step.between_s.values())
    return total_s


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between the step that was measured and the one that was planned.

    Attributes:
        planned_s: From step to step.
        measured_s: As above.
        parts_s: By cause, in the order they were put in: ``"stage 1"``, :data:`DATA`, ``"optimizer"`` and so on. They
            and what is not explained add up to the difference.
    """

    planned_s: float
    measured_s: float
    parts_s: Mapping[str, float]

    @property
    def all_s(self) -> float:
        """Return the whole difference."""
        return self.measured_s - self.planned_s

    @property
    def unexplained_s(self) -> float:
        """Return what no part explains."""
        return self.all_s - sum(self.parts_s.values())


def plan_difference(plan: Plan, planned_s: float, mean: MeanStep) -> Difference | None:
    """Return why steps took another time than planned; None where the plan has no times, or stages told of nothing.

    Args:
        plan: That the run was as.
        planned_s: What it promises from step to step.
        mean: What was measured.
    """
    count = plan.schedule.micro_batches
    known = all(stage.micro_batch(count).forward_s > 0 for stage in plan.stages)
    if not known or planned_s <= 0 or set(mean.stages) != {stage.index for stage in plan.stages}:
        return None
    causes = [_stage(index) for index in sorted(mean.stages)]
    causes += dict.fromkeys(cause for stage in mean.stages.values() for cause in (*stage.own_s, *stage.between_s))
    if any(stage.rows is not None for stage in plan.stages):
        causes = list(dict.fromkeys([*causes, PULL]))
    before_s = _step_s(plan, mean, frozenset())
    alone_s = {cause: _step_s(plan, mean, frozenset({cause})) - before_s for cause in causes}
    parts_s = {DIVIDING: before_s - planned_s} if abs(before_s - planned_s) > 1e-9 * planned_s else {}
    put_in: set[str] = set()
    for cause in sorted(causes, key=lambda cause: -abs(alone_s[cause])):
        put_in.add(cause)
        step_s = _step_s(plan, mean, frozenset(put_in))
        parts_s[cause], before_s = step_s - before_s, step_s
    return Difference(planned_s, mean.pace_s, MappingProxyType(parts_s))


def difference_lines(plan: Plan, mean: MeanStep, difference: Difference, sharing: str = "") -> list[str]:
    """Return the difference in words: the whole, the largest cause with its numbers, the others, and what is left.

    Args:
        plan: The plan.
        mean: What was measured.
        difference: Between the two.
        sharing: What shares the machine's cores, in words; "" for nothing.
    """
    measured, planned = format_seconds(difference.measured_s), format_seconds(difference.planned_s)
    took = f"a step took {measured} in the mean, planned {planned}"
    also = f"; {sharing}" if sharing else ""
    if abs(difference.all_s) <= _ALIKE * difference.planned_s:
        return [f"as planned: {took}"]
    ratio = difference.measured_s / difference.planned_s
    if ratio >= _FACTOR_FROM:
        head = f"{ratio:.1f} times the planned time"
    else:
        head = f"{100 * abs(ratio - 1):.0f} % {'slower' if ratio > 1 else 'faster'} than planned"
    parts_s = {**difference.parts_s, UNEXPLAINED: difference.unexplained_s}
    largest, *others = sorted(parts_s, key=lambda cause: -parts_s[cause] * difference.all_s)
    parts = [(_NAMES.get(cause, cause), parts_s[cause]) for cause in others]
    told = [(name, time_s) for name, time_s in parts if abs(time_s) >= _TOLD * abs(difference.all_s)]
    small_s = sum(time_s for _, time_s in parts) - sum(time_s for _, time_s in told)
    told += [("the rest", small_s)] if abs(small_s) >= _TOLD * abs(difference.all_s) / len(parts) else []
    parts_told = "".join(f"; {name} {_signed(time_s)}" for name, time_s in told)
    first = f"{_words(plan, mean, largest)} ({_signed(parts_s[largest])} of {_signed(difference.all_s)})"
    return [f"{head} ({took}): {first}{parts_told}{also}"]


_NAMES: Mapping[str, str] = MappingProxyType({
    DATA: "waiting for data",
    PULL: "waiting for rows of served tables",
    RUNTIME: "what lies between actions",
    TAKEN: "cores taken by other processes",
    DIVIDING: "dividing the batch into micro-batches",
    UNEXPLAINED: "not explained (messages, sums of gradients)",
    OPTIMIZER: "the optimizer",
    "validation": "validations",
    "checkpoint": "checkpoints",
    "hooks": "hooks of the training file",
    "outputs": "writing outputs",
    OTHER: "what else lies between steps",
})  # fmt: skip


def _words(plan: Plan, mean: MeanStep, cause: str) -> str:
    """Return a cause with the numbers that were measured of it."""
    for stage in plan.stages:
        if cause == _stage(stage.index):
            found = mean.stages[stage.index]
            measured_s = found.forward_s + found.backward_s
            factor = backward_factor(plan.schedule.name, stage.index)
            planned_s = stage.micro_batch(plan.schedule.micro_batches).worked_s(factor)
            return f"{cause} computed {format_seconds(measured_s)} a micro-batch, planned {format_seconds(planned_s)}"
    if cause == UNEXPLAINED:
        return "no rank's own work explains it, so it is messages, sums of gradients and what is not measured"
    longest = max(mean.stages, key=lambda index: _of(mean.stages[index], cause))
    time_s = _of(mean.stages[longest], cause)
    if cause == DIVIDING:
        count = counted(plan.schedule.micro_batches, "micro-batch")
        return f"a step has {count}, and the plan's steady state is of whole batches"
    if cause in (DATA, PULL):
        what = "data" if cause == DATA else "rows of served tables"
        planned, rows = "", plan.stages[longest].rows
        if cause == PULL and rows is not None:
            around_s = plan.stages[longest].pull_s(plan.schedule.micro_batches) + rows.push_s
            planned = f", planned {format_seconds(around_s)} a step"
        return f"stage {longest} waited {format_seconds(time_s)} a micro-batch for {what}{planned}"
    if cause == TAKEN:
        found = mean.stages[longest]
        cpu_s = found.forward_s + found.backward_s
        wall, cpu = format_seconds(cpu_s + time_s), format_seconds(cpu_s)
        return f"stage {longest} computed {wall} wall, {cpu} of CPU a micro-batch: the cores were taken"
    if cause == RUNTIME:
        return f"stage {longest} spent {format_seconds(time_s)} a micro-batch between its actions"
    return f"{_NAMES.get(cause, cause)} took {format_seconds(time_s)} between two steps"


def _of(stage: StageMeans, cause: str) -> float:
    return stage.own_s.get(cause, stage.between_s.get(cause, 0.0))


def _stage(index: int) -> str:
    return f"stage {index}"


def _step_s(plan: Plan, mean: MeanStep, put_in: frozenset[str]) -> float:
    """Return the time from step to step with some causes as they were measured, and all else as it was planned."""
    count, training = plan.schedule.micro_batches, plan.request.mode == "training"
    loads, between_s = [], []
    for stage in plan.stages:
        found = mean.stages[stage.index]
        planned = stage.micro_batch(count)
        computed = found if _stage(stage.index) in put_in else planned
        forward_s = computed.forward_s + sum(time_s for cause, time_s in found.own_s.items() if cause in put_in)
        # what was measured is of both parts of a backward, what is planned of one in one
        factor = backward_factor(plan.schedule.name, stage.index) if computed is found else 1.0
        micro_batch = replace(planned, forward_s=forward_s, backward_s=computed.backward_s / factor)
        rows = None if PULL in put_in else stage.rows
        own_s = stage.handling_s + (0.0 if OPTIMIZER in put_in else stage.update_s)
        types = _types(stage, micro_batch)
        loads.append(
            StageLoad(stage.replicas, (micro_batch,), sync_s=stage.all_reduce_s, own_s=own_s, types=types, rows=rows)
        )
        between_s.append(sum(time_s for cause, time_s in found.between_s.items() if cause in put_in))
    if training:
        return simulate_step(plan.schedule.name, loads, count, training=True).makespan_s + between_s[0]
    return max(_busy_s(load, count) + between for load, between in zip(loads, between_s, strict=True))


def _types(stage: PlannedStage, mean: MicroBatch) -> tuple[StageLoad, ...]:
    """Return the replicas by device type where a stage has several, as much slower as their mean is than planned."""
    planned = stage.micro_batch(mean.count)
    pairs = ((mean.forward_s, planned.forward_s), (mean.backward_s, planned.backward_s))
    forward, backward = (now / then if then else 1.0 for now, then in pairs)
    types = [(of.replicas, of.micro_batch(mean.count)) for of in stage.mixed]
    return tuple(
        StageLoad(replicas, (MicroBatch(each.count, each.forward_s * forward, each.backward_s * backward),))
        for replicas, each in types
    )


def _busy_s(load: StageLoad, count: int) -> float:
    """Return how long a step keeps the busiest replica of a stage in inference, or each where all are alike."""
    if load.types:
        return load.dealt(count, training=False).busiest_s
    return load.known[0].forward_s * count / load.replicas


def _signed(time_s: float) -> str:
    return f"{'-' if time_s < 0 else '+'}{format_seconds(abs(time_s))}"
