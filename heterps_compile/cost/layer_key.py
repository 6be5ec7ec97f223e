"""What a layer is to a stopwatch: a key that equal layers share, in one model and across models, at any batch.

A key is made of the ops of a layer's nodes, in order, with dtype and shape of everything they read and make. A
dimension that the batch sets is written per sample, so that a layer has one key at every batch:

1. The batch's symbol is one sample.
2. Of a shape without that symbol, a leading dimension that the batch divides is taken to be so many samples long, if
   the value is computed from a graph input that has samples: ``(batch * words, width)`` of a graph that was read at a
   fixed batch, or whose front end writes the product as a number.
3. Every other symbol is its number: the time depends on it.
4. Nodes that read shapes alone, and what they make, are left out: a model that leaves its batch open has more of them.

Rule 2 is a guess. Where it is wrong (a mean over all samples whose width the batch happens to divide) the key differs
between batches, and the layer is found at the batches that were measured alone.

A look-up whose gradient is of its rows alone (``sparse=True``) has another key than one whose gradient is as large as
the table.

Left out: other attributes that no shape shows (a dilation that padding makes up for), values, names.
"""

import hashlib
from collections.abc import Iterator, Sequence, Set

from heterps_compile.ir.graph import Dim, Graph, OpKind
from heterps_compile.ir.layers import LayerGraph

_DIGEST_BYTES = 12


def layer_keys(layer_graph: LayerGraph) -> tuple[str, ...]:
    """Return the key of every layer, 24 hexadecimal digits, in order; O(nodes + edges)."""
    graph = layer_graph.graph
    sampled = _sampled(graph)
    return tuple(
        _digest([line for node in layer.nodes for line in _described(graph, node, sampled)])
        for layer in layer_graph.layers
    )


def _sampled(graph: Graph) -> set[str]:
    """Return the values that are computed from a graph input that has samples."""
    found = {name for name in graph.inputs if _leads(graph, graph.values[name].shape)}
    for node in graph.nodes:
        if node.kind is not OpKind.SHAPE and not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _leads(graph: Graph, shape: Sequence[Dim]) -> bool:
    """Whether a graph input's shape begins with the batch."""
    return bool(shape) and shape[0] == (graph.batch if graph.batch_symbol is None else graph.batch_symbol)


def _described(graph: Graph, index: int, sampled: Set[str]) -> Iterator[str]:
    node = graph.nodes[index]
    if node.kind is OpKind.SHAPE:
        return
    yield f"{node.op}, sparse" if node.sparse else node.op
    for name in node.inputs:
        if name in graph.producer and graph.nodes[graph.producer[name]].kind is OpKind.SHAPE:
            continue
        yield f"< {_tensor(graph, name, sampled)}"
    for name in node.outputs:
        yield f"> {_tensor(graph, name, sampled)}"


def _tensor(graph: Graph, name: str, sampled: Set[str]) -> str:
    if name in graph.parameters:
        parameter = graph.parameters[name]
        return f"{parameter.kind} {parameter.dtype} {list(parameter.shape)}"
    value = graph.values[name]
    return f"{value.dtype} {_per_sample(graph, value.shape, has_samples=name in sampled)}"


def _per_sample(graph: Graph, shape: Sequence[Dim], *, has_samples: bool) -> list[str]:
    """Write a shape with the batch as one sample, by the rules of the module."""
    if graph.batch_symbol is not None and graph.batch_symbol in shape:
        return ["1n" if dim == graph.batch_symbol else str(_number(graph, dim)) for dim in shape]
    sizes = [_number(graph, dim) for dim in shape]
    if has_samples and sizes and isinstance(shape[0], int) and sizes[0] > 0 and sizes[0] % graph.batch == 0:
        return [f"{sizes[0] // graph.batch}n", *map(str, sizes[1:])]
    return [str(size) for size in sizes]


def _number(graph: Graph, dim: Dim) -> int:
    return dim if isinstance(dim, int) else graph.bindings[dim]


def _digest(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=_DIGEST_BYTES).hexdigest()
