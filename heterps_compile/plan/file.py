"""``plan.json``: a plan as a small text file that is versioned, deterministic, and reads well in a diff.

The same plan gives the same bytes: keys in the order of the schema, one layer and one value per line, everything
outside printable ASCII escaped (so that no name can play tricks on a reviewer's screen).

Left out: the times spent (``search_s``, ``total_s``), which differ from run to run and read back as 0; weights and
code (they are the artefacts of the folder, ``folder.py``).
"""

import json
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from heterps_compile.cost.memory import MemoryParts
from heterps_compile.errors import PlanError
from heterps_compile.escape import shorten

from . import schema
from .plan import Artifact, ParameterServers, Plan, PlannedStage, Schedule, Verification
from .request import Request

_MAKERS = ("heterps-compile", "numpy", "onnx", "onnxruntime", "torch")
_ONE_LINE_DEPTH = 3  # of pins, memory parts and artefacts
_SHOWN_INPUT = 60


def installed_versions() -> dict[str, str]:
    """Give the versions of what shapes a plan, by distribution name."""
    found = {}
    for name in _MAKERS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def to_json(plan: Plan, versions: Mapping[str, str] | None = None) -> str:
    """Write a plan as the text of ``plan.json``.

    Args:
        plan: A complete plan: provisioned and scheduled.
        versions: What made it; the installed versions where not given.

    Raises:
        PlanError: where the plan breaks the schema, naming the JSON path; reading it back would fail.
    """
    document = _document(plan, installed_versions() if versions is None else versions)
    return _render(_check(document, "the plan").model_dump()) + "\n"


def from_json(text: str, where: str) -> Plan:
    """Read a plan from the text of ``plan.json``.

    Args:
        text: The file's text.
        where: What to call the file in messages.

    Raises:
        PlanError: where anything is wrong, naming the JSON path and what was expected.
    """
    try:
        document = json.loads(text, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise PlanError(f"{where} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except _BadJsonError as error:
        raise PlanError(f"{where}: {error}") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 100,000 brackets
        raise PlanError(f"{where} is no plan: it holds a number too long or brackets too deep") from error
    return _plan(_check(document, where))


class _BadJsonError(Exception):
    """The text is JSON to Python, but not to us."""


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _BadJsonError(f"the key {twice!r} stands twice in one record; a merge gone wrong?")
    return record


def _no_constant(name: str) -> Any:
    raise _BadJsonError(f"{name} is no number")


def _check(document: Any, where: str) -> schema.PlanFile:
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is not int:
        raise PlanError(f'{where} is no plan: expected a record with "version": {schema.VERSION}')
    if version > schema.VERSION:
        raise PlanError(
            f"{where} has version {version}, this heterps-compile reads version {schema.VERSION}: "
            f"a newer release wrote it, so upgrade (pip install --upgrade heterps-compile) or compile again"
        )
    try:
        file = schema.PlanFile.model_validate(document)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        raise PlanError(f"{where}: {_fault(faults[0])}{_more(len(faults))}") from error
    wrong = list(schema.contradictions(file))
    if wrong:
        path, fault = wrong[0]
        raise PlanError(f"{where}: {path}: {fault}{_more(len(wrong))}")
    return file


def _more(count: int) -> str:
    return f" (and {count - 1} more faults)" if count > 1 else ""


def _fault(fault: Any) -> str:
    path = ""
    for part in fault["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += ("." if path else "") + (part if part.isidentifier() else repr(part))
    if fault["type"] == "extra_forbidden":
        return f"{path}: unknown key"
    if fault["type"] == "missing":
        return f"{path}: the key is missing"
    return f"{path}: {fault['msg']}, got {shorten(repr(fault['input']), _SHOWN_INPUT)}"


def _render(value: Any, depth: int = 0) -> str:
    """Lay out JSON with one entry a line, but a small record of plain values deep inside on one line."""
    if isinstance(value, dict):
        brackets, entries = "{}", [(f"{json.dumps(key)}: ", item) for key, item in value.items()]
        is_small = depth >= _ONE_LINE_DEPTH and not any(isinstance(item, dict | list) for item in value.values())
    elif isinstance(value, list):
        brackets, entries, is_small = "[]", [("", item) for item in value], False
    else:
        return json.dumps(value, allow_nan=False)
    if is_small or not entries:
        return brackets[0] + ", ".join(key + _render(item) for key, item in entries) + brackets[1]
    inner = ",\n".join("  " * (depth + 1) + key + _render(item, depth + 1) for key, item in entries)
    return f"{brackets[0]}\n{inner}\n{'  ' * depth}{brackets[1]}"


def _document(plan: Plan, versions: Mapping[str, str]) -> dict[str, Any]:
    request = plan.request
    return {
        "version": schema.VERSION,
        "model": {
            "name": plan.model,
            "inputs": list(plan.graph_inputs),
            "outputs": list(plan.graph_outputs),
            "batch": plan.batch,
            "bindings": dict(sorted(plan.bindings.items())),
            "signature": plan.signature,
        },
        "request": {
            "objective": request.objective,
            "min_throughput": request.min_throughput,
            "budget_per_hour": request.budget_per_hour,
            "mode": request.mode,
            "method": request.method,
            "min_stages": request.min_stages,
            "max_stages": request.max_stages,
            "provisioner": request.provisioner,
            "synchronisation": request.synchronisation,
            "pins": [{"pattern": pattern, "device": device} for pattern, device in request.pins],
            "seed": request.seed,
            "time_limit_s": request.time_limit_s,
        },
        "decisions": {
            "cluster": plan.cluster,
            "backend": plan.backend,
            "stages": [_stage_decision(stage) for stage in plan.stages],
            "schedule": {"name": plan.schedule.name, "micro_batches": plan.schedule.micro_batches},
            "parameter_servers": plan.parameter_servers.count,
            "replicated": list(plan.replicated),
        },
        "estimates": {
            "currency": plan.currency,
            "value": plan.value,
            "bound": plan.bound,
            "throughput_samples_per_s": plan.throughput_samples_per_s,
            "stages": [_stage_estimate(stage) for stage in plan.stages],
            "schedule": {
                "step_s": plan.schedule.step_s,
                "bubble": plan.schedule.bubble,
                "reason": plan.schedule.reason,
            },
            "parameter_servers_price_per_hour": plan.parameter_servers.price_per_hour,
            "unused_devices": list(plan.unused_devices),
        },
        "notes": list(plan.notes),
        "verification": None if plan.verification is None else _verification(plan.verification),
        "provenance": {
            "method": plan.method,
            "evaluations": plan.evaluations,
            "hashes": dict(sorted(plan.hashes.items())),
            "versions": dict(sorted(versions.items())),
        },
        "artifacts": [[{"file": a.file, "sha256": a.sha256} for a in files] for files in plan.artifacts],
    }


def _stage_decision(stage: PlannedStage) -> dict[str, Any]:
    return {
        "device": stage.device,
        "kind": stage.kind,
        "backend": stage.backend,
        "replicas": stage.replicas,
        "layers": list(stage.layers),
        "inputs": list(stage.inputs),
        "outputs": list(stage.outputs),
    }


def _stage_estimate(stage: PlannedStage) -> dict[str, Any]:
    memory = stage.memory
    return {
        "compute_s": stage.compute_s,
        "data_s": stage.data_s,
        "received_bytes": stage.received_bytes,
        "sent_bytes": stage.sent_bytes,
        "price_per_hour": stage.price_per_hour,
        "memory": None
        if memory is None
        else {
            "weights_bytes": memory.weights_bytes,
            "gradients_bytes": memory.gradients_bytes,
            "optimizer_bytes": memory.optimizer_bytes,
            "activations_bytes": memory.activations_bytes,
            "safety_factor": memory.safety_factor,
        },
    }


def _verification(verification: Verification) -> dict[str, Any]:
    return {
        "max_abs": verification.max_abs,
        "max_rel": verification.max_rel,
        "tolerance": verification.tolerance,
        "outputs": verification.outputs,
    }


def _plan(file: schema.PlanFile) -> Plan:
    decisions, estimates = file.decisions, file.estimates
    return Plan(
        model=file.model.name,
        graph_inputs=tuple(file.model.inputs),
        graph_outputs=tuple(file.model.outputs),
        batch=file.model.batch,
        bindings=MappingProxyType(file.model.bindings),
        request=Request(**_fields(file.request, "pins"), pins=tuple((p.pattern, p.device) for p in file.request.pins)),
        cluster=decisions.cluster,
        currency=estimates.currency,
        backend=decisions.backend,
        signature=file.model.signature,
        stages=tuple(
            PlannedStage(
                index=index,
                device=decided.device,
                layers=tuple(decided.layers),
                inputs=tuple(decided.inputs),
                outputs=tuple(decided.outputs),
                kind=decided.kind,
                backend=decided.backend,
                replicas=decided.replicas,
                **_fields(estimated, "memory"),
                memory=None if estimated.memory is None else MemoryParts(**_fields(estimated.memory)),
            )
            for index, (decided, estimated) in enumerate(zip(decisions.stages, estimates.stages, strict=True))
        ),
        schedule=Schedule(**_fields(decisions.schedule), **_fields(estimates.schedule)),
        value=estimates.value,
        bound=estimates.bound,
        method=file.provenance.method,
        evaluations=file.provenance.evaluations,
        throughput_samples_per_s=estimates.throughput_samples_per_s,
        parameter_servers=ParameterServers(decisions.parameter_servers, estimates.parameter_servers_price_per_hour),
        unused_devices=tuple(estimates.unused_devices),
        replicated=tuple(decisions.replicated),
        notes=tuple(file.notes),
        hashes=MappingProxyType(file.provenance.hashes),
        artifacts=tuple(tuple(Artifact(a.file, a.sha256) for a in files) for files in file.artifacts),
        verification=None if file.verification is None else Verification(**_fields(file.verification)),
    )


def _fields(part: schema.Part, *without: str) -> dict[str, Any]:
    return part.model_dump(exclude=set(without))
