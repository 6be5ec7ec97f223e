"""The schema of ``plan.json``, version 3.

Decisions (what was chosen) and estimates (what it is thought to do) are separate parts, stage by stage in the same
order, so that a change of placement reads as one in a diff even where every estimate moved with it. Strict:
unknown keys, numbers written as text and numbers that are not finite are refused.

:func:`json_schema` gives it as JSON Schema; the package holds that as ``plan.schema.json`` for editors and other tools.

Left out: how the file is laid out and read (``file.py``), what its parts may not say against each other
(``consistency.py``), older versions (``migrate.py``).
"""

from importlib import resources
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from heterps_compile.cluster.devices import SERVER_MEMORY_BYTES, SERVER_PER_TABLE_S
from heterps_compile.schedule.micro_batch import MicroBatch

from . import schema_descriptions as said
from .schema_inputs import DefaultPart, ValuePart
from .schema_types import (
    STRICT,
    Amount,
    Count,
    Exactness,
    Fingerprint,
    Fraction,
    Mode,
    Name,
    Objective,
    Optimizer,
    Positive,
    Precision,
    Provisioner,
    Rate,
    Reading,
    Recomputation,
    Rule,
    ScheduleName,
    Seconds,
    Sha256,
    Sha256OrNone,
    Synchronisation,
    Tables,
)

VERSION = 4
SCHEMA_NAME = "plan.schema.json"
_SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"

# The file names of artefacts: flat, so that no artefact lies outside its folder, whatever the plan says.
FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"


class Part(BaseModel):
    """A part of the file: strict, frozen, finite."""

    model_config = STRICT


class ShortPart(Part):
    """A part whose ``usual`` fields are omitted if they equal their defaults."""

    usual: ClassVar[tuple[str, ...]]

    @model_serializer(mode="wrap")
    def _without_the_usual(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {
            key: value for key, value in write(self).items() if key not in self.usual or value != fields[key].default
        }


class ModelPart(ShortPart):
    """What was compiled; ``signature`` says how calls map to inputs and outputs to results, as JSON in a string."""

    usual = ("batch_symbol", "defaults", "values")
    name: str
    inputs: list[Name]
    outputs: list[Name]
    batch: Positive
    bindings: dict[Name, Count]
    batch_symbol: Annotated[str, Field(description="Symbolic dimension of the batch; empty if it is fixed.")] = ""
    signature: str
    id_tables: dict[Name, Positive] = {}
    defaults: dict[Name, DefaultPart] = {}
    values: dict[Name, ValuePart] = {}


class Pin(Part):
    """Layers, by a pattern of their name or their kind, and the device type they must stand on."""

    pattern: str
    device: Name


class RequestPart(ShortPart):
    """What was asked; the fields of :class:`~heterps_compile.plan.request.Request`."""

    usual = ("allow",)
    objective: Objective
    min_throughput: Amount
    budget_per_hour: Amount | None
    mode: Mode
    reading: Annotated[Reading, Field(description=said.READING)] = "steady-state"
    precision: Precision = "fp32"
    optimizer: Optimizer = "adam"
    recompute: Recomputation = "auto"
    method: str
    min_stages: Positive
    max_stages: Positive | None
    mixed_stages: bool = False
    provisioner: Provisioner
    synchronisation: Synchronisation
    allow: Exactness = "exact"
    tables: Tables = "auto"
    pins: list[Pin]
    forbidden: list[Pin]
    seed: Count
    time_limit_s: Amount | None


class RatePart(Part):
    """What a unit reaches on work of one kind; null stands for no limit."""

    start_s: Amount
    flops_per_s: Rate | None
    bytes_per_s: Rate | None
    backward: Amount
    error: Amount
    dtype: Name
    gradient_bytes_per_s: Rate | None
    inference: Amount = 1.0


class DataSheet(ShortPart):
    """Where a price was read, and what the cost model knows of a device type; null stands for no limit."""

    usual = ("rates", "whole_machines")
    price_source: str
    price_date: str
    peak_flops: dict[Name, Rate]
    memory_bytes_per_s: Rate
    network_bytes_per_s: Rate
    network_latency_s: Amount
    input_bytes_per_s: Rate
    shared_input_bytes_per_s: Rate | None
    launch_s: Amount
    efficiency: Fraction
    compute_parallel: Fraction
    data_parallel: Fraction
    supports: list[Name] | None
    units_per_machine: Annotated[int, Field(ge=1)] = 1
    inner_bytes_per_s: Rate | None = None
    inner_latency_s: Amount = 0.0
    whole_machines: bool = False
    rates: dict[Name, RatePart] = Field(default={}, description="Measured rates by kind of work; left out where none.")


class DevicePart(Part):
    """A device type of the pool, as it was; ``price_per_hour`` is of one unit."""

    name: Name
    kind: Name
    price_per_hour: Amount
    max_units: Count
    memory_bytes: Annotated[float, Field(gt=0)]
    data_sheet: Annotated[DataSheet | None, Field(description="Null where the plan was of version 2.")]


class LinkPart(Part):
    """What connects units of two device types, or of one, in place of what their own networks give."""

    between: Annotated[list[Name], Field(min_length=2, max_length=2)]
    bytes_per_s: Rate
    latency_s: Amount


class ServerPart(ShortPart):
    """A core of the pool's parameter servers."""

    usual = ("memory_bytes", "per_table_s")
    price_per_hour: Amount
    price_source: str
    price_date: str
    bytes_per_s: Rate
    memory_bytes: Annotated[float, Field(gt=0)] = SERVER_MEMORY_BYTES
    per_table_s: Amount = SERVER_PER_TABLE_S


class ClusterPart(Part):
    """The pool, as it was; no devices in a plan of version 1, which did not list them."""

    name: Name
    devices: list[DevicePart]
    links: list[LinkPart]
    parameter_server: ServerPart | None


class LayerDecision(ShortPart):
    """A layer: its name, and what it is and where it stands whatever its name (``fingerprint.py``); "" for unknown.

    ``title`` is for people, where the name is made up; nothing is found by it.
    """

    usual = ("title",)
    name: Name
    fingerprint: Fingerprint
    title: str = ""


_RECOMPUTE = "Training: keep what enters the stage, and compute its activations again in the backward."


class StagePart(ShortPart):
    """A part of a stage; ``mixed``, ``sync`` and ``rows`` are left out where it has one type, all-reduces, has none."""

    usual = ("mixed", "sync", "rows")


class TypeDecision(Part):
    """The replicas of one device type, in a stage that has several."""

    device: Name
    kind: Name
    replicas: Positive


_SYNC = "The rule by which its replicas agree; left out where that is all-reduce."
_MIXED = "The replicas by device type, where the stage has several: that of the stage first."


class StageDecision(StagePart):
    """One stage: its hardware, its layers, the values that enter and leave it."""

    device: Name
    kind: Name
    backend: Name
    replicas: Positive
    layers: Annotated[list[LayerDecision], Field(min_length=1)]
    inputs: list[Name]
    outputs: list[Name]
    recompute: Annotated[bool, Field(description=_RECOMPUTE)] = False
    mixed: Annotated[list[TypeDecision], Field(description=_MIXED)] = []
    sync: Annotated[Rule | None, Field(description=_SYNC)] = None

    @property
    def units(self) -> list[tuple[str, int]]:
        """Return the device types of the stage, each with its replicas."""
        return [(each.device, each.replicas) for each in self.mixed] or [(self.device, self.replicas)]


class ScheduleDecision(Part):
    """How micro-batches flow through the stages."""

    name: ScheduleName
    micro_batches: Positive


class VerificationPart(Part):
    """How far the staged model was from the whole one."""

    max_abs: Amount
    max_rel: Amount
    tolerance: Amount
    outputs: Count
    calls: Positive = 1
    gradients: Count = 0
    gradients_max_rel: Amount = 0.0
    samples: Count = 0
    samples_max_rel: Amount = 0.0


class ArtifactPart(Part):
    """A file of the compiled folder."""

    file: Annotated[str, Field(pattern=FILE_NAME)]
    sha256: Sha256


class ScoringStage(Part):
    """What enters and leaves a stage in evaluation mode, and its files."""

    inputs: list[Name]
    outputs: list[Name]
    artifacts: list[ArtifactPart]


class ScoringPart(Part):
    """How a plan for training scores: the stages in evaluation mode; ``refused`` says why it cannot, if it cannot."""

    refused: str
    inputs: list[Name]
    outputs: list[Name]
    signature: str
    stages: list[ScoringStage]
    verification: VerificationPart | None


class TablesDecision(Part):
    """The tables that lie on servers, by their parameters and by the layers that look them up; how many servers."""

    names: Annotated[list[Name], Field(min_length=1)]
    layers: Annotated[list[Name], Field(min_length=1)]
    servers: Positive


class Decisions(Part):
    """What was chosen."""

    backend: Name
    stages: Annotated[list[StageDecision], Field(min_length=1)]
    schedule: ScheduleDecision
    parameter_servers: Count
    tables: TablesDecision | None = None
    replicated: list[Name]
    scoring: ScoringPart | None = None


class MemoryEstimate(ShortPart):
    """What one replica holds, part by part; the total is their sum times the safety factor."""

    usual = ("sync_bytes",)
    weights_bytes: Count
    gradients_bytes: Count
    optimizer_bytes: Count
    activations_bytes: Count
    safety_factor: Annotated[float, Field(ge=1, le=1000)]
    copies_bytes: Count = 0
    inputs_bytes: Annotated[Count, Field(description=said.INPUTS)] = 0
    sync_bytes: Annotated[Count, Field(description="Of the rule by which replicas agree; left out for none.")] = 0


class MicroBatchEstimate(ShortPart):
    """Times of one of ``count`` micro-batches on one replica."""

    usual = ("backward_s", "delay_s", "overlap_s")
    count: Positive
    forward_s: Seconds
    backward_s: Annotated[Seconds, Field(description="Left out in inference.")] = 0.0
    delay_s: Annotated[Seconds, Field(description=said.DELAY)] = 0.0
    overlap_s: Annotated[Seconds, Field(description=said.OVERLAP)] = 0.0

    def times(self) -> MicroBatch:
        """Return the times of the micro-batch."""
        return MicroBatch(self.count, self.forward_s, self.backward_s, delay_s=self.delay_s, overlap_s=self.overlap_s)


class TypeEstimate(Part):
    """What replicas of one device type take and cost, in a stage that has several."""

    share: Annotated[float, Field(gt=0, le=1)]
    compute_s: Seconds
    data_s: Seconds
    price_per_hour: Amount
    times: list[MicroBatchEstimate] = []


class RowsEstimate(Part):
    """Rows of tables on servers, one way (docs/cost-model.md); all of a batch's are ``overlapped_s`` of ``data_s``."""

    network_s: Seconds
    servers_s: Seconds
    requests_s: Seconds
    overlapped_s: Seconds
    is_pushed: bool


class SyncEstimate(Part):
    """What a replica sends in a step by the stage's rule, and what an all-reduce would send and take."""

    exactness: Exactness
    step_bytes: Amount
    all_reduce_bytes: Amount
    all_reduce_s: Amount


class StageEstimate(StagePart):
    """What one stage takes for a batch, and one replica for a micro-batch, for some counts of these, ascending."""

    compute_s: Seconds
    data_s: Seconds
    sync_s: Seconds = 0.0
    sync_hops_s: Seconds = 0.0
    handling_s: Seconds = 0.0
    update_s: Seconds = 0.0
    received_bytes: Count
    sent_bytes: Count
    times: Annotated[list[MicroBatchEstimate], Field(description=said.TIMES)] = []
    price_per_hour: Amount
    memory: MemoryEstimate | None
    mixed: list[TypeEstimate] = []
    sync: SyncEstimate | None = None
    rows: RowsEstimate | None = None


Share = Annotated[float, Field(ge=0, lt=1)]


class ScheduleEstimate(Part):
    """What the schedule is thought to give to one batch alone, and why it was chosen."""

    step_s: Seconds
    bubble: Annotated[Share, Field(description=said.BUBBLE)]
    reason: str


class ReadingEstimate(Part):
    """Time of a batch, throughput (null where that time is 0) and share of time in which units wait."""

    batch_s: Seconds
    throughput_samples_per_s: Amount | None
    bubble: Share


class OtherEstimate(ShortPart):
    """The best plan found by the other objective; ``units`` are those of every device type that it uses."""

    usual = ("servers_price_per_hour",)
    objective: Literal["cost", "price"]
    price_per_hour: Amount
    throughput_samples_per_s: Annotated[float, Field(gt=0)]
    units: dict[Name, Positive]
    is_proven: bool
    servers_price_per_hour: Annotated[
        Amount, Field(description="Of servers of tables; left out where it has none.")
    ] = 0.0


class TablesEstimate(Part):
    """Bytes of the tables on servers with the states of their optimiser; what servers move for a batch, and how long.

    Their price is a part of ``parameter_servers_price_per_hour``.
    """

    size_bytes: Count
    moved_bytes: Count
    batch_s: Seconds
    price_per_hour: Amount


class Estimates(ShortPart):
    """What the decisions are thought to do; prices are in ``currency``."""

    usual = ("idle_units",)
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    value: Amount
    bound: Annotated[Amount, Field(description=said.BOUND)]
    bound_of_all_orders: Annotated[Amount, Field(description=said.BOUND_OF_ALL_ORDERS)] = 0.0
    steady_bound: Annotated[Amount, Field(description=said.STEADY_BOUND)] = 0.0
    throughput_samples_per_s: Annotated[float, Field(gt=0, description="In the steady state.")]
    steady_state: Annotated[ReadingEstimate | None, Field(description=said.STEADY)] = None
    one_batch_alone: Annotated[ReadingEstimate | None, Field(description=said.ALONE)] = None
    stages: list[StageEstimate]
    schedule: ScheduleEstimate
    parameter_servers_price_per_hour: Amount
    tables: TablesEstimate | None = None
    unused_devices: list[Name]
    idle_units: Annotated[dict[Name, Positive], Field(description=said.IDLE)] = {}
    other_objective: Annotated[OtherEstimate | None, Field(description=said.OTHER)] = None


class Provenance(Part):
    """What the plan was made from, and by what."""

    method: str
    found_by: str = ""
    evaluations: Count
    hashes: dict[str, Sha256OrNone]
    versions: dict[str, str]


class PlanFile(Part):
    """The whole file."""

    version: Literal[4]
    model: ModelPart
    request: RequestPart
    cluster: ClusterPart
    decisions: Decisions
    estimates: Estimates
    notes: list[str]
    verification: VerificationPart | None
    provenance: Provenance
    artifacts: list[Annotated[list[ArtifactPart], Field(min_length=1)]]


def json_schema() -> dict[str, Any]:
    """Return the schema as JSON Schema, made from the classes above."""
    return {"$schema": _SCHEMA_ID, **PlanFile.model_json_schema()}


def published_schema() -> str:
    """Return the text of the JSON Schema that is in the package."""
    return resources.files("heterps_compile.plan").joinpath(SCHEMA_NAME).read_text("utf-8")
