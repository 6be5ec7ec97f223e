"""What a layer is in a few words, for people: ``conv 3x3, 64 -> 128``, and what its nodes join at the end.

A name that an exporter made up (a number, or its op and a number) tells nothing; the module's path and the shapes tell
more. The name stays the layer's identifier everywhere.

Left out: what a layer costs (``cost/``).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from .graph import Graph, Node, OpKind
from .layers import Layer, LayerGraph

_WORDS = ("linear", "embedding", "matmul", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention")  # of exporters
_JOINS = 2  # values that a node reads to join them


def what_layer_is(layers: LayerGraph, index: int) -> str:
    """Return kind and sizes of a layer: ``conv 3x3, 64 -> 128``; its kind alone where shapes are not known."""
    layer, graph = layers.layers[index], layers.graph
    node = _anchor(graph, layer)
    tell = _SIZES.get(layer.kind)
    told = tell(graph, node) if tell is not None else ""
    return f"{layer.kind.value} {told}" if told else layer.kind.value


def layer_title(layers: LayerGraph, index: int) -> str:
    """Return what a layer is called in a picture: its name, or its module's path where the name is made up."""
    layer = layers.layers[index]
    node = _anchor(layers.graph, layer)
    if not node.module_path or not is_made_up(layer.name, node.op):
        return layer.name
    return node.module_path


def tells_nothing(layers: LayerGraph, index: int) -> bool:
    """Tell whether a layer's name is made up and nothing says where in the model it is."""
    layer = layers.layers[index]
    node = _anchor(layers.graph, layer)
    return not node.module_path and is_made_up(layer.name, node.op)


def describe_layer(layers: LayerGraph, index: int) -> str:
    """Return what a layer is, and where in the model: ``conv 3x3, 64 -> 128, layer2.0``."""
    layer, what = layers.layers[index], what_layer_is(layers, index)
    title = layer_title(layers, index)
    return what if title == layer.name else f"{what}, {title}"


def titles_of(layers: LayerGraph) -> dict[str, str]:
    """Return what the layers are whose names are made up, by name: what people are shown beside such a name."""
    return {
        layer.name: describe_layer(layers, index)
        for index, layer in enumerate(layers.layers)
        if is_made_up(layer.name, _anchor(layers.graph, layer).op)
    }


def is_made_up(name: str, op: str) -> bool:
    """Tell whether a node's name is a number, or the word for its op with a number."""
    plain = op.rpartition("::")[2].removeprefix("aten.").partition(".")[0]
    words = "|".join(map(re.escape, filter(None, (plain, *_WORDS))))
    return re.fullmatch(rf"(n|node)?_?\d+|(node_|n_)?({words})(_?\d+)*", name, re.IGNORECASE) is not None


def join_of(layers: LayerGraph, index: int) -> Node | None:
    """Return the first node of a layer that joins its anchor's result with values of other layers; None for none.

    It reads two values or more, one of them made by another layer, and the anchor does not wait for it.
    """
    layer, graph, owner = layers.layers[index], layers.graph, layers.layer_of
    before = before_anchor(layers, index)
    for i in layer.nodes:
        node = graph.nodes[i]
        made = {name for name in node.inputs if name in graph.producer}
        foreign = [name for name in made if owner[graph.producer[name]] != index]
        if i not in before and foreign and len(made) >= _JOINS:
            return node
    return None


def before_anchor(layers: LayerGraph, index: int) -> frozenset[int]:
    """Return the nodes of a layer that its anchor is or waits for."""
    graph = layers.graph
    anchor = _anchor(graph, layers.layers[index])
    return _reached(layers, index, anchor, graph.predecessors)


def after_node(layers: LayerGraph, index: int, node: Node) -> frozenset[int]:
    """Return a node of a layer, and the nodes of the layer that wait for it."""
    return _reached(layers, index, node, layers.graph.successors)


def _reached(layers: LayerGraph, index: int, start: Node, edges: Sequence[Iterable[int]]) -> frozenset[int]:
    """Return a node of a layer, and the nodes of the layer that edges lead to from it."""
    own, found = set(layers.layers[index].nodes), set[int]()
    left = [i for i in own if layers.graph.nodes[i].name == start.name]
    while left:
        i = left.pop()
        if i not in found:
            found.add(i)
            left += [other for other in edges[i] if other in own]
    return frozenset(found)


def _anchor(graph: Graph, layer: Layer) -> Node:
    """Return the node that a layer is named after; where the layer was renamed, its first one of the same kind."""
    nodes = [graph.nodes[i] for i in layer.nodes]
    named = [node for node in nodes if node.name == layer.name]
    return [*named, *(node for node in nodes if node.kind is layer.kind), *nodes][0]


def _conv(graph: Graph, node: Node) -> str:
    read, made = _shapes(graph, node)
    weights = [shape for shape in _parameters(graph, node) if len(shape) > 2]
    if not weights or not read or len(read[0]) < 3 or not made or len(made[0]) < 3:
        return ""
    return f"{'x'.join(map(str, weights[0][2:]))}, {read[0][1]:,} -> {made[0][1]:,}"


def _product(graph: Graph, node: Node) -> str:
    read, made = _shapes(graph, node)
    return f"{read[0][-1]:,} -> {made[0][-1]:,}" if read and made and read[0] and made[0] else ""


def _two_values(graph: Graph, node: Node) -> str:
    read, _ = _shapes(graph, node)
    parts = ["x".join(map(str, shape[-2:])) for shape in read[:2]]
    return " by ".join(parts) if len(parts) == 2 and all(parts) else ""


def _rows(graph: Graph, node: Node) -> str:
    tables = [shape for shape in _parameters(graph, node) if len(shape) == 2]
    return f"{tables[0][0]:,} x {tables[0][1]:,}" if tables else ""


_SIZES: Mapping[OpKind, Callable[[Graph, Node], str]] = MappingProxyType(
    {
        OpKind.CONV: _conv,
        OpKind.GEMM: _product,
        OpKind.RECURRENT: _product,
        OpKind.MATMUL: _two_values,
        OpKind.EMBEDDING: _rows,
    }
)


def _shapes(graph: Graph, node: Node) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the shapes of the tensors that a node reads beside parameters, and of those that it makes."""
    read = [graph.shape(name) for name in node.inputs if name not in graph.parameters]
    return read, [graph.shape(name) for name in node.outputs]


def _parameters(graph: Graph, node: Node) -> list[tuple[int, ...]]:
    return [graph.parameters[name].shape for name in node.inputs if name in graph.parameters]
