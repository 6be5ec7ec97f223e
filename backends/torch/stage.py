"""A stage in memory: an ``nn.Module`` with the nodes of one cut and the model's own parameters.

The nodes run as an fx graph without attributes of its own: parameters enter it as arguments, so that no name of
the model reaches generated code.

Left out: stages read from files (``read_stage.py``).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable
from heterps_compile.frontends.torch_memory import storages
from heterps_compile.frontends.torch_program import storage_key
from heterps_compile.frontends.torch_source import TorchSource
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import StageCut, tied_names

from .holder import Slot, hold_module, hold_tensor


class TorchStage(nn.Module):
    """One runnable stage; ``state_dict`` keys are the whole model's.

    Attributes:
        index: Its place in the order of execution.
        inputs: Names of the values ``forward`` takes, in order.
        outputs: Names of the values it gives, in order; always a tuple.
        parameter_names: Names of the parameters the body takes before the inputs, in order.
        tied_as: Of its tensors that go by several names in the model: the one the plan has, by its name here.
        body: The nodes, as a module without parameters of its own.
    """

    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameter_names: tuple[str, ...]
    tied_as: Mapping[str, str]
    body: fx.GraphModule
    _slots: tuple[Slot, ...]

    def __init__(self, cut: StageCut, parameter_names: tuple[str, ...]) -> None:
        super().__init__()
        # straight into the instance, which goes before a submodule or parameter of the same name
        self.__dict__.update(index=cut.index, inputs=cut.inputs, outputs=cut.outputs, parameter_names=parameter_names)

    def forward(self, *values: Any) -> tuple[Any, ...]:
        """Run the stage on its inputs in order."""
        result: tuple[Any, ...] = self.body(*(table[key] for table, key in self._slots), *values)
        return result


def build_stage(graph: Graph, cut: StageCut, *, with_unread: bool = True) -> TorchStage:
    """Build one stage that shares the model's tensors.

    Args:
        graph: The whole model.
        cut: The stage.
        with_unread: Whether to hold what belongs to its modules and no node reads, further names of a tensor too.

    Raises:
        BackendError: naming stage and node.
    """
    source: TorchSource = graph.source
    builder = _Builder(graph, cut, source)
    stage = TorchStage(cut, builder.parameter_names)
    for target in sorted(builder.module_targets, key=lambda path: path.count(".")):
        hold_module(stage, target, source.modules[target])
    held = {}
    tied_as = tied_names(graph, cut)
    for name in cut.parameters:
        own = source.tensors[name]
        for one in (name, *(source.companions.get(name, ()) if with_unread else ())):
            tensor = source.tensors[one]
            held[one] = hold_tensor(stage, one, tensor, is_transient=one in source.transient)
            if one != name and storage_key(one, tensor) == storage_key(name, own):
                tied_as[one] = graph.parameters[name].storage
    stage.__dict__["tied_as"] = tied_as
    stage.__dict__["_slots"] = tuple(held[name] for name in builder.parameter_names)
    stage.__dict__["body"] = builder.build()
    return stage


class _Builder:
    """Copies the nodes of one cut into a graph of their own."""

    def __init__(self, graph: Graph, cut: StageCut, source: TorchSource) -> None:
        self.graph, self.cut, self.source = graph, cut, source
        self.all_nodes = list(source.graph.nodes)
        self.nodes = [self.all_nodes[graph.nodes[i].origin] for i in cut.nodes]
        read = [n for node in self.nodes for n in node.all_input_nodes if n.op == "get_attr"]
        self.parameter_names = tuple(dict.fromkeys(str(n.target) for n in read if str(n.target) in source.tensors))
        self.module_targets = tuple(dict.fromkeys(str(n.target) for n in self.nodes if n.op == "call_module"))
        self._roots: dict[str, nn.Module] = {}
        self._parameters: dict[str, fx.Node] = {}
        self._env: dict[str, fx.Node] = {}
        self._body = fx.Graph()

    def build(self) -> fx.GraphModule:
        values = {n.name: n for n in self.all_nodes if n.op != "get_attr"}
        attributes = {str(n.target): n for n in self.all_nodes if n.op == "get_attr"}
        for name in self.parameter_names:
            self._parameters[name] = self._placeholder(attributes[name])
        for name in self.cut.inputs:
            self._env[name] = self._placeholder(values[name])
        written = self._written()
        for name in self.cut.inputs:
            if storages(values[name]) & written:
                self._env[name] = self._clone(self._env[name])
        sent: dict[str, fx.Node] = {}
        for node in self.nodes:
            self._env[node.name] = self._copy(node)
            if node.name in self.cut.outputs and self._changes_later(node):
                sent[node.name] = self._clone(self._env[node.name])
        self._body.output(tuple(sent.get(name, self._env[name]) for name in self.cut.outputs))
        try:
            return fx.GraphModule(self._roots, self._body)
        except Exception as error:
            raise BackendError(f"stage {self.cut.index} cannot be built: {printable(str(error))}") from error

    def _placeholder(self, node: fx.Node) -> fx.Node:
        made = self._body.placeholder(f"argument_{sum(n.op == 'placeholder' for n in self._body.nodes)}")
        made.meta = _meta(node)
        return made

    def _clone(self, node: fx.Node) -> fx.Node:
        made = self._body.call_function(torch.ops.aten.clone.default, (node,))
        made.meta = dict(node.meta)
        return made

    def _copy(self, node: fx.Node) -> fx.Node:
        made = self._body.node_copy(node, self._find)
        made.type = None
        made.meta = _meta(node)
        if node.op == "call_module":
            made.target = self._root(str(node.target))
        return made

    def _find(self, node: fx.Node) -> fx.Node:
        if node.op != "get_attr":
            return self._env[node.name]
        if node.target in self._parameters:
            return self._parameters[str(node.target)]
        return self._body.create_node("get_attr", self._root(str(node.target)))  # for a control-flow op

    def _root(self, target: str) -> str:
        """Return the harmless name under which the body finds a module."""
        for atom, module in self._roots.items():
            if module is self.source.modules[target]:
                return atom
        atom = f"module{len(self._roots)}"
        self._roots[atom] = self.source.modules[target]
        return atom

    def _written(self) -> set[int]:
        """Return the storages that nodes of this stage change."""
        return set().union(*map(self._written_by, self.nodes))

    def _written_by(self, node: fx.Node) -> set[int]:
        names = self.source.writes.get(node.name, ())
        return set().union(*(storages(n) for n in node.all_input_nodes if n.name in names))

    def _changes_later(self, node: fx.Node) -> bool:
        """Say whether what a node made is changed in place before the stage ends, though others read the old one."""
        later = self.nodes[self.nodes.index(node) + 1 :]
        memory = storages(node) - self.source.pinned
        return any(memory & self._written_by(n) for n in later) if memory else False


def _meta(node: fx.Node) -> dict[str, Any]:
    """Return what is kept of a node for whoever prints it: its value's name, fake value and module."""
    return {"name": node.name, "val": node.meta.get("val"), "path": node.meta.get("path", "")}
