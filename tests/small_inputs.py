"""A folder with one small input of every kind: an ONNX model, a workload file, a PipeDream graph, a problem file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_small_inputs(where: Path) -> None:
    """Write ``m.onnx`` (two products, open batch), ``chain.json``, ``graph.txt``, and the head of ``problem.json``."""
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.5} for i in (1, 2, 3)]
    edges[1]["sourceId"] = 1  # a branch, so that a free split may differ from one in a line
    nodes = [_node(1, 1.0), _node(2, 2.0), _node(3, 3.0), _node(4, 2.0)]
    workload = {"maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 100.0, "nodes": nodes, "edges": edges}
    (where / "chain.json").write_text(json.dumps(workload))
    costs = "forward_compute_time={}, backward_compute_time=2.0, activation_size=1000000.0, parameter_size=10.0"
    lines = [f"node{i} -- Linear -- {costs.format(float(i))}" for i in (1, 2, 3)] + [
        "\tnode1 -- node2",
        "\tnode2 -- node3",
    ]
    (where / "graph.txt").write_text("\n".join(lines) + "\n")
    (where / "problem.json").write_text('{"format": "heterps-compile problem"}')
    weights = [numpy_helper.from_array(np.full((8, 8), 0.1, np.float32), f"w{n}") for n in (1, 2)]
    names = (("x", "w1", "h"), ("h", "w2", "y"))
    steps = [helper.make_node("MatMul", [x, w], [y], name=f"fc{w[1]}") for x, w, y in names]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "rows", 8]) for name in ("x", "y")]
    graph = helper.make_graph(steps, "two", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), where / "m.onnx")


def _node(name: int, accelerator_ms: float) -> dict[str, Any]:
    return {
        "id": name, "supportedOnFpga": 1, "cpuLatency": 4.0, "fpgaLatency": accelerator_ms, "isBackwardNode": 0,
        "size": 8.0,
    }  # fmt: skip
