"""A plan to print, write and read: two stages, three layers, every field filled in."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from heterps_compile.cluster.devices import DeviceType, Link, ParameterServer
from heterps_compile.cost.memory import MemoryParts
from heterps_compile.plan.file import to_json
from heterps_compile.plan.other_plan import OtherPlan
from heterps_compile.plan.plan import Plan, Verification
from heterps_compile.plan.planned_schedule import Schedule
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.request import Request
from heterps_compile.schedule.micro_batch import MicroBatch

VERSIONS = {"heterps-compile": "0.1.0", "numpy": "2.0.0"}


def pool_device(name: str, kind: str, price_per_hour: float, max_units: int, memory_bytes: float) -> DeviceType:
    """Return a device type with a data sheet; GPUs run compute alone and share a storage."""
    return DeviceType(
        name,
        kind,
        price_per_hour,
        "a price list",
        max_units,
        memory_bytes,
        MappingProxyType({"float16": 2e13, "float32": 1e13}),
        9e11,
        1.25e9,
        5e-5,
        2e9,
        5e-6,
        0.5,
        0.95,
        0.9,
        "2026-11-20",
        3e9 if kind == "gpu" else inf,
        ("compute",) if kind == "gpu" else None,
    )


PLAN = Plan(
    model="ctr",
    graph_inputs=("ids", "dense"),
    graph_outputs=("click",),
    batch=64,
    bindings=MappingProxyType({"N": 64}),
    batch_symbol="N",
    request=Request(
        min_throughput=1000.0, min_stages=2, max_stages=4, pins=(("embedding", "cpu"),), seed=7, time_limit_s=2.5
    ),
    cluster="heterps-paper",
    currency="USD",
    backend="onnxruntime",
    stages=(
        PlannedStage(
            index=0,
            device="cpu",
            layers=("emb",),
            inputs=("ids",),
            outputs=("rows",),
            kind="cpu",
            backend="onnxruntime",
            replicas=12,
            compute_s=0.001,
            data_s=0.004,
            received_bytes=0,
            sent_bytes=4096,
            times=(MicroBatch(1, 0.048), MicroBatch(4, 0.012)),
            memory=MemoryParts(1_000_000, 0, 0, 8192, 1.2),
            price_per_hour=0.48,
        ),
        PlannedStage(
            index=1,
            device="v100",
            layers=("fc1", "fc2"),
            inputs=("rows", "dense"),
            outputs=("click",),
            kind="gpu",
            backend="onnxruntime",
            replicas=1,
            compute_s=0.003,
            data_s=0.0005,
            received_bytes=4096,
            sent_bytes=0,
            times=(MicroBatch(1, 0.003), MicroBatch(4, 0.00075)),
            memory=MemoryParts(2_000_000, 0, 0, 16384, 1.2),
            price_per_hour=2.42,
        ),
    ),
    schedule=Schedule("gpipe", 4, "4 micro-batches take 9 ms, 1 takes 12 ms", 0.009),
    value=2.9 / 3600 / 16000.0 * 1e6,
    bound=0.05,
    steady_bound=0.01,
    bound_of_all_orders=0.048,
    method="rl",
    found_by="proof",
    evaluations=1234,
    throughput_samples_per_s=16000.0,
    signature='{"inputs": ["ids", "dense"]}',
    unused_devices=("t4",),
    other=OtherPlan("price", 0.8, 1100.0, MappingProxyType({"cpu": 20}), is_proven=True),
    replicated=("shared.weight",),
    notes=("layer 'fc2': float8 runs at its float32 rate on 'cpu'",),
    hashes=MappingProxyType(
        {"cluster": "b" * 64, "model": "a" * 64, "options": "c" * 64, "profile": "", "weights": "d" * 64}
    ),
    versions=MappingProxyType(VERSIONS),
    devices=(
        pool_device("cpu", "cpu", 0.04, 1000, 4e9),
        pool_device("v100", "gpu", 2.42, 64, 16e9),
        pool_device("t4", "gpu", 0.35, 8, 16e9),
    ),
    links=(Link(("cpu", "v100"), 1e9, 1e-5),),
    parameter_server=ParameterServer(0.05, "a price list", "2026-11", 2e9),
    fingerprints=MappingProxyType(
        {
            "emb": "00000000000a-1a0000000000-2a0000000000",
            "fc1": "00000000000b-1b0000000000-2b0000000000",
            "fc2": "00000000000c-1c0000000000-2c0000000000",
        }
    ),
    verification=Verification(1.5e-7, 2.5e-7, 1e-4, 1),
    search_s=0.75,
    total_s=3.25,
)


def as_read(plan: Plan) -> Plan:
    """Return the plan as it comes back from its file: the times spent are not in there."""
    return replace(plan, search_s=0.0, total_s=0.0)


def with_stage(plan: Plan, index: int, **changes: Any) -> Plan:
    stages = list(plan.stages)
    stages[index] = replace(stages[index], **changes)
    return replace(plan, stages=tuple(stages))


def write_two_stages(folder: Path) -> list[list[str]]:
    """Write what a backend might: one file for the first stage, two for the second."""
    (folder / "stage_0.onnx").write_bytes(b"first")
    (folder / "stage_1.onnx").write_bytes(b"second")
    (folder / "stage_1.onnx.data").write_bytes(b"weights")
    return [["stage_0.onnx"], ["stage_1.onnx", "stage_1.onnx.data"]]


def version_2() -> dict[str, Any]:
    """Return the plan as version 2 of the file had it."""
    document: dict[str, Any] = json.loads(to_json(PLAN))
    document["version"] = 2
    for estimate in document["estimates"]["stages"]:
        scheduled = estimate.pop("times")[-1]
        estimate |= {"micro_batch_forward_s": scheduled["forward_s"], "micro_batch_backward_s": 0.0}
    del document["cluster"]["links"], document["cluster"]["parameter_server"]
    for device in document["cluster"]["devices"]:
        del device["data_sheet"]
    return document


def version_1() -> dict[str, Any]:
    """Return the plan as version 1 of the file had it."""
    document = version_2()
    document["version"] = 1
    document["decisions"] = {"cluster": document.pop("cluster")["name"], **document["decisions"]}
    for stage in document["decisions"]["stages"]:
        stage["layers"] = [layer["name"] for layer in stage["layers"]]
    for estimate in document["estimates"]["stages"]:
        del estimate["micro_batch_forward_s"], estimate["micro_batch_backward_s"]
    del document["request"]["forbidden"]
    document["provenance"]["hashes"] = {"cluster": "1" * 64, "model": "a" * 64, "request": "3" * 64}
    return document
