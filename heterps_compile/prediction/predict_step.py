"""What a step of a given plan takes, and its parts, from the times of its layers.

A step is one batch alone: its schedule is simulated with every replica's own times and the ways between stages; behind
its last backward a stage adds up its gradients, then its units update their weights::

    stage 0, gpu      | F0 F1 B0 F2 B1 .  B2 ====== uu     === all-reduce of the stage's two replicas
    stage 0, slow gpu | F3 -- .  .  B3 -- .  ====== uu     uu  update
    stage 1           | .  F0 B0 F1 ...       uu

A stage whose tables the plan puts on servers pulls rows before its first forward, and pushes their gradients behind its
last backward, before its all-reduce; the rows of its other micro-batches move beside computation, which takes as long
as they do at least (``cost/served_rows.py``).

The parts add up to the step, each is what it lengthens the step by, in this order: the busiest replica's work, fill and
drain, transfers, pulls and pushes, all-reduce, update, overhead.

Of k replicas of a stage each adds ``(k - 1) (1 - alpha)`` of a micro-batch's part of the batch to what a layer takes
alone, so that together they do a batch in ``C (1 - alpha) + C alpha / k``, as in the search (``cost/stage_law.py``).

Of a problem whose batches are of one replica each (``batch_of: "replica"``) there is no step: batches follow one
another without a flush, and what is predicted is the time from one to the next, the longest of what stages take over
their replicas, their all-reduce, and every link (the paper of PipeDream, SOSP 2019, section 3.1; its program
divides the all-reduce by k once more and adds it to the layers)::

    batch_s = max over stages and links of ( sum of layers / k,  2 (k - 1) S / bandwidth / k,  bytes / bandwidth )

There every transfer has a link to itself. Where the parts of a stage add up (Piper, ``summed_every``)::

    batch_s = max over stages of ( layers + crossing bytes / bandwidth + 4 (k - 1) S / bandwidth / summed_every ) / k

A stage that names another rule than an all-reduce waits for what that exposes, and holds what it holds besides.

A link carries one message at a time (``schedule/wires.py``), and a stage has not ended before the network card of its
unit has carried all that it receives and sends, as in the steady state.

Not covered: links that transfers of several stages share, an all-reduce that begins before the last backward, memory
that a framework needs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from heterps_compile.cost.roofline import TRAINING_FACTOR
from heterps_compile.cost.stage_law import Alone, divided
from heterps_compile.cost.stage_law import micro_batch as micro_batch_law
from heterps_compile.errors import InputError
from heterps_compile.plan.idle_units import sampleless_notes
from heterps_compile.plan.plan_notes import NO_ROOM, NO_ROOM_FOR_TABLES
from heterps_compile.problem_file.extrapolated import all_reduce_notes, layer_notes
from heterps_compile.problem_file.given_plan import GivenPlan, GivenReplicas, GivenStage, faults, stage_of_layers
from heterps_compile.problem_file.given_problem import REPLICA, GivenProblem, GivenTimes
from heterps_compile.problem_file.given_rules import (
    agree_s,
    group_of,
    held_for_rule_bytes,
    refused_group,
    refused_rules,
)
from heterps_compile.problem_file.message_times import (
    crossing_s,
    in_one_machine,
    moved_s,
    transfer_s,
    untimed_pairs,
)
from heterps_compile.problem_file.problem_laws import shown
from heterps_compile.problem_file.served_by_plan import held_by_a_server_bytes, rows_of_stage, served_part
from heterps_compile.schedule.mixed_stage import EQUAL, MixedStage, mixed_stage
from heterps_compile.schedule.names import orders
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE, rate
from heterps_compile.schedule.simulate import ALL_REDUCE, ServersTraffic, simulate_mixed
from heterps_compile.schedule.wires import link_bytes
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import USUAL
from heterps_compile.units import counted, format_bytes, in_words


@dataclass(frozen=True, slots=True)
class Parts:
    """What a step is made of; they add up to it."""

    busiest_s: float
    fill_s: float
    transfers_s: float
    all_reduce_s: float
    update_s: float
    overhead_s: float
    rows_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Return the sum."""
        before_s = self.busiest_s + self.fill_s + self.transfers_s + self.rows_s
        return before_s + self.all_reduce_s + self.update_s + self.overhead_s


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """A stage.

    Attributes:
        stage: As the plan has it.
        busy_s: Work of its busiest replica.
        forward_s, backward_s: One micro-batch on its slowest replica.
        all_reduce_s, update_s: Behind its last backward; the first is what its rule is waited for, whichever it is.
        transfer_s: One micro-batch to the next stage; 0 of the last.
        held_bytes: By replicas of every kind, the most that one unit holds at once.
        memory_bytes: By replicas of every kind, what one unit has.
        pull_s: Before its first forward, of rows on servers.
        push_s: Behind its last backward, of their gradients.
    """

    stage: GivenStage
    busy_s: float
    forward_s: float
    backward_s: float
    all_reduce_s: float
    update_s: float
    transfer_s: float
    held_bytes: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    pull_s: float = 0.0
    push_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServersPrediction:
    """The servers of a plan's tables.

    Attributes:
        count: How many.
        tables: That they hold together.
        held_bytes: By each.
        memory_bytes: That each has.
    """

    count: int
    tables: int
    held_bytes: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step of a plan.

    Attributes:
        reading: ``"one batch alone"``, or ``"steady state"`` of batches of one replica.
        parts: Of the step, or of the time from a batch to the next.
        batch: Samples.
        micro_batches: In a step.
        bubble: Share of the replicas' time in which they wait, from the first action to the last.
        stages: In the order of the pipeline.
        notes: What the reader should know of the numbers.
        servers: Of tables; None where stages hold all.
    """

    reading: str
    parts: Parts
    batch: int
    micro_batches: int
    bubble: float
    stages: tuple[StagePrediction, ...]
    notes: tuple[str, ...]
    servers: ServersPrediction | None = None

    @property
    def step_s(self) -> float:
        """Return the time of the step, or from a batch to the next."""
        return self.parts.step_s

    @property
    def fits(self) -> bool:
        """Return whether every unit, and every server, has room for what it holds."""
        if self.servers is not None and self.servers.held_bytes > self.servers.memory_bytes:
            return False
        return all(
            held <= there
            for stage in self.stages
            for held, there in zip(stage.held_bytes, stage.memory_bytes, strict=True)
        )

    @property
    def samples_per_s(self) -> float:
        """Return samples of a batch over that time."""
        return rate(self.batch, self.step_s)


def predict_step(problem: GivenProblem, plan: GivenPlan) -> Prediction:
    """Return what a step of a plan takes; O(micro-batches * stages * replicas).

    Raises:
        InputError: where the plan is none of the problem, or the problem names no pool.
    """
    for fault in (*faults(problem, plan), *refused_rules(problem, plan.stages)):
        raise InputError(f"the plan: {fault}")
    work = [_StageWork(problem, plan, stage) for stage in plan.stages]
    for number, each in enumerate(work):
        refusal = refused_group(number, each.stage, each.group)
        if refusal:
            raise InputError(f"the plan: {refusal}")
    ways_s = _ways_s(problem, plan)
    if problem.batch_of == REPLICA:
        return _batches_of_replicas(problem, plan, work, ways_s)
    mixed = [each.mixed(plan.micro_batches) for each in work]
    order = orders(plan.schedule, [stage.width for stage in plan.stages], plan.micro_batches, training=problem.training)
    busiest_s, taken = max(each.busiest_s for each in mixed), dict[str, Any]()
    sync_s, own_s = [each.all_reduce_s for each in work], [each.update_s for each in work]
    timelines = [simulate_mixed(order, mixed)]
    for more in (
        {"transfer_s": ways_s, "moved_s": moved_s(problem, plan)} if any(ways_s) else {},
        {"servers": [each.traffic for each in work]} if plan.served else {},
        {"sync_s": sync_s, "own_s": own_s} if any((*sync_s, *own_s)) else {},
    ):
        taken |= more
        timelines.append(simulate_mixed(order, mixed, **taken) if more else timelines[-1])
    *_, timeline, whole = timelines
    summed_s = max((each.end_s for each in whole.around if each.kind == ALL_REDUCE), default=0.0)
    lasts_s = [busiest_s, *(each.makespan_s for each in timelines)]
    lasts_s.insert(-1, max(timeline.makespan_s, summed_s))
    fill_s, transfers_s, rows_s, all_reduce_s, update_s = (_more_s(*pair[::-1]) for pair in pairwise(lasts_s))
    parts = Parts(busiest_s, fill_s, transfers_s, all_reduce_s, update_s, problem.step_overhead_s, rows_s)
    stages = tuple(
        each.predicted(way_s, times.busiest_s, peak / timeline.chunks)
        for each, way_s, times, peak in zip(work, [*ways_s, 0.0], mixed, timeline.peak_in_flight, strict=True)
    )
    servers = _servers(problem, plan)
    fed = sampleless_notes([stage.width for stage in plan.stages], plan.batch, plan.micro_batches)
    notes = (
        *_memory_notes(stages), *_server_notes(servers), *_rule_notes(problem, plan),
        *_untimed_notes(problem, work, ways_s), *(fed if problem.training else ()),
    )  # fmt: skip
    return Prediction(ONE_BATCH_ALONE, parts, plan.batch, plan.micro_batches, timeline.bubble, stages, notes, servers)


def _more_s(longer_s: float, shorter_s: float) -> float:
    """Return by how much one time is longer than another; 0 where they differ by rounding."""
    return 0.0 if math.isclose(longer_s, shorter_s, rel_tol=1e-12) else longer_s - shorter_s


class _StageWork:
    """What a stage's replicas do with a micro-batch, one entry for each replica."""

    def __init__(self, problem: GivenProblem, plan: GivenPlan, stage: GivenStage) -> None:
        self.problem, self.stage, self.micro_batch = problem, stage, plan.micro_batch
        rows, count = rows_of_stage(problem, plan, stage), plan.micro_batches
        self.traffic = ServersTraffic()
        if rows is not None:
            self.traffic = ServersTraffic(rows.pull_s(stage.width, count), rows.push_s)
        ahead_s = 0.0 if rows is None else rows.ahead_s(stage.width, count)
        kinds = [_KindWork(problem, plan, stage, each, ahead_s) for each in stage.replicas]
        self.kinds = kinds
        each_replica = [kind for kind in kinds for _ in range(kind.replicas.count)]
        self.forward_s = [kind.forward_s for kind in each_replica]
        self.backward_s = [kind.backward_s for kind in each_replica]
        self.update_s = max(kind.update_s for kind in kinds)
        self.summed_bytes = [kind.parameter_bytes for kind in kinds]
        self.group = group_of(problem, plan, stage, self.summed_bytes)
        self.all_reduce_s = agree_s(problem, stage, self.group, self.summed_bytes) if problem.training else 0.0

    def mixed(self, micro_batches: int) -> MixedStage:
        """Return the replicas with the micro-batches that each takes."""
        return mixed_stage(self.forward_s, self.backward_s, micro_batches, self.stage.feed)

    def predicted(self, way_s: float, busy_s: float, held: float) -> StagePrediction:
        """Return the stage, of which a replica holds so many micro-batches at once."""
        pool = self.problem.known_pool
        rule_bytes = held_for_rule_bytes(self.stage, self.group) if self.problem.training else 0
        return StagePrediction(
            stage=self.stage,
            busy_s=busy_s,
            forward_s=max(self.forward_s),
            backward_s=max(self.backward_s),
            all_reduce_s=self.all_reduce_s,
            update_s=self.update_s,
            transfer_s=way_s,
            held_bytes=tuple(kind.held_bytes(held) + rule_bytes for kind in self.kinds),
            memory_bytes=tuple(pool.device_type(kind.replicas.device).memory_bytes for kind in self.kinds),
            pull_s=self.traffic.pull_s,
            push_s=self.traffic.push_s,
        )


class _KindWork:
    """One replica of a kind: its times and bytes are the sums of its layers'.

    A micro-batch takes as long as rows move beside it at least; the optimiser updates what does not lie on servers.
    """

    def __init__(
        self, problem: GivenProblem, plan: GivenPlan, stage: GivenStage, replicas: GivenReplicas, ahead_s: float
    ) -> None:
        self.problem, self.replicas, self.micro_batch = problem, replicas, plan.micro_batch
        micro_batch = plan.micro_batch
        times = [problem.layers[i].by_group[replicas.device, replicas.tensor_parallel] for i in stage.layers]
        forward_s = sum(each.forward_time_s(micro_batch) for each in times)
        backward_s = sum(each.backward_time_s(micro_batch) for each in times)
        wholes_s = [each.forward_time_s(plan.batch) + each.backward_time_s(plan.batch) for each in times]
        serial_s = sum(self._serial(each) * whole_s for each, whole_s in zip(times, wholes_s, strict=True))
        compute_s = divided(serial_s, sum(wholes_s) - serial_s, stage.width)
        usual = 1 / TRAINING_FACTOR if problem.training else 1.0
        alone = Alone(forward_s, backward_s, backward_s, sum(wholes_s), 0.0, ahead_s, usual)
        passes = micro_batch_law(alone, compute_s, 0.0, stage.width, plan.micro_batches)
        self.forward_s, self.backward_s = float(passes.forward_s), float(passes.backward_s)
        parts = zip(times, stage.layers, strict=True)
        held = [1 - served_part(problem, plan, layer, each) for each, layer in parts]
        self.update_s = sum(part * each.update_s for part, each in zip(held, times, strict=True))
        self.parameter_bytes = sum(part * each.parameter_bytes for part, each in zip(held, times, strict=True))
        self.fixed_bytes = sum(
            part * each.held_bytes(problem.held_per_parameter) for part, each in zip(held, times, strict=True)
        )
        kept = [each.activation_bytes_per_sample for each in times]
        self.sample_bytes = sum(kept) if problem.training else max(kept)

    def _serial(self, times: GivenTimes) -> float:
        """Return the part of a layer's passes that replicas do not divide."""
        if self.problem.batch_of == REPLICA:
            return 0.0
        return 1 - times.parallel(self.problem.known_pool.device_type(times.device).compute_parallel)

    def held_bytes(self, micro_batches: float) -> float:
        """Return what a unit holds with so many micro-batches under way."""
        kept = self.sample_bytes * self.micro_batch * micro_batches
        return self.fixed_bytes + kept


def _ways_s(problem: GivenProblem, plan: GivenPlan) -> list[float]:
    """Return the ways [S - 1] of one micro-batch from every stage to the next; a value passes through those between."""
    stage_of = stage_of_layers(problem, plan.stages)
    values = (
        (
            stage_of[problem.position[edge.producer]],
            max(stage_of[problem.position[reader]] for reader in edge.readers),
            edge.bytes_per_sample * plan.micro_batch,
        )
        for edge in problem.edges
    )
    sizes_bytes = link_bytes(values, len(plan.stages))
    inside: list[bool] | list[None] = [None] * len(plan.stages)
    if problem.batch_of != REPLICA:
        inside = in_one_machine(problem, [stage.replicas for stage in plan.stages])
    return [
        transfer_s(problem, stage.replicas, following.replicas, size_bytes, in_one_machine=is_inside)
        for (stage, following), size_bytes, is_inside in zip(pairwise(plan.stages), sizes_bytes, inside, strict=False)
    ]


def _batches_of_replicas(
    problem: GivenProblem, plan: GivenPlan, work: Sequence[_StageWork], ways_s: Sequence[float]
) -> Prediction:
    """Return the time from a batch to the next where each is of one replica, as the module has it."""
    if plan.micro_batches > 1:
        raise InputError(
            f"the plan: it divides a batch in {plan.micro_batches} micro-batches, and the problem's batches are of one "
            f"replica each, which takes them whole; leave micro_batch out"
        )
    # replicas that differ share batches in proportion to their speed where the stage is fed so
    shares_s = [_shared_s(each) for each in work]
    busiest_s = max(shares_s)
    sums_s = [each.all_reduce_s for each in work]
    if problem.summed_every is None:
        carried_s = max(busiest_s, *sums_s)
        parts_s = max(carried_s, problem.directions * max(ways_s, default=0.0)) - carried_s, carried_s - busiest_s
    else:
        moved_s = [sum(each) for each in zip(shares_s, crossing_s(problem, plan), strict=True)]
        summed_s = max(sum(each) for each in zip(moved_s, sums_s, strict=True))
        parts_s = max(moved_s) - busiest_s, summed_s - max(moved_s)
    parts = Parts(busiest_s, 0.0, *parts_s, 0.0, problem.step_overhead_s)
    widths = [stage.width for stage in plan.stages]
    stages = tuple(
        each.predicted(way_s, share_s, -(-sum(widths[number:]) // widths[number]))
        for number, (each, way_s, share_s) in enumerate(zip(work, [*ways_s, 0.0], shares_s, strict=True))
    )
    worked_s = sum(share_s * width for share_s, width in zip(shares_s, widths, strict=True))
    bubble = 1 - worked_s / (sum(widths) * parts.step_s) if parts.step_s > 0 else 0.0
    notes = (
        "every replica works on batches of its own, which follow one another without a flush",
        *_undivided_notes(problem, plan),
        *_memory_notes(stages),
        *_untimed_notes(problem, work, ways_s),
    )
    return Prediction(STEADY_STATE, parts, plan.batch, 1, max(0.0, bubble), stages, notes)


def _shared_s(work: _StageWork) -> float:
    """Return the time from a batch to the next of a stage whose replicas take batches by turns, or by speed."""
    times_s = [sum(each) for each in zip(work.forward_s, work.backward_s, strict=True)]
    if work.stage.feed == EQUAL or min(times_s) <= 0:
        return max(times_s) / len(times_s)
    return 1 / sum(1 / time_s for time_s in times_s)


def _undivided_notes(problem: GivenProblem, plan: GivenPlan) -> Iterator[str]:
    """Yield which parallel fractions of the pool are not looked at."""
    pool = problem.known_pool
    for name in sorted({each.device for stage in plan.stages if stage.width > 1 for each in stage.replicas}):
        alpha = pool.device_type(name).compute_parallel
        if alpha < 1:
            yield (
                f"the compute_parallel of {shown(name)}, {alpha:g}, is not looked at: batches of one replica each are "
                f"not divided among replicas"
            )


def _servers(problem: GivenProblem, plan: GivenPlan) -> ServersPrediction | None:
    server = problem.known_pool.parameter_server
    if plan.served is None or server is None:
        return None
    held_bytes = held_by_a_server_bytes(problem, plan)
    return ServersPrediction(plan.served.servers, len(plan.served.tables), held_bytes, server.memory_bytes)


def _server_notes(servers: ServersPrediction | None) -> Iterator[str]:
    """Yield whether the servers have no room for their tables."""
    if servers is not None and servers.held_bytes > servers.memory_bytes:
        yield (
            f"each of {counted(servers.count, 'server')} holds {format_bytes(servers.held_bytes)} of tables and has "
            f"{format_bytes(servers.memory_bytes)}: {NO_ROOM_FOR_TABLES}"
        )


def _rule_notes(problem: GivenProblem, plan: GivenPlan) -> Iterator[str]:
    """Yield where timed all-reduces are not looked at, and rules that change nothing."""
    others = {number: rule_text(each.sync) for number, each in enumerate(plan.stages) if each.sync != USUAL}
    for number, text in others.items():
        if plan.stages[number].width < 2:
            yield f"stage {number} has one replica, which agrees with nobody: {text} changes nothing there"
    if others and problem.all_reduces:
        yield (
            f"all_reduces were timed of all-reduces: what {', '.join(dict.fromkeys(others.values()))} takes follows "
            f"from the pool's rates"
        )
    agreeing = dict.fromkeys(text for number, text in others.items() if plan.stages[number].width > 1)
    if agreeing:
        yield (
            f"what {', '.join(agreeing)} takes the processor of a replica is counted as far as update_s of the layers "
            f"has it: given costs have no rates for it, as a profile of a model has"
        )


def _untimed_notes(problem: GivenProblem, work: Sequence[_StageWork], ways_s: Sequence[float]) -> Iterator[str]:
    """Yield unmeasured times: of transfers where others are, of all-reduces, of layers at other sizes."""
    for number, ((sender, receiver), way_s) in enumerate(zip(pairwise(work), ways_s, strict=True)):
        pairs = untimed_pairs(problem, sender.stage.replicas, receiver.stage.replicas)
        if problem.transfers and pairs and way_s > 0:
            told = in_words([f"{shown(one)} and {shown(other)}" for one, other in pairs])
            yield (
                f"transfers has none between {told}: what they take from stage {number} to stage {number + 1} follows "
                f"from the pool's rates"
            )
    for number, each in enumerate(work):
        if each.stage.sync == USUAL and each.all_reduce_s > 0:
            yield from all_reduce_notes(problem, number, each.stage, each.summed_bytes)
    yield from layer_notes(problem, [each.stage for each in work], work[0].micro_batch)


def _memory_notes(stages: Sequence[StagePrediction]) -> Iterator[str]:
    """Yield which stages do not fit their units."""
    for number, stage in enumerate(stages):
        for kind, held, there in zip(stage.stage.replicas, stage.held_bytes, stage.memory_bytes, strict=True):
            if held > there:
                yield (
                    f"stage {number} holds {format_bytes(held)} on {shown(kind.device)}, which has "
                    f"{format_bytes(there)}: {NO_ROOM}"
                )
