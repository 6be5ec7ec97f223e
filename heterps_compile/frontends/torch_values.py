"""Run a torch graph node by node, keep values by name, and replace some of them.

Left out: stages as modules (``backends/torch/``).
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from heterps_compile.ir.graph import Graph, Node

from .torch_modes import training_nodes

StandIn = Callable[[str, Any], Any]
"""Replaces a value, passed its name and itself."""

_BY_RANGE = ("choose_qparams", "linear_dynamic", "linear_relu_dynamic")


class NodeError(Exception):
    """A node does not run; ``node`` is its name."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node


def excused_nodes(graph: Graph) -> list[Node]:
    """List nodes that draw, normalise or quantise by the batch."""
    nodes, training = list(graph.source.graph.nodes), set(training_nodes(graph))
    return [node for node in graph.nodes if node.draws or _is_of_batch(graph, nodes[node.origin], training)]


def branching_nodes(graph: Graph) -> list[str]:
    """List the names of nodes that run one of two branches."""
    return [node.name for node in graph.nodes if node.op.endswith(".cond")]


def _is_of_batch(graph: Graph, node: fx.Node, training: Collection[str]) -> bool:
    if node.op == "call_module":
        module = graph.source.modules.get(str(node.target))
        return isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None)
    return node.name in training or any(name in str(node.target) for name in _BY_RANGE)


class NodeRuns:
    """Runs of all nodes, one by one and without gradients, that keep copies of some values.

    Args:
        graph: Of the family ``"torch"``; buffers that it changes stay changed.
        keep: Names of values.
        excused: Names of values that are replaced in parts.
    """

    def __init__(self, graph: Graph, keep: Collection[str], excused: Collection[str]) -> None:
        self._graph, self._keep, self._excused = graph, keep, excused

    def whole(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run on inputs by name.

        Raises:
            NodeError: naming the node that does not run.
        """
        return self._run(inputs, lambda _, value: value)

    def part(self, inputs: Mapping[str, Any], stand_in: StandIn) -> dict[str, Any]:
        """Run on inputs by name, excused values replaced.

        Raises:
            NodeError: naming the node that does not run.
        """
        return self._run(inputs, lambda name, value: stand_in(name, value) if name in self._excused else value)

    def _run(self, inputs: Mapping[str, Any], stand_in: StandIn) -> dict[str, Any]:
        run = _Run(self._graph, self._keep, stand_in)
        copies = [pytree.tree_map(_copy, inputs[name]) for name in self._graph.inputs]
        try:
            with torch.no_grad():
                run.run(*copies, enable_io_processing=False)
        except Exception as error:
            raise NodeError(run.node) from error
        return run.kept


class _Run(fx.Interpreter):
    def __init__(self, graph: Graph, keep: Collection[str], stand_in: StandIn) -> None:
        super().__init__(nn.Module(), graph=graph.source.graph)
        self._source, self._keep, self._stand_in = graph.source, keep, stand_in
        self.node = ""
        self.kept: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and keep a copy of its result."""
        self.node = n.name
        result = super().run_node(n)
        if n.op not in ("output", "get_attr"):
            result = self._stand_in(n.name, result)
        if n.op != "output" and n.name in self._keep:
            self.kept[n.name] = pytree.tree_map(_copy, result)
        if n.op == "output":  # as they are now: a later node may have changed them in place
            self.kept.update((each.name, pytree.tree_map(_copy, self.env[each])) for each in n.all_input_nodes)
        return result

    def fetch_attr(self, target: str) -> Any:
        """Fetch a tensor or module of the model; their names are data."""
        return self._source.tensors[target] if target in self._source.tensors else self._source.modules[target]


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
