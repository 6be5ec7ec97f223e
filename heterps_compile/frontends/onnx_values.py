"""Run an ONNX graph, keep values of its nodes by name, and replace some of them.

Left out: stages of it (``backends/onnxruntime/``).
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, cast

import onnx_ir as ir

from heterps_compile.errors import BackendError
from heterps_compile.ir.graph import Graph, Node

from .onnx_session import ORT_ERRORS, Session, open_session, reason

_BY_RANGE = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})

StandIn = Callable[[str, Any], Any]
"""Replaces a value, passed its name and itself."""


def excused_nodes(graph: Graph) -> list[Node]:
    """List nodes that draw, normalise or quantise by the batch."""
    nodes = list(graph.source.model.graph)
    return [node for node in graph.nodes if node.draws or _is_of_batch(nodes[node.origin])]


def branching_nodes(graph: Graph) -> list[str]:
    """List the names of nodes that run one of two branches, in subgraphs too."""
    nodes = ir.traversal.RecursiveGraphIterator(graph.source.model.graph)
    return [node.name or node.op_type for node in nodes if node.op_type == "If"]


def _is_of_batch(node: ir.Node) -> bool:
    mode = node.attributes.get("training_mode")
    return node.op_type in _BY_RANGE or (node.op_type == "BatchNormalization" and mode is not None and mode.value == 1)


class NodeRuns:
    """Runs of all nodes that keep some values.

    Args:
        graph: Of the family ``"onnx"``.
        keep: Names of values.
        excused: Names of values that are replaced in parts.
    """

    def __init__(self, graph: Graph, keep: Collection[str], excused: Collection[str]) -> None:
        self._graph, self._excused = graph, excused
        self._kept = [v.name for node in graph.source.model.graph for v in node.outputs if v.name in keep]
        self._run: Callable[[Mapping[str, Any]], list[Any]] | None = None
        self._fed: Callable[[Mapping[str, Any]], list[Any]] | None = None

    def whole(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run on inputs by name."""
        if self._run is None:
            self._run = partial(self._opened({}).run, self._kept)
        feeds = {name: inputs[name] for name in self._graph.inputs}
        return dict(zip(self._kept, self._run(feeds), strict=True))

    def part(self, inputs: Mapping[str, Any], stand_in: StandIn) -> dict[str, Any]:
        """Run on inputs by name, excused values replaced.

        Raises:
            BackendError: if ONNX Runtime does not take them as inputs.
        """
        found = self.whole(inputs)
        replaced = {name: stand_in(name, found[name]) for name in self._excused if name in found}
        if not replaced:
            return found
        rest = [name for name in self._kept if name not in replaced]
        if self._fed is None:
            try:
                self._fed = partial(self._opened(replaced).run, rest)
            except ORT_ERRORS as error:
                raise BackendError(f"ONNX Runtime does not take what nodes draw as inputs: {reason(error)}") from error
        feeds = {**{name: inputs[name] for name in self._graph.inputs}, **replaced}
        return {**dict(zip(rest, self._fed(feeds), strict=True)), **replaced}

    def _opened(self, fed: Mapping[str, Any]) -> Session:
        """Open a session with these values as inputs."""
        source: ir.Graph = self._graph.source.model.graph
        values = {value.name: value for node in source for value in node.outputs if value.name}
        left_out = {node for node in source if any(value.name in fed for value in node.outputs)}
        weights = [w for w in source.initializers.values() if not w.uses() or {u.node for u in w.uses()} - left_out]
        view = ir.GraphView(
            [*source.inputs, *(_input_of(name, array) for name, array in fed.items())],
            [values[name] for name in self._kept if name and name not in fed],
            nodes=[node for node in source if node not in left_out],
            initializers=weights,
            opset_imports=source.opset_imports,
            name=source.name,
        )
        model = ir.Model(cast(Any, view), ir_version=self._graph.source.model.ir_version)  # a view is documented to do
        return open_session(model)


def _input_of(name: str, array: Any) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)))
