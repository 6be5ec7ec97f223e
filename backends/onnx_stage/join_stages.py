"""The models of stages joined into one again: what one gives is what another takes, by name.

Left out: inputs that no stage reads, and outputs that none makes.
"""

from collections.abc import Sequence
from itertools import chain

import onnx_ir as ir

from heterps_compile.ir.graph import Graph

from .tidy import free_name


def join_stages(models: Sequence[ir.Model], graph: Graph) -> tuple[ir.Model, dict[ir.Node, int]]:
    """Join the stages of a graph, in order; they are used up. Give the stage of every node besides.

    A parameter that several stages hold is there once.
    """
    inputs: dict[str, ir.Value] = {}
    known: dict[str, ir.Value] = {}
    nodes: list[ir.Node] = []
    stage_of: dict[ir.Node, int] = {}
    taken = {*graph.parameters, *(value.name or "" for model in models for value in _boundary(model))}
    for index, model in enumerate(models):
        part = model.graph
        for name, held in list(part.initializers.items()):
            del part.initializers[name]
            _unite(known, name, held)
        for value in list(part.inputs):
            name = value.name or ""
            if name in graph.inputs:
                inputs.setdefault(name, value)
            _unite(known, name, value)
        part.inputs.clear()
        outputs = list(part.outputs)
        part.outputs.clear()
        known.update((value.name or "", value) for value in outputs)
        for node in list(part):
            part.remove(node)
            node.name = f"stage_{index}/{node.name}"
            nodes.append(node)
            stage_of[node] = index
            for value in node.outputs:
                if value.name and value not in outputs:
                    value.name = free_name(value.name, taken)
                    taken.add(value.name)
    weights = [value for name, value in known.items() if name in graph.parameters]
    whole = ir.Graph(
        [inputs[name] for name in graph.inputs if name in inputs],
        [known[name] for name in dict.fromkeys(graph.outputs) if name in graph.producer],
        nodes=nodes,
        initializers=weights,
        opset_imports=dict(chain.from_iterable(model.graph.opset_imports.items() for model in models)),
        name="joined",
    )
    version = max(model.ir_version for model in models)
    return ir.Model(whole, ir_version=version, producer_name="heterps-compile"), stage_of


def _boundary(model: ir.Model) -> list[ir.Value]:
    return [*model.graph.inputs, *model.graph.outputs]


def _unite(known: dict[str, ir.Value], name: str, value: ir.Value) -> None:
    """Let readers of a value read the one of that name, if there is one already."""
    first = known.setdefault(name, value)
    if first is not value:
        value.replace_all_uses_with(first)
