"""The plan: decisions, estimates and provenance; in ten lines and in one, as ``print`` and ``repr`` show it.

Left out: its file (``file.py``), the passes that make it, the tables of the commands (``report/tables.py``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from heterps_compile.cluster.devices import Cluster, DeviceType, Link, ParameterServer
from heterps_compile.cost.finders import finder
from heterps_compile.cost.objective import OBJECTIVES, plans_of_the_problem, what_is_proven
from heterps_compile.escape import printable, shorten
from heterps_compile.ir.default_size import defaults_in_words
from heterps_compile.schedule.readings import (
    ONE_BATCH_ALONE,
    STEADY_STATE,
    Estimate,
    Readings,
    alone_words,
    steady_words,
)
from heterps_compile.units import counted, format_bytes, format_money, format_rate, format_seconds

from .idle_units import IdleUnits, idle_of, units_of
from .input_values import InputValue
from .other_plan import OtherPlan
from .planned_schedule import Schedule, readings_of
from .planned_stage import PlannedStage
from .request import Request
from .served_tables import ParameterServers, ServedTables

MIXED = "mixed"
"""The name of the backend of a plan whose stages name theirs."""

_NAMED = 3  # tables
_STAGES_SHOWN = 3
_FOLDER = 200
_NAME = 32  # characters of a name
_KEY = len(ONE_BATCH_ALONE)

_KEPT = 1 - 1e-9  # of a floor, which rounding alone must not break

NOT_VERIFIED = "not verified"
"""How a note of a plan begins that says which outputs were not compared, and why."""


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """What a plan of version 2 tells of a device type of its pool.

    Attributes:
        name: Unique in the pool.
        kind: ``"cpu"``, ``"gpu"`` or ``"npu"``.
        price_per_hour: Of one unit, in the plan's currency; 0 for free.
        max_units: Units that may be rented.
        memory_bytes: Of one unit.
    """

    name: str
    kind: str
    price_per_hour: float
    max_units: int
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of the compiled folder: its name inside the folder, and the SHA-256 of its bytes."""

    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Verification:
    """How far the staged model's outputs and gradients are from the whole model's, on generated inputs.

    Attributes:
        max_abs: Largest absolute difference over all outputs.
        max_rel: Largest difference relative to the scale (largest magnitude) of its output.
        tolerance: What ``max_rel`` was allowed to be.
        outputs: How many outputs were compared.
        calls: Of how many calls in a row; more than one where the model keeps something from call to call.
        gradients: How many gradients were compared; 0 where the plan is not for training.
        gradients_max_rel: Largest difference of a gradient relative to its scale.
        samples: How many samples were run one by one through the model as it was before its batch was opened; 0 where
            it was not.
        samples_max_rel: Largest difference of their outputs relative to the scale.
    """

    max_abs: float
    max_rel: float
    tolerance: float
    outputs: int
    calls: int = 1
    gradients: int = 0
    gradients_max_rel: float = 0.0
    samples: int = 0
    samples_max_rel: float = 0.0


@dataclass(frozen=True, slots=True)
class Scoring:
    """What a folder compiled for training carries for scoring: the same stages as they are in evaluation mode.

    Attributes:
        refused: Why it cannot score; "" where it can, and the rest is empty where it cannot.
        graph_inputs, graph_outputs: Names of the model's inputs and outputs in evaluation mode.
        signature: How calls map to them, as in the plan.
        boundaries: Of every stage, the names of the values it takes and of those it gives.
        artifacts: Per stage, the files it was written to; empty until saved.
        verification: How far it is from the whole model in evaluation mode; None where that was not looked at.
    """

    refused: str = ""
    graph_inputs: tuple[str, ...] = ()
    graph_outputs: tuple[str, ...] = ()
    signature: str = ""
    boundaries: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    artifacts: tuple[tuple[Artifact, ...], ...] = ()
    verification: Verification | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """A compiled model's decisions, estimates and provenance.

    Attributes:
        model: Name of the model.
        graph_inputs, graph_outputs: Names of the model's inputs and outputs.
        batch: Samples in one step.
        bindings: Number of every symbolic dimension; a
            :class:`heterps_compile.ir.default_size.DefaultSize` where the user
            gave none.
        request: What was asked.
        cluster: Name of the pool.
        devices: Its device types, whole; of a plan of an older version what it
            tells, which may be none.
        links: What connects units of its device types.
        parameter_server: A core of its parameter servers, where it has any.
        currency: Of every price.
        backend: Name of the backend that wrote the stages; ``"mixed"`` where
            they have different ones.
        signature: How calls map to graph inputs and graph outputs to results,
            as JSON; "" for plain tensors by name.
        id_tables: Rows of the table that an input is looked up in, by its
            name, where it is one alone.
        input_values: Values of inputs that the user gave.
        stages: In order of execution.
        schedule: How micro-batches flow.
        value: The objective reached; lower is better.
        bound: A proven lower bound on it, for the layers in this order.
        bound_of_all_orders: The same for the layers in every order, no higher;
            0 where nothing is known.
        method: The search method that ran.
        found_by: The part of the run that came upon the plan: ``"proof"``,
            ``"warm start"``, another method's name, a part of the method such
            as ``"polish"``; "" where the method does not say, or the plan is
            older.
        steady_bound: Of a plan whose value is of one batch alone, the part of
            the bound that the steady state proves; 0 elsewhere.
        evaluations: Placements the search evaluated.
        throughput_samples_per_s: In the steady state: min over stages of batch
            / ET.
        parameter_servers: Through which replicas synchronise, or on which
            tables lie.
        tables: That lie on servers; None where all are held by their stages.
        unused_devices: Device types of the pool that no stage uses.
        replicated: Parameters that several stages hold.
        notes: Every fallback and surprise, with its reason.
        hashes: SHA-256 of ``model`` (its structure), ``weights``, ``cluster``,
            ``profile`` and ``options``; "" where there is none, no key where it
            is not known.
        versions: Versions of what made it, by distribution name; empty until
            saved.
        fingerprints: What every layer is and where it stands, by its name
            (``fingerprint.py``); empty where not known.
        titles: What layers are whose names are made up, by name: shown beside
            the name, ``conv 3x3, 64 -> 128, layer2.0``.
        artifacts: Per stage, the files it was written to; empty until saved.
        verification: None where it was switched off.
        scoring: How a plan for training scores; None for inference, and where
            an earlier version made it.
        other: What the other objective about money would choose; None without a
            floor, or where it is not known.
        search_s: Seconds the search took.
        total_s: Seconds the whole compilation took.

    Examples:
        >>> import heterps_compile, torch
        >>> model, batch = torch.nn.Linear(64, 8), torch.ones(128, 64)
        >>> plan = heterps_compile.compile(model, (batch,), method="exact").plan
        >>> [(stage.device, stage.replicas) for stage in plan.stages]
        [('cpu-core', 1)]
        >>> plan.gap == 0.0 and plan.bound <= plan.value
        True
    """

    model: str
    graph_inputs: tuple[str, ...]
    graph_outputs: tuple[str, ...]
    batch: int
    bindings: Mapping[str, int]
    request: Request
    cluster: str
    currency: str
    backend: str
    stages: tuple[PlannedStage, ...]
    schedule: Schedule
    value: float
    bound: float
    method: str
    evaluations: int
    throughput_samples_per_s: float
    found_by: str = ""
    bound_of_all_orders: float = 0.0
    steady_bound: float = 0.0
    signature: str = ""
    parameter_servers: ParameterServers = field(default_factory=ParameterServers)
    tables: ServedTables | None = None
    unused_devices: tuple[str, ...] = ()
    replicated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    versions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    devices: tuple[DeviceType | PoolDevice, ...] = ()
    links: tuple[Link, ...] = ()
    parameter_server: ParameterServer | None = None
    fingerprints: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    titles: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    id_tables: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    input_values: Mapping[str, InputValue] = field(default_factory=lambda: MappingProxyType({}))
    artifacts: tuple[tuple[Artifact, ...], ...] = ()
    verification: Verification | None = None
    scoring: Scoring | None = None
    other: OtherPlan | None = None
    search_s: float = 0.0
    total_s: float = 0.0

    def __repr__(self) -> str:
        stages = " | ".join(_hardware(stage) for stage in self.stages[:_STAGES_SHOWN])
        more = f" | {len(self.stages) - _STAGES_SHOWN} more" if len(self.stages) > _STAGES_SHOWN else ""
        return f"Plan({_name(self.model)!r}, {self.request.purpose}, {stages}{more}, {_per_hour(self)})"

    def __str__(self) -> str:
        return plan_in_lines(self)

    def _repr_html_(self) -> str:
        """Return how a notebook shows the plan."""
        from heterps_compile.notebook import html_of  # noqa: PLC0415 - only in a notebook

        return html_of(self)

    @property
    def pool(self) -> Cluster | None:
        """Return the pool as it was; None in a plan of an older version."""
        devices = tuple(device for device in self.devices if isinstance(device, DeviceType))
        if not devices or len(devices) < len(self.devices):
            return None
        return Cluster(self.cluster, "", self.currency, devices, "the plan", self.links, self.parameter_server)

    @property
    def search(self) -> str:
        """Say which method ran, and what found the plan where known."""
        found_by = finder(self.found_by)
        return f"{self.method}, found by {found_by}" if found_by else self.method

    @property
    def price_per_hour(self) -> float:
        """Return the price of all units, idle ones too, and of servers."""
        of_units = sum(stage.price_per_hour for stage in self.stages)
        of_idle = sum(idle.price_per_hour for idle in self.idle_units)
        return of_units + of_idle + self.parameter_servers.price_per_hour

    @property
    def idle_units(self) -> tuple[IdleUnits, ...]:
        """Return the units that are rented with whole machines and no stage uses."""
        return idle_of(units_of(self.stages), self.devices)

    @property
    def price_per_million_samples(self) -> float:
        """Return what a million samples cost in the steady state."""
        return self.price_at(self.throughput_samples_per_s)

    @property
    def readings(self) -> Readings:
        """Return the steady state, and what one batch alone takes."""
        return readings_of(self.batch, self.stages, self.schedule)

    @property
    def valued(self) -> Estimate:
        """Return what the plan does in the reading that its value is of."""
        readings = self.readings
        return readings.one_batch_alone if self.request.minimises_step else readings.steady_state

    @property
    def schedule_bubble(self) -> float:
        """Return the bubble that files have beside the schedule.

        That of the steady state in inference, of one batch alone in
        training, where steps cannot overlap.
        """
        readings = self.readings
        return (readings.one_batch_alone if self.request.mode == "training" else readings.steady_state).bubble

    def price_at(self, samples_per_s: float) -> float:
        """Return what a million samples cost at a throughput."""
        return self.price_per_hour / 3600 / samples_per_s * 1e6

    @property
    def gap(self) -> float:
        """Return (value - bound) / value, 0 where both are 0."""
        return 0.0 if self.value <= 0 else max(0.0, (self.value - self.bound) / self.value)


def plan_in_lines(plan: Plan, directory: str | None = None) -> str:
    """Return what a plan is, its stages, speed, price, proof and verification, in at most twelve lines.

    Args:
        plan: The plan.
        directory: Where it was written or loaded from; None where that is not known.
    """
    layers = counted(sum(len(stage.layers) for stage in plan.stages), "layer")
    rows = [
        (
            "model",
            f"{_name(plan.model)}, {plan.request.purpose}, batch {plan.batch}, {layers} in {_stage_count(plan)}",
        ),
        *([("defaults", defaults)] if (defaults := defaults_in_words(plan.bindings)) else []),
        *_stage_rows(plan),
        *reading_rows(plan),
        *([("tables", tables_in_words(plan))] if plan.tables is not None else []),
        ("price", _price(plan)),
        ("proven", what_the_bound_proves(plan) or "no bound is known"),
        ("verified", verified(plan)),
    ]
    if directory is not None:
        rows.append(("folder", _name(directory, _FOLDER)))
    return "\n".join(f"{key.ljust(_KEY)}  {text}" for key, text in rows)


def verified(plan: Plan) -> str:
    """Say how far stages and unsplit model differ, or that neither ran."""
    if plan.verification is not None:
        return _found(plan.verification)
    return "no (see the notes)" if any(note.startswith(NOT_VERIFIED) for note in plan.notes) else "no (--no-verify)"


def reading_of_value(plan: Plan) -> str:
    """Name the reading that value and bound are of; "" for an objective that is a time of its own."""
    if not OBJECTIVES[plan.request.objective].has_readings:
        return ""
    return ONE_BATCH_ALONE if plan.request.minimises_step else STEADY_STATE


def _found(found: Verification) -> str:
    """Say how far they are apart, and what was compared beside one call's outputs."""
    beside = [f"{found.calls} calls in a row"] if found.calls > 1 else []
    if found.gradients:
        beside.append(f"{found.gradients} gradients, {found.gradients_max_rel:.3g} of their scale")
    if found.samples:
        beside.append(f"{found.samples} samples one by one, {found.samples_max_rel:.3g} of their scale")
    told = f"largest difference {found.max_abs:.3g}, {found.max_rel:.3g} of the output's scale"
    return "; ".join([told, *beside])


def _stage_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    hidden = max(0, len(plan.stages) - _STAGES_SHOWN)
    shown = plan.stages if not hidden else plan.stages[: _STAGES_SHOWN - 2]
    yield from ((f"  stage {stage.index}", _stage(stage)) for stage in shown)
    if hidden:
        between = plan.stages[_STAGES_SHOWN - 2 : -1]
        yield f"  {between[0].index} to {between[-1].index}", _between(between)
        yield f"  stage {plan.stages[-1].index}", _stage(plan.stages[-1])


def _hardware(stage: PlannedStage) -> str:
    return " + ".join(f"{count} x {_name(device)}" for device, count in stage.units)


def _stage(stage: PlannedStage) -> str:
    ends = [_name(name, _NAME // 2) for name in dict.fromkeys((stage.layers[0], stage.layers[-1]))]
    time = format_seconds(stage.time_s)
    return f"{_hardware(stage)}, {time}: {' … '.join(ends)} ({len(stage.layers)})"


def _between(stages: tuple[PlannedStage, ...]) -> str:
    replicas = units_of(stages)
    units = ", ".join(f"{count} x {_name(device)}" for device, count in replicas.most_common(_STAGES_SHOWN))
    layers = sum(len(stage.layers) for stage in stages)
    return f"{units}{' and others' if len(replicas) > _STAGES_SHOWN else ''}: {counted(layers, 'layer')}"


def _stage_count(plan: Plan) -> str:
    return counted(len(plan.stages), "stage")


def _price(plan: Plan) -> str:
    cost = f"{format_money(plan.price_per_million_samples)} {plan.currency} per million samples"
    idle = "".join(f", {idle.count} x {_name(idle.device)} idle" for idle in plan.idle_units)
    return f"{_per_hour(plan)}{idle}, {cost} ({STEADY_STATE})"


def _per_hour(plan: Plan) -> str:
    return f"{format_money(plan.price_per_hour)} {plan.currency}/h"


def _name(name: str, width: int = _NAME) -> str:
    return shorten(printable(name), width)


def tables_in_words(plan: Plan) -> str:
    """Name the tables on servers, their bytes, traffic and price; "" without any."""
    tables = plan.tables
    if tables is None:
        return ""
    named = ", ".join(map(printable, tables.names[:_NAMED]))
    more = f" and {len(tables.names) - _NAMED} more" if len(tables.names) > _NAMED else ""
    states = f" with the states of {plan.request.optimizer}" if plan.request.mode == "training" else ""
    return (
        f"{counted(len(tables.names), 'table')} ({named}{more}), {format_bytes(tables.size_bytes)}{states}, on "
        f"{counted(tables.servers, 'server')}: {format_bytes(tables.size_bytes / tables.servers)} on each, "
        f"{format_bytes(tables.moved_bytes)} moved for a batch in {format_seconds(tables.batch_s)}, "
        f"{format_money(tables.price_per_hour)} {plan.currency}/h"
    )


def recomputation_words(stages: Sequence[PlannedStage]) -> str:
    """Say which stages compute their activations again in the backward; "" where none does."""
    again = [str(stage.index) for stage in stages if stage.recompute]
    if not again:
        return ""
    which = "every stage" if len(again) == len(stages) else f"{counted(len(again), 'stage')} ({', '.join(again)})"
    return f"{which} of {len(stages)}, whose activations are computed again in the backward"


def reading_rows(plan: Plan) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return what the plan does in each of its readings, and which of them the floor and a training run are held in."""
    floor, readings, is_step = plan.request.min_throughput, plan.readings, plan.request.minimises_step
    held = f" (floor {format_rate(floor)}, held here)" if floor else ""
    trained = ""
    if plan.request.mode == "training":
        below = ", below the floor" if readings.one_batch_alone.throughput_samples_per_s < floor * _KEPT else ""
        trained = f" (a training run's, where steps cannot overlap{below})"
    return (
        (STEADY_STATE, steady_words(readings.steady_state) + ("" if is_step else held)),
        (ONE_BATCH_ALONE, alone_words(readings.one_batch_alone) + trained + (held if is_step else "")),
    )


def what_the_bound_proves(plan: Plan) -> str:
    """Say what no plan of the same problem is, or "" where no bound is known."""
    if plan.bound <= 0:
        return ""
    objective = OBJECTIVES[plan.request.objective]
    better_by, in_any = (
        max(0.0, objective.better_by(plan.value, bound)) if bound > 0 else None
        for bound in (plan.bound, plan.bound_of_all_orders)
    )
    said = what_is_proven(objective, _layer_count(plan), better_by or 0.0, in_any)
    return f"{said}, {ONE_BATCH_ALONE}" if plan.request.minimises_step else said


def what_the_bound_holds_for(plan: Plan) -> str:
    """Name the plans that the bound holds for, or "" where no bound is known."""
    if plan.bound <= 0:
        return ""
    in_any_order = plan.bound_of_all_orders >= plan.bound
    return f"every {plans_of_the_problem(_layer_count(plan), in_any_order=in_any_order)}"


def _layer_count(plan: Plan) -> int:
    return sum(len(stage.layers) for stage in plan.stages)
