"""The plan of ``plans.py`` as the passes would have left it: a graph, its layers, their costs, a pool, a draft."""

import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from plans import PLAN
from profiles import CPU
from sketch import sketch

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.cost.layer_times import layer_times
from heterps_compile.cost.measured import Measurements
from heterps_compile.cost.problem import MethodResult, Placement, Problem, SearchResult
from heterps_compile.ir.graph import OpKind
from heterps_compile.ir.layers import Layer, LayerGraph
from heterps_compile.ir.partition import cut_graph
from heterps_compile.passes.drafts import Emitted

GRAPH = sketch(
    """
    in ids 64x4
    in dense 64x13
    par table 1000x16
    par w1 29x32
    par w2 32x1
    embedding emb : ids table -> rows 64x16
    gemm fc1 : rows dense w1 -> hidden 64x32 flops=118784
    elementwise relu : hidden -> active 64x32 flops=2048
    gemm fc2 : active w2 -> click 64x1 flops=4096
    out click
    """,
    batch=64,
    name="ctr",
)

LAYERS = LayerGraph(
    GRAPH,
    tuple(
        Layer(GRAPH.nodes[nodes[0]].name, GRAPH.nodes[nodes[0]].kind, nodes, parameters)
        for nodes, parameters in (((0,), ("table",)), ((1, 2), ("w1",)), ((3,), ("w2",)))
    ),
)

COSTS = (
    LayerCost(0, 64000, 4096, 1024, 4096, 9216, 1, "data", "0 FLOP/B < 7 (ridge of cpu)"),
    LayerCost(120832, 3712, 3712, 7424, 8192, 19328, 2, "compute", "9.1 FLOP/B >= 7 (ridge of cpu)"),
    LayerCost(4096, 128, 128, 8192, 256, 8576, 1, "data", "0.478 FLOP/B < 7 (ridge of cpu)"),
)


def device(name: str, kind: str, price_per_hour: float) -> DeviceType:
    return DeviceType(
        name=name,
        kind=kind,
        price_per_hour=price_per_hour,
        price_source="made up",
        max_units=1000,
        memory_bytes=2.0**33,
        peak_flops=MappingProxyType({"float32": 7e10}),
        memory_bytes_per_s=1e10,
        network_bytes_per_s=3.125e8,
        network_latency_s=2e-5,
        input_bytes_per_s=5e8,
        launch_s=2e-6,
        efficiency=0.5,
        compute_parallel=0.99,
        data_parallel=0.98,
    )


CLUSTER = Cluster(
    "heterps-paper",
    "CPU cores and V100 GPUs",
    "USD",
    (device("cpu", "cpu", 0.04), device("v100", "gpu", 2.42), device("t4", "gpu", 0.0)),
    "made up",
)

PROBLEM = Problem(
    **{
        **{name: np.zeros(1) for name in Problem.__dataclass_fields__},
        "layer_names": ("emb", "fc1", "fc2"),
        "type_names": ("cpu", "v100", "t4"),
        "type_kinds": ("cpu", "gpu", "gpu"),
        "batch": 64,
        "compute_s": np.array([[0.001, 0.0001, 0.0002], [0.004, 0.0002, 0.0003], [0.001, 0.0001, 0.0002]]),
        "data_s": np.array([[0.0, 0.002, 0.002], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        "edge_producer": np.array([0, 1]),
        "objective": "cost",
        "allowed": np.array([[True, False, False], [True, True, True], [True, True, True]]),
    }
)

TIMES = layer_times(LAYERS, COSTS, CLUSTER, Measurements({"cpu": CPU}, "5" * 64), training=False)

PARTITION = cut_graph(GRAPH, [(0,), (1, 2, 3)])

SEARCH = SearchResult(Placement((0, 1, 1), (2,)), PLAN.value, PLAN.bound, "rl", 7, 1234, 0.75, found_by="proof")

DRAFT = Emitted(
    graph=GRAPH,
    cluster=CLUSTER,
    request=PLAN.request,
    layers=LAYERS,
    costs=COSTS,
    times=TIMES,
    problem=PROBLEM,
    search=SEARCH,
    tried=(MethodResult("rl", PLAN.value * 1.01, 1200, 0.5), MethodResult("gpu-only", math.inf, 0, 0.0, "no GPU")),
    other=PLAN.other,
    stages=PLAN.stages,
    parameter_servers=PLAN.parameter_servers,
    schedule=PLAN.schedule,
    partition=PARTITION,
    runnable=(print, print),
)


def renamed(name: str) -> Emitted:
    """Return the draft with the first layer, its node and the stage's device renamed."""
    nodes = (replace(GRAPH.nodes[0], name=name), *GRAPH.nodes[1:])
    graph = replace(GRAPH, nodes=nodes)
    layers = LayerGraph(graph, (replace(LAYERS.layers[0], name=name), *LAYERS.layers[1:]))
    stages = (replace(PLAN.stages[0], layers=(name,)), PLAN.stages[1])
    return replace(DRAFT, graph=graph, layers=layers, stages=stages)


def posing(problem: Problem, *, is_chain: bool = True) -> Emitted:
    """Return the draft with another problem, whose layers stand one after the other, or read none of each other."""
    names = problem.layer_names
    reads = [f"v{i}" if is_chain else "v0" for i in range(len(names))]
    nodes = "\n".join(f"gemm {name} : {reads[i]} w -> v{i + 1} 4x4 flops=1" for i, name in enumerate(names))
    outs = [f"out v{i + 1}" for i in range(len(names)) if not is_chain or i + 1 == len(names)]
    graph = sketch("\n".join(["in v0 4x4", "par w 4x4", nodes, *outs]), batch=4)
    layers = LayerGraph(graph, tuple(Layer(name, OpKind.GEMM, (i,), ("w",)) for i, name in enumerate(names)))
    return replace(DRAFT, graph=graph, layers=layers, problem=problem)
