"""A stage as a graph of PyTorch's own ops, which is what can be written as source.

A stage of exported ops is that already. One with modules, methods or functions in it (from a traced
``GraphModule``) is traced once more with ``torch.export``, on examples of what crosses into it; what is written is
then right for the shapes the model was read with, where the stage in memory takes any that the module takes.

Left out: ops that are not PyTorch's own.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import Dim

from heterps_compile.backends.unsupported import way_out
from heterps_compile.errors import BackendError, InputError
from heterps_compile.escape import printable
from heterps_compile.frontends.torch_clean import erase_checks, inline_regions
from heterps_compile.frontends.torch_export import export_module
from heterps_compile.ir.graph import Graph

from .calls import can_write
from .stage import TorchStage

_PLANNED = 2  # for a number that depends on data and is in no shape


@dataclass(frozen=True, slots=True)
class OpGraph:
    """The nodes of a stage, all of which can be written.

    Attributes:
        graph: The nodes.
        parameters: Names of the tensors that some of them stand for.
        inputs: The node of each input of the stage; None where the nodes do not need it.
    """

    graph: fx.Graph
    parameters: dict[fx.Node, str]
    inputs: tuple[fx.Node | None, ...]


def lower_stage(graph: Graph, stage: TorchStage) -> OpGraph:
    """Return a stage's nodes as ops that can be written.

    Raises:
        BackendError: naming stage, node and op of what cannot be.
    """
    found = _body(stage)
    if all(map(can_write, found.graph.nodes)):
        return found
    custom = [node for node in found.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    lowered = found if not all(map(can_write, custom)) else _export(graph, stage)  # which leaves a custom op as it is
    for node in lowered.graph.nodes:
        if not can_write(node):
            helps = way_out(str(node.target)) or "leave that op out of the model"
            raise BackendError(
                f"stage {stage.index} cannot be written: node {node.name!r} is a {printable(str(node.target))}, which "
                f"is no op of PyTorch's own; the stage runs in memory, or {helps}"
            )
    return lowered


def _body(stage: TorchStage) -> OpGraph:
    placeholders = [node for node in stage.body.graph.nodes if node.op == "placeholder"]
    count = len(stage.parameter_names)
    parameters = dict(zip(placeholders[:count], stage.parameter_names, strict=True))
    return OpGraph(stage.body.graph, parameters, tuple(placeholders[count:]))


def _export(graph: Graph, stage: TorchStage) -> OpGraph:
    examples = [_example(graph, name) for name in stage.inputs]
    dynamic = [_dynamic(graph, stage, name, value) for name, value in zip(stage.inputs, examples, strict=True)]
    has_symbols = any(entry for entry in dynamic)
    unwritable = next(node for node in stage.body.graph.nodes if not can_write(node))
    what = f"{unwritable.op} {printable(str(_target(stage, unwritable)))}"
    slots = stage._slots
    try:
        program = export_module(
            stage, tuple(examples), {}, (tuple(dynamic),) if has_symbols else None, f"stage {stage.index}"
        )
        inline_regions(program.graph, program.modules, program.name)
    except InputError as error:
        raise BackendError(
            f"stage {stage.index} cannot be written: its node {unwritable.meta['name']!r} ({what}) has to be traced, "
            f"and {error}"
        ) from error
    finally:
        stage.__dict__["_slots"] = slots  # torch.export leaves a copy with fake tensors in place of them
    erase_checks(program.graph)
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    parameters = {node: str(node.target) for node in program.graph.nodes if node.op == "get_attr"}
    inputs = tuple(placeholders[leaf] if isinstance(leaf, str) else None for leaf in program.in_leaves)
    return OpGraph(program.graph, parameters, inputs)


def _target(stage: TorchStage, node: fx.Node) -> Any:
    return type(stage.body.get_submodule(str(node.target))).__name__ if node.op == "call_module" else node.target


def _example(graph: Graph, name: str) -> Any:
    """Return a value of the right dtype, shape and memory order; its contents do not matter."""
    value = graph.values[name]
    fake = next(n.meta["val"] for n in graph.source.graph.nodes if n.name == name)
    if isinstance(fake, torch.Tensor):
        shape = graph.shape(name)
        if all(isinstance(d, int) for d in fake.shape):
            return torch.empty_strided(shape, fake.stride(), dtype=fake.dtype, device=fake.device).zero_()
        return torch.zeros(shape, dtype=fake.dtype, device=fake.device)
    if value.dtype == "int64":
        if not isinstance(fake, torch.SymInt):
            return fake
        return int(fake.node.hint) if fake.node.has_hint() else graph.bindings.get(str(fake), _PLANNED)
    return fake


def _dynamic(graph: Graph, stage: TorchStage, name: str, example: Any) -> Any:
    """Return what ``torch.export`` is told of an input's dimensions.

    Raises:
        BackendError: for a number that would become a constant, though it depends on what the caller gives.
    """
    if isinstance(example, torch.Tensor):
        return {axis: Dim.DYNAMIC for axis, dim in enumerate(graph.values[name].shape) if isinstance(dim, str)}
    if type(example) is int and name in graph.inputs:
        return Dim.DYNAMIC
    if name in graph.inputs or not isinstance(example, (bool, int)):
        raise BackendError(
            f"stage {stage.index} cannot be written: its input {name!r} is a number, which torch.export makes a "
            f"constant; give the model a tensor there"
        )
    return None
