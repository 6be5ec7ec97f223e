"""Group nodes into layers, the things that are placed.

A layer is one anchor (convolution, matrix product, embedding, attention, recurrence) with the cheap nodes
around it. Nodes are taken in an order of the compiler's own (``ir/node_order.py``), so that a model has the same
layers however its file lists its nodes. The rules, in order; each keeps every edge running forward in the order of
layers:

1. An anchor starts a new layer, later than all before it.
2. A cheap node joins the latest layer among its producers and the nodes that it has to run after.
3. A cheap node that depends on graph inputs and constants alone joins the earliest layer that reads it; one
   that only reads a graph input's shape joins the earliest layer that reads that input, if that is earlier. Parts of
   a value that is no tensor, such as the pieces of a split, are taken where it is made: it could not cross.
4. A node that computes a shape from shapes goes with its earliest reader: what crosses is then the small
   tensor, and arithmetic on shapes runs where its result is needed.
5. Nodes that feed no layer (a model without anchors, a constant output) form a last layer of their own.

Left out: module boundaries (an anchor is finer than most modules), and any knowledge of devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from heterps_compile.ir.graph import OPAQUE, Graph, OpKind
from heterps_compile.ir.layers import Layer, LayerGraph, verify_layers
from heterps_compile.ir.node_order import canonical_order

from .drafts import Draft, Layered, advance

_FLOATING = -1


def group_nodes(graph: Graph) -> LayerGraph:
    """Group a graph's nodes by the five rules; O((nodes + edges) log edges)."""
    order = canonical_order(graph)
    layers = _group_in_order(replace(graph, nodes=tuple(graph.nodes[i] for i in order)))
    return LayerGraph(graph, tuple(replace(layer, nodes=tuple(order[i] for i in layer.nodes)) for layer in layers))


def _group_in_order(graph: Graph) -> tuple[Layer, ...]:
    """Group nodes in the order in which the graph lists them."""
    owner = [_FLOATING] * len(graph.nodes)
    count = 0
    for i, node in enumerate(graph.nodes):
        if node.kind.is_anchor:
            owner[i], count = count, count + 1
        else:
            owner[i] = max((owner[p] for p in graph.predecessors[i]), default=_FLOATING)
    _sink_shapes(graph, owner)
    if _sink_floating(graph, owner, last=count):
        count += 1
    return _collect(graph, owner, count)


def _producers(graph: Graph, index: int) -> list[int]:
    return [graph.producer[name] for name in graph.nodes[index].inputs if name in graph.producer]


def _sink_shapes(graph: Graph, owner: list[int]) -> None:
    """Apply rule 4, from the last node to the first, so that whole chains of shape arithmetic move."""
    from_shapes, given = [False] * len(graph.nodes), set(graph.inputs)
    for i, node in enumerate(graph.nodes):
        producers = _producers(graph, i)
        reads_data = node.kind.is_anchor or not given.isdisjoint(node.inputs)
        reads_shapes = bool(producers) and all(from_shapes[p] for p in producers)
        from_shapes[i] = node.kind is OpKind.SHAPE or (reads_shapes and not reads_data)
    for i in range(len(graph.nodes) - 1, -1, -1):
        if from_shapes[i] and graph.nodes[i].kind is not OpKind.SHAPE and owner[i] != _FLOATING:
            readers = [owner[r] for r in graph.successors[i]]
            if readers:
                owner[i] = max(owner[i], min(readers))


def _sink_floating(graph: Graph, owner: list[int], last: int) -> bool:
    """Apply rules 3 and 5, from the last node to the first; say whether the last layer is needed."""
    floating = [i for i, layer in enumerate(owner) if layer == _FLOATING]
    for i in reversed(floating):
        candidates = [owner[r] for r in graph.successors[i]]
        if graph.nodes[i].kind is OpKind.SHAPE:
            inputs = graph.nodes[i].inputs
            candidates += [owner[r] for name in inputs for r in graph.consumers.get(name, ()) if owner[r] != _FLOATING]
        owner[i] = min(candidates, default=last)
    before: list[int] = []
    while before != owner:
        before = owner.copy()
        for i in floating:
            owner[i] = min([owner[i], *(owner[p] for p in _producers(graph, i) if _makes_no_tensor(graph, p))])
        for i in reversed(floating):  # what a node reads that was moved up goes with it; all of it floats too
            for p in graph.predecessors[i]:
                owner[p] = min(owner[p], owner[i])
    return any(owner[i] == last for i in floating)


def _makes_no_tensor(graph: Graph, index: int) -> bool:
    return any(graph.values[name].dtype == OPAQUE for name in graph.nodes[index].outputs)


def _collect(graph: Graph, owner: Sequence[int], count: int) -> tuple[Layer, ...]:
    members: list[list[int]] = [[] for _ in range(count)]
    for i, layer in enumerate(owner):
        members[layer].append(i)
    layers = []
    for nodes in members:
        anchors = [i for i in nodes if graph.nodes[i].kind.is_anchor]
        lead = graph.nodes[anchors[0] if anchors else max(nodes, key=lambda i: graph.nodes[i].flops)]
        read = dict.fromkeys(name for i in nodes for name in graph.nodes[i].inputs if name in graph.parameters)
        layers.append(Layer(lead.name, lead.kind, tuple(nodes), tuple(read)))
    return tuple(layers)


@dataclass(frozen=True, slots=True)
class GroupLayers:
    """Group nodes into layers."""

    name: ClassVar[str] = "group-layers"

    def __call__(self, draft: Draft) -> Layered:
        """Fill in ``layers``."""
        layers = group_nodes(draft.graph)
        verify_layers(layers)
        return advance(draft, Layered, layers=layers)
