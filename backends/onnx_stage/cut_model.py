"""Cut an ONNX model into parts: nodes, the constants they need, and typed values at the boundary.

A part is a copy of nodes and values that shares the weights with the whole. What is constant is not sent between
parts: nodes that make a constant out of initialisers are copied into every part that reads it.

A dimension at a boundary is a number only where it is one for every input the model accepts; where it depends on a
dynamic dimension it keeps that one's name, or has none.

Left out: types of values inside a part (ONNX Runtime infers them).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from heterps_compile.frontends.onnx_session import format_version
from heterps_compile.frontends.onnx_shapes import DTYPES, Inference, Partial, declared, infer, merge
from heterps_compile.frontends.onnx_structure import reads
from heterps_compile.ir.graph import OPAQUE, Graph
from heterps_compile.ir.partition import Partition, StageCut

_NUMBER_OF_DTYPE: Mapping[str, int] = {name: number for number, name in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class _Whole:
    """A model laid out for cutting."""

    graph: Graph
    model: ir.Model
    nodes: Sequence[ir.Node]
    position: Mapping[ir.Node, int]
    values: Mapping[str, ir.Value]
    unbound: Inference
    symbols: frozenset[str]


def cut_model(graph: Graph, partition: Partition) -> list[ir.Model]:
    """Return one model a stage, in order; O(nodes + edges)."""
    model: ir.Model = graph.source.model
    nodes = list(model.graph)
    dims = (dim for value in model.graph.inputs for dim in value.shape or ())
    whole = _Whole(
        graph,
        model,
        nodes,
        {node: i for i, node in enumerate(nodes)},
        ir.convenience.create_value_mapping(model.graph, include_subgraphs=False),
        infer(model, {}),
        frozenset(dim.value for dim in dims if isinstance(dim, ir.SymbolicDim) and dim.value),
    )
    return [_cut_part(whole, cut) for cut in partition.stages]


def _cut_part(whole: _Whole, cut: StageCut) -> ir.Model:
    source = whole.model.graph
    nodes, initializers = _gather(whole, [whole.nodes[whole.graph.nodes[i].origin] for i in cut.nodes], cut.inputs)
    part = ir.GraphView(
        [whole.values[name] for name in cut.inputs],
        [whole.values[name] for name in cut.outputs],
        nodes=nodes,
        initializers=initializers,
        opset_imports=source.opset_imports,
        name=f"stage_{cut.index}",
    ).clone()
    for value, name in zip((*part.inputs, *part.outputs), (*cut.inputs, *cut.outputs), strict=True):
        _describe(whole, value, name)
    return ir.Model(part, ir_version=format_version(whole.model), producer_name="heterps-compile")


def _gather(whole: _Whole, computed: Sequence[ir.Node], inputs: Sequence[str]) -> tuple[list[ir.Node], list[ir.Value]]:
    """Return these nodes and those that make their constants, in order, and the initialisers of all."""
    entering = {whole.values[name] for name in inputs}
    found = dict.fromkeys(computed)
    initializers: dict[str, ir.Value] = {}
    pending = list(computed)
    while pending:
        for value in reads(pending.pop(), whole.model.graph):
            maker = value.producer()
            if value.is_initializer():
                initializers[value.name or ""] = value
            elif maker is not None and maker not in found and value not in entering:
                found[maker] = None
                pending.append(maker)
    in_order = [value for name, value in whole.model.graph.initializers.items() if name in initializers]
    return sorted(found, key=whole.position.__getitem__), in_order


def _describe(whole: _Whole, value: ir.Value, name: str) -> None:
    """Write data type and shape into a part's own copy of a boundary value."""
    if whole.graph.values[name].dtype == OPAQUE:
        return  # a sequence that the model returns: its type is the model's own
    numbers = whole.graph.shape(name)
    value.dtype = ir.DataType(_NUMBER_OF_DTYPE[whole.graph.values[name].dtype])
    found = merge(whole.unbound.values.get(name, Partial()), declared(value, {})).shape
    if found is None or len(found) != len(numbers):
        found = (None,) * len(numbers)
    value.shape = ir.Shape([_dim(whole, dim, number) for dim, number in zip(found, numbers, strict=True)])


def _dim(whole: _Whole, dim: int | str | None, number: int) -> int | str | None:
    if isinstance(dim, int):
        return dim if dim == number else None
    return dim if dim in whole.symbols else None
