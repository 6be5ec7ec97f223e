"""Cut an ONNX model into stages, run them, and run the original as its own oracle."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import parser

from heterps_compile.backends.onnxruntime.backend import OnnxRuntimeBackend
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.laws import verify_graph
from heterps_compile.ir.partition import Partition, cut_graph
from heterps_compile.runtime.in_process import run_stages

BACKEND = OnnxRuntimeBackend()


def parse(text: str, *, opset: int = 18, domains: Sequence[str] = (), functions: str = "") -> onnx.ModelProto:
    """Return the model that ONNX's own text format describes: ``g (float[N] x) => (float[N] y) { y = Relu(x) }``."""
    imports = ", ".join(f'"{domain}":{version}' for domain, version in [("", opset), *((d, 1) for d in domains)])
    return parser.parse_model(f"<ir_version: 9, opset_import: [{imports}]> {text} {functions}")


def read(text: str, **options: Any) -> Graph:
    """Import a model in text; the graph keeps every law."""
    graph = import_onnx(parse(text), **options)
    verify_graph(graph)
    return graph


def cut_evenly(graph: Graph, count: int) -> Partition:
    """Cut a graph into stages of equally many neighbouring nodes."""
    total = len(graph.nodes)
    return cut_graph(graph, [range(i * total // count, (i + 1) * total // count) for i in range(count)])


def run_staged(graph: Graph, partition: Partition, inputs: Mapping[str, Any]) -> list[Any]:
    """Build the stages and run them in one process; give the graph's outputs in order."""
    stages = BACKEND.build(graph, partition)
    values = run_stages(partition.stages, stages, inputs, graph.outputs)
    return [values[name] for name in graph.outputs]


def run_whole(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Run a model as it is in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    results: list[Any] = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, dict(inputs))
    return results


def by_rounding(model: onnx.ModelProto, inputs: Mapping[str, Any], whole: Sequence[Any]) -> float:
    """Return how far a model's outputs may be apart, relative to their scale, for want of digits alone.

    It is ten times what they move where every input moves by its last bit (1e-5 at least): how much a deep network with
    random weights multiplies the rounding of its first layers is its own, and differs by processor.
    """
    floats = {name: np.asarray(value) for name, value in inputs.items() if np.asarray(value).dtype.kind == "f"}
    moved = {name: np.nextafter(value, value.dtype.type(np.inf)) for name, value in floats.items()}
    return max(1e-5, 10 * largest_difference(run_whole(model, {**inputs, **moved}), whole))


def largest_difference(staged: Sequence[Any], whole: Sequence[Any]) -> float:
    """Return the largest difference relative to the scale of its output; infinite where shapes or types differ."""
    worst = 0.0
    for ours, theirs in zip(staged, whole, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return float("inf")
        if ours.size:
            wide = theirs.astype(np.float64)
            difference = np.abs(ours.astype(np.float64) - wide).max()
            worst = max(worst, float(difference / max(np.abs(wide).max(), 1e-30)))
    return worst
