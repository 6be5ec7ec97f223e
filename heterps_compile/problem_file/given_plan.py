"""A plan of a problem with given costs: stages, who replicates them, and how a batch is divided.

::

    {"format": "heterps-compile given plan", "version": 1,
     "schedule": "1f1b", "micro_batch": 8,
     "stages": [
       {"layers": {"first": "embed", "last": "block 11"}, "replicas": [{"device": "v100", "count": 2}]},
       {"layers": ["block 12", "head"], "replicas": [{"device": "v100"}, {"device": "t4", "count": 2}],
        "feed": "speed"}]}

Replicas of one stage may be of several types: each has its own times, and they are fed in equal shares or in
proportion to their speed (``schedule/mixed_stage.py``). ``"served": {"tables": ["items"], "servers": 2}`` puts tables
on parameter servers, which hold them together.

Left out: what the plan takes (``prediction/``).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from heterps_compile.cost.table_servers import MOST_SERVERS
from heterps_compile.errors import HeterpsError, InputError, PlugInError
from heterps_compile.escape import printable, shorten
from heterps_compile.plan.file import GIVEN_PLAN
from heterps_compile.schedule.mixed_stage import EQUAL, FEEDS
from heterps_compile.schedule.names import SCHEDULES
from heterps_compile.schedule.order import MOST_ACTIONS
from heterps_compile.strict_json import Part, Text, Whole, checked, read_record
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import USUAL

from .given_problem import REPLICA, GivenProblem
from .problem_laws import MOST_LAYERS, MOST_UNITS_OF_A_GROUP, shown

FORMAT, VERSION = GIVEN_PLAN, 1
MOST_REPLICAS = 10_000


@dataclass(frozen=True, slots=True)
class GivenReplicas:
    """Replicas of one kind.

    Attributes:
        device: Name of the type.
        count: How many.
        tensor_parallel: Units of each.
    """

    device: str
    count: int = 1
    tensor_parallel: int = 1

    @property
    def units(self) -> int:
        """Return the units of all of them."""
        return self.count * self.tensor_parallel


@dataclass(frozen=True, slots=True)
class GivenStage:
    """A stage.

    Attributes:
        layers: Indices in the problem, ascending.
        replicas: Of every kind.
        feed: ``"equal"`` or ``"speed"``.
        sync: The rule by which its replicas agree.
    """

    layers: tuple[int, ...]
    replicas: tuple[GivenReplicas, ...]
    feed: str = EQUAL
    sync: SyncRule = USUAL

    @property
    def width(self) -> int:
        """Return how many replicas there are."""
        return sum(each.count for each in self.replicas)


@dataclass(frozen=True, slots=True)
class GivenServed:
    """Tables that lie on parameter servers.

    Attributes:
        tables: Names in the problem.
        servers: That hold the rows of all of them.
    """

    tables: tuple[str, ...]
    servers: int


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """A plan.

    Attributes:
        stages: In the order of the pipeline.
        micro_batch: Samples of one.
        batch: Samples of a step.
        schedule: Name of a schedule.
        served: Which tables lie on servers; None where stages hold all of them.
    """

    stages: tuple[GivenStage, ...]
    micro_batch: int
    batch: int
    schedule: str = "1f1b"
    served: GivenServed | None = None

    @property
    def micro_batches(self) -> int:
        """Return how many a step has."""
        return self.batch // self.micro_batch


class _Run(Part):
    first: Text
    last: Text


class _Replicas(Part):
    device: Text
    count: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    tensor_parallel: Annotated[int, Field(ge=1, le=MOST_UNITS_OF_A_GROUP)] = 1


class _Stage(Part):
    layers: _Run | Annotated[list[Text], Field(min_length=1, max_length=MOST_LAYERS)]
    replicas: Annotated[list[_Replicas], Field(min_length=1, max_length=1000)]
    feed: Literal["equal", "speed"] = "equal"
    sync: Text | None = None


class _Served(Part):
    tables: Annotated[list[Text], Field(min_length=1, max_length=MOST_LAYERS)]
    servers: Annotated[int, Field(ge=1, le=MOST_SERVERS)]


class PlanFile(Part):
    """The whole file."""

    format: Literal["heterps-compile given plan"]
    version: Literal[1]
    schedule: str = "1f1b"
    micro_batch: Whole | None = None
    batch: Whole | None = None
    stages: Annotated[list[_Stage], Field(min_length=1, max_length=10_000)]
    served: _Served | None = None


assert FEEDS == ("equal", "speed")  # noqa: S101 - as the schema has them


def read_given_plan(path: str | Path, problem: GivenProblem) -> GivenPlan:
    """Read a plan of a problem.

    Raises:
        InputError: where the file cannot be read, or the plan is none of the problem.
    """
    where = f"the plan {shorten(printable(str(path)), 200)!r}"
    return make_given_plan(read_record(path, where, FORMAT, (VERSION,)), problem, where)


def make_given_plan(document: dict[str, Any], problem: GivenProblem, where: str) -> GivenPlan:
    """Check what a file says and return it as a value.

    Raises:
        InputError: as :func:`read_given_plan`.
    """
    file = checked(PlanFile, document, where)
    batch = file.batch or problem.batch
    plan = GivenPlan(
        tuple(
            GivenStage(
                _positions(stage.layers, problem, f"{where}: stage {number}"),
                tuple(GivenReplicas(each.device, each.count, each.tensor_parallel) for each in stage.replicas),
                stage.feed,
                _rule(stage.sync, f"{where}: stage {number}"),
            )
            for number, stage in enumerate(file.stages)
        ),
        file.micro_batch or batch,
        batch,
        file.schedule,
        None if file.served is None else GivenServed(tuple(file.served.tables), file.served.servers),
    )
    for fault in faults(problem, plan):
        raise InputError(f"{where}: {fault}")
    return plan


def _rule(text: str | None, where: str) -> SyncRule:
    if text is None:
        return USUAL
    try:
        return parse_rule(text)
    except PlugInError:
        raise
    except HeterpsError as error:
        raise InputError(f"{where}: sync: {error}") from error


def _positions(layers: "_Run | list[str]", problem: GivenProblem, where: str) -> tuple[int, ...]:
    named = [layers.first, layers.last] if isinstance(layers, _Run) else layers
    for name in named:
        if name not in problem.position:
            raise InputError(f"{where} names layer {shown(name)}, which problem {shown(problem.name)} does not have")
    found = [problem.position[name] for name in named]
    if not isinstance(layers, _Run):
        return tuple(sorted(found))
    if found[0] > found[1]:
        raise InputError(f"{where}: its first layer {shown(named[0])} stands behind its last, {shown(named[1])}")
    return tuple(range(found[0], found[1] + 1))


def stage_of_layers(problem: GivenProblem, stages: Sequence[GivenStage]) -> list[int]:
    """Return the stage [L] of every layer, -1 where none has it."""
    stage_of = [-1] * len(problem.layers)
    for number, stage in enumerate(stages):
        for layer in stage.layers:
            stage_of[layer] = number
    return stage_of


def faults(problem: GivenProblem, plan: GivenPlan) -> Iterator[str]:
    """Yield what is wrong with a plan of a problem."""
    if plan.schedule not in SCHEDULES:
        yield f"schedule is {shown(plan.schedule)}; expected one of {', '.join(SCHEDULES)}"
    if plan.micro_batch > plan.batch:
        yield f"a micro-batch of {plan.micro_batch} samples is larger than the batch of {plan.batch}"
    if plan.micro_batches * len(plan.stages) > MOST_ACTIONS:
        yield (
            f"{plan.micro_batches:,} micro-batches through {len(plan.stages):,} stages are more than the "
            f"{MOST_ACTIONS:,} actions that are simulated; take larger micro-batches"
        )
    if plan.batch % plan.micro_batch:
        yield (
            f"micro-batches of {plan.micro_batch} samples do not divide the batch of {plan.batch}; take a size that "
            "does"
        )
    yield from _misplaced(problem, plan.stages)
    yield from _missing_times(problem, plan.stages)
    yield from _too_many_units(problem, plan.stages)
    if plan.served is not None:
        yield from _unservable(problem, plan.served)


def _unservable(problem: GivenProblem, served: GivenServed) -> Iterator[str]:
    for name, count in Counter(served.tables).items():
        if name not in problem.tables:
            known = ", ".join(map(shown, list(problem.tables)[:8])) or "none"
            yield f"served names the table {shown(name)}, and the tables of problem {shown(problem.name)} are: {known}"
        if count > 1:
            yield f"served names the table {shown(name)} {count} times; name it once"
    if problem.known_pool.parameter_server is None:
        yield (
            f"tables lie on servers, and the pool {shown(problem.known_pool.name)} has none; give it a "
            f"[parameter_server], or leave served out"
        )
    if problem.batch_of == REPLICA:
        yield (
            "tables lie on servers, whose rows are pulled and pushed once a step, and batches of one replica each have "
            "no step; leave served out, or say that a batch is of a step (batch_of)"
        )


def _misplaced(problem: GivenProblem, stages: Sequence[GivenStage]) -> Iterator[str]:
    seen: dict[int, int] = {}
    for number, stage in enumerate(stages):
        for layer in stage.layers:
            if layer in seen:
                yield f"layer {shown(problem.layers[layer].name)} is in the stages {seen[layer]} and {number}"
            seen[layer] = number
    missing = [layer.name for i, layer in enumerate(problem.layers) if i not in seen]
    if missing:
        yield f"{len(missing):,} of {len(problem.layers):,} layers are in no stage, such as {shown(missing[0])}"
    stage_of = stage_of_layers(problem, stages)
    for edge in problem.edges:
        made = problem.position[edge.producer]
        for reader in edge.readers:
            read = problem.position[reader]
            if 0 <= stage_of[read] < stage_of[made]:
                yield (
                    f"stage {stage_of[read]} reads what {shown(edge.producer)} makes in stage {stage_of[made]} behind "
                    "it; values never run to an earlier stage"
                )


def _missing_times(problem: GivenProblem, stages: Sequence[GivenStage]) -> Iterator[str]:
    for number, stage in enumerate(stages):
        if problem.summed_every is not None and len(stage.replicas) > 1:
            yield f"stage {number} has {len(stage.replicas)} kinds of replicas; expected 1 where its parts add up"
        for each in stage.replicas:
            for i in stage.layers:
                layer = problem.layers[i]
                if (each.device, each.tensor_parallel) not in layer.by_group:
                    known = ", ".join(f"{shown(device)} x {degree}" for device, degree in list(layer.by_group)[:8])
                    yield (
                        f"stage {number} needs times of layer {shown(layer.name)} on {each.tensor_parallel} x "
                        f"{shown(each.device)}, and the problem has them on {known}"
                    )
                    return


def has_units(problem: GivenProblem, plan: GivenPlan) -> bool:
    """Check if a plan takes no more units of any type than there are."""
    return next(_too_many_units(problem, plan.stages), None) is None


def _too_many_units(problem: GivenProblem, stages: Sequence[GivenStage]) -> Iterator[str]:
    used: dict[str, int] = {}
    for stage in stages:
        for each in stage.replicas:
            used[each.device] = used.get(each.device, 0) + each.units
    for name, count in used.items():
        most = problem.known_pool.device_type(name).max_units
        if count > most:
            yield f"it takes {count:,} units of {shown(name)}, and the pool has {most:,}"


def _served_record(served: GivenServed) -> dict[str, Any]:
    return {"tables": list(served.tables), "servers": served.servers}


def plan_document(problem: GivenProblem, plan: GivenPlan) -> dict[str, Any]:
    """Return the file of a plan, which :func:`make_given_plan` reads."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "schedule": plan.schedule,
        "micro_batch": plan.micro_batch,
        "batch": plan.batch,
        **({} if plan.served is None else {"served": _served_record(plan.served)}),
        "stages": [
            {
                "layers": [problem.layers[i].name for i in stage.layers],
                "replicas": [
                    {"device": each.device, "count": each.count, "tensor_parallel": each.tensor_parallel}
                    for each in stage.replicas
                ],
                "feed": stage.feed,
                **({} if stage.sync == USUAL else {"sync": rule_text(stage.sync)}),
            }
            for stage in plan.stages
        ],
    }
