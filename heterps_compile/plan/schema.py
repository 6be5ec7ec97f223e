"""The schema of ``plan.json``, version 1, and the laws that a plan keeps beyond it.

Decisions (what was chosen) and estimates (what it is thought to do) are separate parts, stage by stage in the same
order, so that a change of placement reads as one in a diff even where every estimate moved with it. Strict:
unknown keys, numbers written as text and numbers that are not finite are refused.

Left out: how the file is laid out and read (``file.py``), migration from older versions (there is none yet).
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

VERSION = 1

# The file names of artefacts: flat, so that no artefact lies outside its folder, whatever the plan says.
FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
_SHA256 = r"^[0-9a-f]{64}$"
_ROUNDING = 1e-9  # relative; a proven bound may lie this far above the value it was computed beside

Name = str
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=_SHA256)]


class Part(BaseModel):
    """A part of the file: strict, frozen, finite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ModelPart(Part):
    """What was compiled; ``signature`` says how calls map to inputs and outputs to results, as JSON in a string."""

    name: str
    inputs: list[Name]
    outputs: list[Name]
    batch: Positive
    bindings: dict[Name, Count]
    signature: str


class Pin(Part):
    """Layers, by a pattern of their name or their kind, and the device type they must stand on."""

    pattern: str
    device: Name


class RequestPart(Part):
    """What was asked; the fields of :class:`~heterps_compile.plan.request.Request`."""

    objective: str
    min_throughput: Amount
    budget_per_hour: Amount | None
    mode: str
    method: str
    min_stages: Positive
    max_stages: Positive | None
    provisioner: str
    synchronisation: str
    pins: list[Pin]
    seed: int
    time_limit_s: Amount | None


class StageDecision(Part):
    """One stage: its hardware, its layers, the values that enter and leave it."""

    device: Name
    kind: Name
    backend: Name
    replicas: Positive
    layers: Annotated[list[Name], Field(min_length=1)]
    inputs: list[Name]
    outputs: list[Name]


class ScheduleDecision(Part):
    """How micro-batches flow through the stages."""

    name: str
    micro_batches: Positive


class Decisions(Part):
    """What was chosen."""

    cluster: Name
    backend: Name
    stages: Annotated[list[StageDecision], Field(min_length=1)]
    schedule: ScheduleDecision
    parameter_servers: Count
    replicated: list[Name]


class MemoryEstimate(Part):
    """What one replica holds, part by part; the total is their sum times the safety factor."""

    weights_bytes: Count
    gradients_bytes: Count
    optimizer_bytes: Count
    activations_bytes: Count
    safety_factor: Annotated[float, Field(ge=1)]


class StageEstimate(Part):
    """What one stage is thought to take for a batch."""

    compute_s: Amount
    data_s: Amount
    received_bytes: Count
    sent_bytes: Count
    price_per_hour: Amount
    memory: MemoryEstimate | None


class ScheduleEstimate(Part):
    """What the schedule is thought to give, and why it was chosen."""

    step_s: Amount
    bubble: Annotated[float, Field(ge=0, lt=1)]
    reason: str


class Estimates(Part):
    """What the decisions are thought to do; prices are in ``currency``."""

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    value: Amount
    bound: Amount
    throughput_samples_per_s: Annotated[float, Field(gt=0)]
    stages: list[StageEstimate]
    schedule: ScheduleEstimate
    parameter_servers_price_per_hour: Amount
    unused_devices: list[Name]


class VerificationPart(Part):
    """How far the staged model was from the whole one."""

    max_abs: Amount
    max_rel: Amount
    tolerance: Amount
    outputs: Count


class Provenance(Part):
    """What the plan was made from, and by what."""

    method: str
    evaluations: Count
    hashes: dict[str, Sha256]
    versions: dict[str, str]


class ArtifactPart(Part):
    """A file of the compiled folder."""

    file: Annotated[str, Field(pattern=FILE_NAME)]
    sha256: Sha256


class PlanFile(Part):
    """The whole file."""

    version: Literal[1]
    model: ModelPart
    request: RequestPart
    decisions: Decisions
    estimates: Estimates
    notes: list[str]
    verification: VerificationPart | None
    provenance: Provenance
    artifacts: list[Annotated[list[ArtifactPart], Field(min_length=1)]]


def contradictions(plan: PlanFile) -> Iterator[tuple[str, str]]:
    """Give what the parts of a file say against each other, as (JSON path, fault) pairs."""
    stages = plan.decisions.stages
    home: dict[str, int] = {}
    for index, stage in enumerate(stages):
        for place, layer in enumerate(stage.layers):
            if layer in home:
                yield f"decisions.stages[{index}].layers[{place}]", f"layer {layer!r} is in stage {home[layer]} already"
            home.setdefault(layer, index)
    made = set(plan.model.inputs)
    for index, stage in enumerate(stages):
        for place, name in enumerate(stage.inputs):
            if name not in made:
                yield f"decisions.stages[{index}].inputs[{place}]", f"no earlier stage gives the value {name!r}"
        made.update(stage.outputs)
    if len(plan.estimates.stages) != len(stages):
        yield "estimates.stages", f"{len(plan.estimates.stages)} estimates for {len(stages)} stages"
    if plan.artifacts and len(plan.artifacts) != len(stages):
        yield "artifacts", f"artefacts of {len(plan.artifacts)} stages for {len(stages)} stages"
    if plan.model.batch % plan.decisions.schedule.micro_batches:
        count = plan.decisions.schedule.micro_batches
        yield "decisions.schedule.micro_batches", f"{count} micro-batches do not divide a batch of {plan.model.batch}"
    for place, device in enumerate(plan.estimates.unused_devices):
        users = [index for index, stage in enumerate(stages) if stage.device == device]
        if users:
            yield f"estimates.unused_devices[{place}]", f"stage {users[0]} uses device {device!r}"
    if plan.estimates.bound > plan.estimates.value * (1 + _ROUNDING):
        bound, value = plan.estimates.bound, plan.estimates.value
        yield "estimates.bound", f"a lower bound of {bound!r} lies above the value {value!r} that was reached"
