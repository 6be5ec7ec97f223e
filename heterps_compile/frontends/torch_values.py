"""Run a torch graph node by node and keep values by name.

Left out: stages as modules (``backends/torch/``).
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from heterps_compile.ir.graph import Graph

StandIn = Callable[[str, Any], Any]
"""Replaces a node's result, given the node's name and result."""


class NodeError(Exception):
    """A node does not run; ``node`` is its name."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node


def run_nodes(
    graph: Graph, inputs: Mapping[str, Any], keep: Collection[str] | None, stand_in: StandIn | None = None
) -> dict[str, Any]:
    """Run all nodes without gradients and return copies of the kept values.

    Args:
        graph: Of the family ``"torch"``; buffers that it changes stay changed.
        inputs: By name.
        keep: Names of values; None for all.
        stand_in: Replaces results; None to keep them.

    Raises:
        NodeError: naming the node.
    """
    run = _Run(graph, keep, stand_in)
    copies = [pytree.tree_map(_copy, inputs[name]) for name in graph.inputs]
    try:
        with torch.no_grad():
            run.run(*copies, enable_io_processing=False)
    except Exception as error:
        raise NodeError(run.node) from error
    return run.kept


class _Run(fx.Interpreter):
    def __init__(self, graph: Graph, keep: Collection[str] | None, stand_in: StandIn | None) -> None:
        super().__init__(nn.Module(), graph=graph.source.graph)
        self._source, self._keep, self._stand_in = graph.source, keep, stand_in
        self.node = ""
        self.kept: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and keep a copy of its result."""
        self.node = n.name
        result = super().run_node(n)
        if self._stand_in is not None and n.op not in ("output", "get_attr"):
            result = self._stand_in(n.name, result)
        if n.op != "output" and (self._keep is None or n.name in self._keep):
            self.kept[n.name] = pytree.tree_map(_copy, result)
        if n.op == "output":  # as they are now: a later node may have changed them in place
            self.kept.update((each.name, pytree.tree_map(_copy, self.env[each])) for each in n.all_input_nodes)
        return result

    def fetch_attr(self, target: str) -> Any:
        """Fetch a tensor or module of the model; their names are data."""
        return self._source.tensors[target] if target in self._source.tensors else self._source.modules[target]


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
