"""The plan: decisions, estimates and provenance; in one line, as ``repr`` shows it.

Left out: its file (``file.py``), the passes that make it, the view that ``print`` shows (``plan_view.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from heterps_compile.cluster.devices import Cluster, DeviceType, Link, ParameterServer
from heterps_compile.cost.finders import finder
from heterps_compile.cost.objective import OBJECTIVES, plans_of_the_problem, what_is_proven
from heterps_compile.escape import printable, shorten
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE, Estimate, Readings
from heterps_compile.units import counted, format_money

from .idle_units import IdleUnits, idle_of, units_of
from .input_values import InputValue
from .other_plan import OtherPlan
from .planned_schedule import Schedule, readings_of
from .planned_stage import PlannedStage
from .request import Request
from .served_tables import ParameterServers, ServedTables

MIXED = "mixed"
"""The name of the backend of a plan whose stages name theirs."""

_STAGES_SHOWN = 3
_NAME = 32  # characters of a name


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
        batch_symbol: Symbolic dimension of the batch; "" if the batch is fixed
            or the plan is older.
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
    batch_symbol: str = ""
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
        from heterps_compile.notebook import text_of  # noqa: PLC0415 - rich

        return text_of(self)

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


def notes_of(plan: Plan) -> list[str]:
    """List fallbacks, unused devices, replicated parameters, and a plan that saves money."""
    found = list(plan.notes)
    if plan.unused_devices:
        found.append(f"no stage uses {', '.join(map(repr, plan.unused_devices))}")
    if plan.replicated:
        more = f" and {len(plan.replicated) - 3} more" if len(plan.replicated) > 3 else ""
        found.append(f"several stages hold {', '.join(map(repr, plan.replicated[:3]))}{more}")
    if plan.other is not None:
        other = plan.other.sentence(plan.price_per_hour, plan.valued.throughput_samples_per_s, plan.currency)
        found += [other] if other else []
    return found


def reading_of_value(plan: Plan) -> str:
    """Name the reading that value and bound are of; "" for an objective that is a time of its own."""
    if not OBJECTIVES[plan.request.objective].has_readings:
        return ""
    return ONE_BATCH_ALONE if plan.request.minimises_step else STEADY_STATE


def _hardware(stage: PlannedStage) -> str:
    return " + ".join(f"{count} x {_name(device)}" for device, count in stage.units)


def _per_hour(plan: Plan) -> str:
    return f"{format_money(plan.price_per_hour)} {plan.currency}/h"


def _name(name: str, width: int = _NAME) -> str:
    return shorten(printable(name), width)


def recomputation_words(stages: Sequence[PlannedStage]) -> str:
    """Say which stages compute their activations again in the backward; "" where none does."""
    again = [str(stage.index) for stage in stages if stage.recompute]
    if not again:
        return ""
    which = "every stage" if len(again) == len(stages) else f"{counted(len(again), 'stage')} ({', '.join(again)})"
    return f"{which} of {len(stages)}, whose activations are computed again in the backward"


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
