"""Run an ONNX graph and keep values of its nodes by name.

Left out: stages of it (``backends/onnxruntime/``).
"""

from collections.abc import Collection, Mapping
from typing import Any, cast

import onnx_ir as ir

from heterps_compile.ir.graph import Graph

from .onnx_session import open_session


def run_nodes(graph: Graph, inputs: Mapping[str, Any], keep: Collection[str] | None) -> dict[str, Any]:
    """Run all nodes and return the kept values.

    Args:
        graph: Of the family ``"onnx"``.
        inputs: By name.
        keep: Names of values; None for all.
    """
    source: ir.Graph = graph.source.model.graph
    made = [value for node in source for value in node.outputs if value.name]
    kept = [value for value in made if keep is None or value.name in keep]
    view = ir.GraphView(
        source.inputs,
        kept,
        nodes=source,
        initializers=tuple(source.initializers.values()),
        opset_imports=source.opset_imports,
        name=source.name,
    )
    model = ir.Model(cast(Any, view), ir_version=graph.source.model.ir_version)  # a view is documented to do
    names = [value.name or "" for value in kept]
    feeds = {name: inputs[name] for name in graph.inputs}
    return dict(zip(names, open_session(model).run(names, feeds), strict=True))
