"""A plan as the JSON of its file, and back.

Left out: checks (``schema.py``, ``consistency.py``), the text (``file.py``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from types import MappingProxyType
from typing import Any

from heterps_compile.cost.memory import MemoryParts
from heterps_compile.cost.served_rows import ServedRows
from heterps_compile.ir.default_size import DefaultSize, defaults_of
from heterps_compile.packages import SHAPE_PLANS, installed_versions
from heterps_compile.schedule.micro_batch import MicroBatch

from . import schema
from .input_values import InputValue
from .other_plan import OtherPlan
from .plan import Artifact, Plan, Scoring, Verification
from .planned_schedule import Schedule
from .planned_stage import PlannedStage, StageSync, TypeReplicas
from .pool_record import devices_of, links_of, pool_part, server_of
from .request import Request
from .served_tables import ParameterServers, ServedTables


def to_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as the JSON of its file, not checked yet."""
    request = plan.request
    return {
        "version": schema.VERSION,
        "model": {
            "name": plan.model,
            "inputs": list(plan.graph_inputs),
            "outputs": list(plan.graph_outputs),
            "batch": plan.batch,
            "batch_symbol": plan.batch_symbol,
            "bindings": {name: int(number) for name, number in sorted(plan.bindings.items())},
            "defaults": {
                name: {"why": size.why, "same_as": size.same_as} for name, size in defaults_of(plan.bindings).items()
            },
            "values": {
                name: {"shape": list(value.shape), "sha256": value.sha256, "elements": list(value.elements)}
                for name, value in plan.input_values.items()
            },
            "signature": plan.signature,
            "id_tables": dict(plan.id_tables),
        },
        "request": _request_part(request),
        "cluster": pool_part(plan),
        "decisions": {
            "backend": plan.backend,
            "stages": [_stage_decision(stage, plan) for stage in plan.stages],
            "schedule": {"name": plan.schedule.name, "micro_batches": plan.schedule.micro_batches},
            "parameter_servers": plan.parameter_servers.count,
            "tables": _tables(plan, "names", "layers", "servers"),
            "replicated": list(plan.replicated),
            "scoring": None if plan.scoring is None else _scoring(plan.scoring),
        },
        "estimates": {
            "currency": plan.currency,
            "value": plan.value,
            "bound": plan.bound,
            "bound_of_all_orders": plan.bound_of_all_orders,
            "steady_bound": plan.steady_bound,
            "throughput_samples_per_s": plan.throughput_samples_per_s,
            **plan.readings.to_json(),
            "stages": [_stage_estimate(stage) for stage in plan.stages],
            "schedule": {
                "step_s": plan.schedule.step_s,
                "bubble": plan.schedule_bubble,
                "reason": plan.schedule.reason,
            },
            "parameter_servers_price_per_hour": plan.parameter_servers.price_per_hour,
            "tables": _tables(plan, "size_bytes", "moved_bytes", "batch_s", "price_per_hour"),
            "unused_devices": list(plan.unused_devices),
            "idle_units": {idle.device: idle.count for idle in plan.idle_units},
            "other_objective": None if plan.other is None else plan.other.to_json(),
        },
        "notes": list(plan.notes),
        "verification": None if plan.verification is None else _verification(plan.verification),
        "provenance": {
            "method": plan.method,
            "found_by": plan.found_by,
            "evaluations": plan.evaluations,
            "hashes": dict(sorted(plan.hashes.items())),
            "versions": dict(sorted((plan.versions or installed_versions(SHAPE_PLANS)).items())),
        },
        "artifacts": [_artifacts(files) for files in plan.artifacts],
    }


def _request_part(request: Request) -> dict[str, Any]:
    """Return every field of a request; pairs of a pattern and a device as objects."""
    values = {field.name: getattr(request, field.name) for field in fields(request)} | {"reading": request.reads}
    return {
        name: [{"pattern": pattern, "device": device} for pattern, device in value]
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
    }


def _tables(plan: Plan, *names: str) -> dict[str, Any] | None:
    """Return what a plan says of its tables on servers; None where it has none."""
    if plan.tables is None:
        return None
    values = {name: getattr(plan.tables, name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _to_tables(decided: schema.TablesDecision | None, estimated: schema.TablesEstimate | None) -> ServedTables | None:
    if decided is None or estimated is None:
        return None
    return ServedTables(tuple(decided.names), tuple(decided.layers), decided.servers, **_fields(estimated))


def _artifacts(files: Sequence[Artifact]) -> list[dict[str, str]]:
    return [{"file": a.file, "sha256": a.sha256} for a in files]


def _scoring(scoring: Scoring) -> dict[str, Any]:
    files = scoring.artifacts or [()] * len(scoring.boundaries)
    return {
        "refused": scoring.refused,
        "inputs": list(scoring.graph_inputs),
        "outputs": list(scoring.graph_outputs),
        "signature": scoring.signature,
        "stages": [
            {"inputs": list(inputs), "outputs": list(outputs), "artifacts": _artifacts(of_stage)}
            for (inputs, outputs), of_stage in zip(scoring.boundaries, files, strict=True)
        ],
        "verification": None if scoring.verification is None else _verification(scoring.verification),
    }


def _stage_decision(stage: PlannedStage, plan: Plan) -> dict[str, Any]:
    return {
        "device": stage.device,
        "kind": stage.kind,
        "backend": stage.backend,
        "replicas": stage.replicas,
        "layers": [_layer(name, plan) for name in stage.layers],
        "inputs": list(stage.inputs),
        "outputs": list(stage.outputs),
        "recompute": stage.recompute,
        **_of_types(stage, schema.TypeDecision),
        **({} if stage.sync is None else {"sync": stage.sync.rule}),
    }


def _of_types(stage: PlannedStage, part: type[schema.Part]) -> dict[str, Any]:
    """Return what a part of the file says of the replicas by device type; nothing where a stage has one."""
    if not stage.mixed:
        return {}
    return {
        "mixed": [
            {name: _times(each.times) if name == "times" else getattr(each, name) for name in part.model_fields}
            for each in stage.mixed
        ]
    }


def _times(times: Iterable[MicroBatch]) -> list[dict[str, Any]]:
    parts = schema.MicroBatchEstimate.model_fields
    return [{name: getattr(each, name) for name in parts} for each in times]


def _to_times(parts: Iterable[schema.MicroBatchEstimate]) -> tuple[MicroBatch, ...]:
    return tuple(part.times() for part in parts)


def _of_rule(stage: PlannedStage) -> dict[str, Any]:
    """Return what a stage's estimate says of its rule; nothing where it all-reduces."""
    if stage.sync is None:
        return {}
    return {"sync": {name: getattr(stage.sync, name) for name in schema.SyncEstimate.model_fields}}


def _layer(name: str, plan: Plan) -> dict[str, str]:
    layer = {"name": name, "fingerprint": plan.fingerprints.get(name, "")}
    return layer | {"title": plan.titles[name]} if plan.titles.get(name) else layer


def _stage_estimate(stage: PlannedStage) -> dict[str, Any]:
    memory = stage.memory
    return {
        "compute_s": stage.compute_s,
        "data_s": stage.data_s,
        "sync_s": stage.sync_s,
        "sync_hops_s": stage.sync_hops_s,
        "handling_s": stage.handling_s,
        "update_s": stage.update_s,
        "received_bytes": stage.received_bytes,
        "sent_bytes": stage.sent_bytes,
        "times": _times(stage.times),
        "price_per_hour": stage.price_per_hour,
        **_of_types(stage, schema.TypeEstimate),
        **_of_rule(stage),
        **({} if stage.rows is None else {"rows": asdict(stage.rows)}),
        "memory": None
        if memory is None
        else {
            "weights_bytes": memory.weights_bytes,
            "gradients_bytes": memory.gradients_bytes,
            "optimizer_bytes": memory.optimizer_bytes,
            "activations_bytes": memory.activations_bytes,
            "safety_factor": memory.safety_factor,
            "copies_bytes": memory.copies_bytes,
            "inputs_bytes": memory.inputs_bytes,
            **({"sync_bytes": memory.sync_bytes} if memory.sync_bytes else {}),
        },
    }


def _verification(verification: Verification) -> dict[str, Any]:
    return {
        "max_abs": verification.max_abs,
        "max_rel": verification.max_rel,
        "tolerance": verification.tolerance,
        "outputs": verification.outputs,
        "calls": verification.calls,
        "gradients": verification.gradients,
        "gradients_max_rel": verification.gradients_max_rel,
        "samples": verification.samples,
        "samples_max_rel": verification.samples_max_rel,
    }


def _bindings(model: schema.ModelPart) -> dict[str, int]:
    """Return the numbers of dimensions, those that the compiler chose with their reasons."""
    chosen = {
        name: DefaultSize(model.bindings[name], part.why, is_batch=name == model.batch_symbol, same_as=part.same_as)
        for name, part in model.defaults.items()
        if name in model.bindings
    }
    return {**model.bindings, **chosen}


def to_plan(file: schema.PlanFile) -> Plan:
    """Return the plan that a checked file holds."""
    decisions, estimates = file.decisions, file.estimates
    return Plan(
        model=file.model.name,
        graph_inputs=tuple(file.model.inputs),
        graph_outputs=tuple(file.model.outputs),
        batch=file.model.batch,
        bindings=MappingProxyType(_bindings(file.model)),
        batch_symbol=file.model.batch_symbol,
        request=_request(file.request),
        cluster=file.cluster.name,
        devices=devices_of(file.cluster),
        links=links_of(file.cluster),
        parameter_server=server_of(file.cluster),
        currency=estimates.currency,
        backend=decisions.backend,
        signature=file.model.signature,
        id_tables=MappingProxyType(file.model.id_tables),
        input_values=MappingProxyType(
            {
                name: InputValue(tuple(value.shape), value.sha256, tuple(value.elements))
                for name, value in file.model.values.items()
            }
        ),
        stages=tuple(
            PlannedStage(
                index=index,
                device=decided.device,
                layers=tuple(layer.name for layer in decided.layers),
                inputs=tuple(decided.inputs),
                outputs=tuple(decided.outputs),
                kind=decided.kind,
                backend=decided.backend,
                replicas=decided.replicas,
                recompute=decided.recompute,
                **_fields(estimated, "times", "memory", "mixed", "sync", "rows"),
                times=_to_times(estimated.times),
                sync=_to_rule(decided.sync, estimated.sync),
                mixed=tuple(
                    TypeReplicas(**_fields(of_type), **_fields(taken, "times"), times=_to_times(taken.times))
                    for of_type, taken in zip(decided.mixed, estimated.mixed, strict=True)
                ),
                memory=None if estimated.memory is None else MemoryParts(**_fields(estimated.memory)),
                rows=None if estimated.rows is None else ServedRows(**_fields(estimated.rows)),
            )
            for index, (decided, estimated) in enumerate(zip(decisions.stages, estimates.stages, strict=True))
        ),
        schedule=Schedule(**_fields(decisions.schedule), **_fields(estimates.schedule, "bubble")),
        value=estimates.value,
        bound=estimates.bound,
        bound_of_all_orders=estimates.bound_of_all_orders,
        steady_bound=estimates.steady_bound,
        method=file.provenance.method,
        found_by=file.provenance.found_by,
        evaluations=file.provenance.evaluations,
        throughput_samples_per_s=estimates.throughput_samples_per_s,
        parameter_servers=ParameterServers(decisions.parameter_servers, estimates.parameter_servers_price_per_hour),
        tables=_to_tables(decisions.tables, estimates.tables),
        unused_devices=tuple(estimates.unused_devices),
        other=None if estimates.other_objective is None else OtherPlan(**_fields(estimates.other_objective)),
        replicated=tuple(decisions.replicated),
        notes=tuple(file.notes),
        hashes=MappingProxyType(file.provenance.hashes),
        versions=MappingProxyType(file.provenance.versions),
        fingerprints=MappingProxyType(
            {layer.name: layer.fingerprint for stage in decisions.stages for layer in stage.layers if layer.fingerprint}
        ),
        titles=MappingProxyType(
            {layer.name: layer.title for stage in decisions.stages for layer in stage.layers if layer.title}
        ),
        artifacts=tuple(tuple(Artifact(a.file, a.sha256) for a in files) for files in file.artifacts),
        verification=_to_verification(file.verification),
        scoring=None if decisions.scoring is None else _to_scoring(decisions.scoring),
    )


def _to_rule(decided: str | None, estimated: schema.SyncEstimate | None) -> StageSync | None:
    return None if decided is None or estimated is None else StageSync(decided, **_fields(estimated))


def _to_scoring(part: schema.ScoringPart) -> Scoring:
    files = tuple(tuple(Artifact(a.file, a.sha256) for a in stage.artifacts) for stage in part.stages)
    return Scoring(
        refused=part.refused,
        graph_inputs=tuple(part.inputs),
        graph_outputs=tuple(part.outputs),
        signature=part.signature,
        boundaries=tuple((tuple(stage.inputs), tuple(stage.outputs)) for stage in part.stages),
        artifacts=files if any(files) else (),
        verification=_to_verification(part.verification),
    )


def _to_verification(part: schema.VerificationPart | None) -> Verification | None:
    return None if part is None else Verification(**_fields(part))


def _request(part: schema.RequestPart) -> Request:
    lists = {name: value for name, value in part if isinstance(value, list)}
    pairs: dict[str, Any] = {name: tuple((p.pattern, p.device) for p in value) for name, value in lists.items()}
    request = Request(**_fields(part, *pairs, "reading"), **pairs)
    return request if request.reads == part.reading else replace(request, reading=part.reading)


def _fields(part: schema.Part, *without: str) -> dict[str, Any]:
    return part.model_dump(exclude=set(without))
