"""Which rank does what: pipeline positions, their replicas, and what every one of them runs in a step.

Ranks are numbered position by position, replica by replica. Stages of 2, 1 and 3 replicas under GPipe or 1F1B, which
put one stage at a position::

    position | 0     | 1 | 2
    stage    | 0     | 1 | 2
    ranks    | 0 1   | 2 | 3 4 5

Interleaved 1F1B puts two stages at a position, so that four stages of 2, 1, 2 and 1 replicas take three ranks::

    position | 0     | 1
    stages   | 0, 2  | 1, 3
    ranks    | 0 1   | 2

Left out: devices and hosts (``launch/``), how fast a replica is, what is sent (``routes.py``).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from heterps_compile.backends.find import splits_backward
from heterps_compile.errors import RunError, UnknownNameError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.schedule.interleaved import CHUNKS
from heterps_compile.schedule.mixed_stage import BY_SPEED, share_out
from heterps_compile.schedule.names import orders
from heterps_compile.schedule.order import Action, Phase
from heterps_compile.units import counted

CHUNKS_OF = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": CHUNKS, "zero-bubble": 1}
"""The schedules that run, and the stages each puts at a position."""

_SHOWN = 8
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions, replicas and micro-batches of one run.

    Attributes:
        schedule: A key of :data:`CHUNKS_OF`.
        training: Whether there are backwards.
        widths: Replicas of every position.
        chunks: Stages at a position; chunk c of position p is stage c * positions + p.
        micro_batches: In one step.
        batch: Samples in one step.
        assignment: For every position, the replica of each micro-batch.
    """

    schedule: str
    training: bool
    widths: tuple[int, ...]
    chunks: int
    micro_batches: int
    batch: int
    assignment: tuple[tuple[int, ...], ...]

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return sum(self.widths)

    @property
    def stage_count(self) -> int:
        """Return the number of stages."""
        return len(self.widths) * self.chunks

    @property
    def micro_batch_size(self) -> int:
        """Return the samples in a micro-batch."""
        return self.batch // self.micro_batches

    def position_of(self, rank: int) -> int:
        """Return the position of a rank."""
        return bisect_right(list(accumulate(self.widths)), rank)

    def replica_of(self, rank: int) -> int:
        """Return which replica of its position a rank is."""
        return rank - sum(self.widths[: self.position_of(rank)])

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages a rank runs, in order."""
        return tuple(range(self.position_of(rank), self.stage_count, len(self.widths)))

    def ranks_of(self, stage: int) -> tuple[int, ...]:
        """Return the ranks that run a stage, replica by replica."""
        position = stage % len(self.widths)
        first = sum(self.widths[:position])
        return tuple(range(first, first + self.widths[position]))

    def owner(self, stage: int, micro_batch: int) -> int:
        """Return the rank that runs a micro-batch of a stage."""
        return self.ranks_of(stage)[self.assignment[stage % len(self.widths)][micro_batch]]

    def describe(self, rank: int) -> str:
        """Return a rank in words: the stages it runs, which replica of them it is."""
        stages = self.stages_of(rank)
        names = f"stage {stages[0]}" if len(stages) == 1 else f"stages {' and '.join(map(str, stages))}"
        return f"{names}, replica {self.replica_of(rank)} (rank {rank})"

    def stage_of(self, action: Action) -> int:
        """Return the stage that an action runs."""
        return action.chunk * len(self.widths) + action.stage

    def actions(self, rank: int) -> tuple[Action, ...]:
        """Return what a rank does in a step, in order; ``Action.stage`` is the position."""
        position, replica = self.position_of(rank), self.replica_of(rank)
        order = orders(self.schedule, self.widths, self.micro_batches, training=self.training)[position]
        return tuple(action for action in order if self.assignment[position][action.micro_batch] == replica)


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step is; None stands for what the plan says.

    Attributes:
        schedule: Its name.
        micro_batches: In one step.
        batch: Samples in one step.
    """

    schedule: str | None = None
    micro_batches: int | None = None
    batch: int | None = None


AS_PLANNED = StepShape()


def make_layout(
    plan: Plan,
    *,
    training: bool,
    replicas: Sequence[int] | None = None,
    step: StepShape = AS_PLANNED,
    speeds: Sequence[Sequence[float]] | None = None,
) -> Layout:
    """Lay a plan out over ranks.

    In inference a plan with fewer micro-batches than replicas runs so many of its batches in one step that every
    replica has one, unless ``step`` says how many or of what batch: no result depends on it.

    Args:
        plan: The plan.
        training: Whether there are backwards.
        replicas: Of every stage, or of every position where the schedule puts two stages at one; None for the plan's.
        step: Schedule, micro-batches and batch of a step.
        speeds: Of every replica of every stage (or position), in any unit; None for those of the plan, where replicas
            of one device type take turns.

    Raises:
        UnknownNameError: for a schedule that nobody knows.
        RunError: for what does not fit, with the numbers and a way out.
    """
    name = plan.schedule.name if step.schedule is None else step.schedule
    chunks = _chunks(name, len(plan.stages))
    counts = [stage.replicas for stage in plan.stages] if replicas is None else list(replicas)
    widths = _fold(counts, len(plan.stages), chunks, "replica counts")
    for position, width in enumerate(widths):
        if width < 1:
            raise RunError(f"stage {position} has {width} replicas; give each stage at least one (--replicas)")
    count, samples = _divide(plan, widths, step, training=training)
    if speeds is None:
        speeds = _planned_speeds(plan, widths, chunks)
    dealt = _fold([tuple(of_stage) for of_stage in speeds], len(plan.stages), chunks, "lists of speeds")
    assignment = tuple(_deal(count, own, width, p) for p, (own, width) in enumerate(zip(dealt, widths, strict=True)))
    if training:
        _refuse_idle(plan, assignment, widths, samples)
    layout = Layout(name, training, widths, chunks, count, samples, assignment)
    if any(action.phase is Phase.WEIGHT for rank in range(layout.world_size) for action in layout.actions(rank)):
        _refuse_unsplit(plan, name)
    _refuse_circles(layout)
    return layout


def _chunks(name: str, stages: int) -> int:
    if name not in CHUNKS_OF:
        raise UnknownNameError("schedule", name, CHUNKS_OF)
    chunks = CHUNKS_OF[name]
    if stages % chunks:
        raise RunError(
            f"the schedule {name!r} puts {chunks} stages at every position of the pipeline, and the plan has {stages}; "
            f"take --schedule 1f1b, or compile to an even number (--min-stages {stages + 1} --max-stages {stages + 1})"
        )
    return chunks


def _fold(given: Sequence[_T], stages: int, chunks: int, what: str) -> tuple[_T, ...]:
    """Return what is given for every stage for every position: stages at one position must have the same."""
    positions = stages // chunks
    if len(given) == positions:
        return tuple(given)
    if len(given) != stages:
        either = f"{stages}" if chunks == 1 else f"{positions} (one a position) or {stages} (one a stage)"
        raise RunError(f"{len(given)} {what} are given, {list(given)}; the pipeline takes {either}")
    for stage in range(positions, stages):
        first = stage % positions
        if given[stage] != given[first]:
            raise RunError(
                f"stages {first} and {stage} share position {first} of the pipeline and must have the same {what}; "
                f"they have {given[first]} and {given[stage]}: give one for every position (--replicas), or take "
                f"--schedule 1f1b"
            )
    return tuple(given[:positions])


def _divide(plan: Plan, widths: Sequence[int], step: StepShape, *, training: bool) -> tuple[int, int]:
    """Return the micro-batches and the samples of a step."""
    count = plan.schedule.micro_batches if step.micro_batches is None else step.micro_batches
    samples = plan.batch if step.batch is None else step.batch
    if count < 1 or samples < 1:
        raise RunError(f"a step of {samples} samples in {count} micro-batches is none; both are at least 1")
    if not training and step.micro_batches is None and step.batch is None:
        times = -(-max(widths) // count)
        count, samples = count * times, samples * times
    if samples % count:
        fitting = [n for n in range(1, samples + 1) if samples % n == 0]
        near = sorted(sorted(fitting, key=lambda n: abs(n - count))[:_SHOWN])
        raise RunError(
            f"a batch of {samples} samples does not divide into {count} micro-batches; take --micro-batches "
            f"{', '.join(map(str, near))}, or --batch {samples - samples % count or count}"
        )
    if not plan.bindings and samples // count != plan.batch:
        raise RunError(
            f"the model was compiled for {plan.batch} samples at a time, and {count} micro-batches of a batch of "
            f"{samples} have {samples // count}; take --batch {plan.batch * count}, or compile it with a batch "
            f"dimension that is free"
        )
    return count, samples


def _planned_speeds(plan: Plan, widths: Sequence[int], chunks: int) -> list[tuple[float, ...]]:
    """Return the speeds of every stage's replicas as planned: all alike, but in a stage of several device types.

    Raises:
        RunError: where such a stage has other replicas than planned, or its micro-batches' times are not known.
    """
    speeds = []
    for stage in plan.stages:
        width, count = widths[stage.index % len(widths)], plan.schedule.micro_batches
        times_s = [each.micro_batch(count).whole_s for each in stage.of_replicas]
        if stage.mixed and (chunks > 1 or width != stage.replicas or min(times_s) <= 0):
            alone = "" if chunks == 1 else " in a position of its own (--schedule 1f1b)"
            raise RunError(
                f"stage {stage.index} is planned for {printable(stage.hardware)}{alone}, fed by their speed, and has "
                f"{counted(width, 'replica')} here; leave --replicas out, or say how fast each is (--speeds)"
            )
        speeds.append(tuple(1 / time_s for time_s in times_s) or (1.0,) * width)
    return speeds


def _deal(count: int, speeds: Sequence[float], width: int, position: int) -> tuple[int, ...]:
    if len(speeds) != width:
        raise RunError(f"stage {position} has {width} replicas, and {len(speeds)} speeds are given: {list(speeds)}")
    if not all(0 < speed < float("inf") for speed in speeds):
        raise RunError(f"the speeds of stage {position} are {list(speeds)}; each must be a positive number")
    return deal_micro_batches(count, speeds)


def _refuse_circles(layout: Layout) -> None:
    waiting = waiting_at_the_end(layout)
    if waiting:
        shown = ", ".join(f"rank {rank} at {action}" for rank, action in waiting.items())
        raise RunError(
            f"the schedule {layout.schedule!r} does not come to an end with replicas {list(layout.widths)} and "
            f"{layout.micro_batches} micro-batches: {shown} wait for each other; take --schedule 1f1b, or "
            f"other --micro-batches"
        )


def _refuse_unsplit(plan: Plan, name: str) -> None:
    """Refuse stages whose gradients of weights are not computed after those of their inputs."""
    for stage in plan.stages[1:]:  # the first one's backward stays in one
        why = ""
        if not splits_backward(stage.backend):
            why = f"runs on the backend {stage.backend!r}"
        elif stage.recompute:
            why = "computes its activations again"
        if why:
            raise RunError(
                f"the schedule {name!r} computes the gradients of a stage's inputs before those of its weights, and "
                f"stage {stage.index} {why}, which would compute both twice; take --schedule 1f1b"
            )


def _refuse_idle(plan: Plan, assignment: Sequence[Sequence[int]], widths: Sequence[int], batch: int) -> None:
    """Refuse a replica that would have nothing to learn from: it is paid for, and has no running statistics."""
    for position, (dealt, width) in enumerate(zip(assignment, widths, strict=True)):
        idle = sorted(set(range(width)) - set(dealt))
        if idle:
            more = next((n for n in range(max(width, len(dealt) + 1), batch + 1) if batch % n == 0), None)
            instead = f"a larger --batch than {batch}" if more is None else f"--micro-batches {more}"
            if not plan.bindings:  # the size of a micro-batch is fixed
                most = max(widths)
                instead = f"--batch {most * plan.batch} --micro-batches {most}"
            raise RunError(
                f"stage {position} has {width} replicas, and a step has {counted(len(dealt), 'micro-batch')}: replica "
                f"{idle[0]} would have none; take {instead}, or fewer --replicas"
            )


def deal_micro_batches(count: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return the replica that runs each micro-batch, by the rule that plans are simulated with.

    Replicas of one speed take turns. Else a micro-batch goes to the replica that would be done first, the last ones to
    those that have none yet. Seven micro-batches::

        speeds 1, 1     | 0 1 0 1 0 1 0
        speeds 2, 1     | 0 0 1 0 0 1 0     done after 5 halves and 2
        speeds 3, 2, 2  | 0 1 2 0 0 1 2     after 3 thirds, 2 halves and 2 halves
        speeds 1, 3     | 1 1 0 1 1 1 0     after 2 and 5 thirds

    Args:
        count: Micro-batches in one step.
        speeds: Of every replica, in any unit; positive.
    """
    return share_out([1 / speed for speed in speeds], count, BY_SPEED)


def waiting_at_the_end(layout: Layout) -> dict[int, str]:
    """Return the ranks that never get further, and the action each waits to run, as in ``F3``; empty if all is well.

    Every rank's order is run against the others', an action as soon as what it needs is done: a forward the forward of
    the stage before, a backward its own forward and the backward of the stage after, gradients of weights their
    backward. The orders of a schedule end, and dealing keeps that; a cycle is found here all the same, before it is a
    run that hangs. Values that skip stages come no later than those that do not, so they are left out.
    """
    orders = {rank: layout.actions(rank) for rank in range(layout.world_size)}
    reached = dict.fromkeys(orders, 0)
    done: set[tuple[int, int, Phase]] = set()
    last = layout.stage_count - 1
    moved = True
    while moved:
        moved = False
        for rank, order in orders.items():
            while reached[rank] < len(order):
                action = order[reached[rank]]
                stage, i = layout.stage_of(action), action.micro_batch
                if action.phase is Phase.WEIGHT:
                    needed = [(stage, i, Phase.BACKWARD)]
                elif action.phase is Phase.FORWARD:
                    needed = [(stage - 1, i, Phase.FORWARD)] if stage > 0 else []
                else:
                    needed = [(stage, i, Phase.FORWARD), *([(stage + 1, i, Phase.BACKWARD)] if stage < last else [])]
                if not done.issuperset(needed):
                    break
                done.add((stage, i, action.phase))
                reached[rank] += 1
                moved = True
    return {rank: str(order[reached[rank]]) for rank, order in orders.items() if reached[rank] < len(order)}
