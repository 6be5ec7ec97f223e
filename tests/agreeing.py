"""A small model whose plan has replicas that must agree: two products, on GPUs behind a network of 4 GB/s."""

from dataclasses import replace
from typing import Any

from reviewed import GPU
from sketch import sketch

from heterps_compile.api import choose_backend
from heterps_compile.cluster.devices import Cluster, ParameterServer
from heterps_compile.ir.graph import Graph
from heterps_compile.make_plan import make_plan
from heterps_compile.passes.drafts import Draft, Emitted
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.request import make_request

BATCH = 4096
FLOPS = 2 * BATCH * 1024 * 1024
MODEL = f"""
    in x {BATCH}x1024
    par w1 1024x1024
    par w2 1024x1024
    gemm fc1 : x w1 -> a {BATCH}x1024 flops={FLOPS}
    gemm fc2 : a w2 -> b {BATCH}x1024 flops={FLOPS}
    out b
"""
GRADIENT_BYTES = 2 * 4 * 1024 * 1024


def pool(bytes_per_s: float = 4e9, **changes: Any) -> Cluster:
    """Return GPUs of a network, whose memory takes no time where nothing else is said: rules differ by what they move.

    ``changes`` are of the device type.
    """
    usual = {"memory_bytes_per_s": 1e18, "compute_parallel": 1.0, "data_parallel": 1.0, "max_units": 16}
    gpu = replace(GPU, network_bytes_per_s=bytes_per_s, **{**usual, **changes})
    return Cluster("mine", "made up", "USD", (gpu,), parameter_server=ParameterServer(0.04, "made up", "", 1e9))


def graph() -> Graph:
    """Return the model."""
    made = sketch(MODEL, batch=BATCH, name="wide")
    return replace(made, family="onnx", batch_symbol="n", bindings={"n": BATCH})


def agreeing(cluster: Cluster | None = None, **asked: Any) -> Plan:
    """Return the plan: 4 GPUs in one stage, where nothing else is asked."""
    asked = {"mode": "training", "method": "exact", "min_throughput": 5e5, **asked}
    model, request = graph(), make_request("USD", **asked)
    draft = Draft(graph=model, cluster=cluster or pool(), request=request)
    return make_plan(run_to(draft, Emitted), choose_backend(model, None))
