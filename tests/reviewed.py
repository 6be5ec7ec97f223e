"""A small model with a plan of its own, made by the real passes without building anything."""

from dataclasses import replace
from types import MappingProxyType

from sketch import sketch

from heterps_compile.api import choose_backend
from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.ir.graph import Graph
from heterps_compile.make_plan import make_plan
from heterps_compile.passes.drafts import Draft, Emitted
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.request import Request

# An embedding, which is pinned to the cores, and products that compute much and want the GPU.
MODEL = """
    in ids 64x4
    par table 100000x64
    par w1 64x4096
    par w2 4096x4096
    par w3 4096x1
    embedding emb : ids table -> rows 64x64
    gemm fc1 : rows w1 -> a 64x4096 flops=33554432
    elementwise act : a -> b 64x4096 flops=262144
    gemm fc2 : b w2 -> c 64x4096 flops=2147483648
    gemm head : c w3 -> click 64x1 flops=524288
    out click
"""


def device(name: str, kind: str, price_per_hour: float, flops: float, **changes: object) -> DeviceType:
    made = DeviceType(
        name=name,
        kind=kind,
        price_per_hour=price_per_hour,
        price_source="made up",
        max_units=100,
        memory_bytes=2.0**34,
        peak_flops=MappingProxyType({"float32": flops}),
        memory_bytes_per_s=1e10 if kind == "cpu" else 9e11,
        network_bytes_per_s=1e9,
        network_latency_s=2e-5,
        input_bytes_per_s=1e9,
        launch_s=1e-6,
        efficiency=0.5,
        compute_parallel=0.95,
        data_parallel=0.9,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


CPU, GPU = device("cpu", "cpu", 0.04, 7e10), device("gpu", "gpu", 2.42, 1.4e13)
POOL = Cluster("mine", "made up", "USD", (CPU, GPU))
REQUEST = Request(method="exact", min_throughput=10000.0, pins=(("emb", "cpu"),))


def graph(text: str = MODEL) -> Graph:
    return replace(sketch(text, batch=64, name="ctr"), family="onnx")


def plan(request: Request = REQUEST, pool: Cluster = POOL, text: str = MODEL) -> Plan:
    """Return the plan that the passes make."""
    model = graph(text)
    return make_plan(run_to(Draft(graph=model, cluster=pool, request=request), Emitted), choose_backend(model, None))
