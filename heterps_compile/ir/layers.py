"""Layers: the groups of nodes that are placed as one, in an order in which every edge runs forward.

The order is what makes placement simple: any run of neighbours is convex, and the quotient graph of
any division into runs is acyclic. Conversely, every division into convex stages with an acyclic quotient is the runs of
some order, so that a search for stages is a search for an order and for cuts (``passes/placement/orders``).

Left out: how nodes are grouped (``passes/group_layers.py``) and what a layer costs (``cost/``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from heterps_compile.errors import GraphError

from .graph import OPAQUE, Graph, OpKind


@dataclass(frozen=True, slots=True)
class Layer:
    """A convex group of nodes.

    Attributes:
        name: Unique; the anchor node's name.
        kind: The anchor's kind, or the kind of the costliest node where there is no anchor.
        nodes: Indices into ``Graph.nodes``, in the order of the grouping, every node after those it reads.
        parameters: Names of the parameters its nodes read, each once, in order of first use.
    """

    name: str
    kind: OpKind
    nodes: tuple[int, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that some layer makes (or the caller gives) and other layers read.

    Attributes:
        value: Its name.
        producer: Index of the layer that makes it, or -1 for a graph input.
        consumers: Indices of the other layers that read it, ascending.
        is_output: Whether the model returns it.
        size_bytes: Its bytes at the graph's bindings.
        is_opaque: Whether it is no tensor, so that it can never cross a stage.
    """

    value: str
    producer: int
    consumers: tuple[int, ...]
    is_output: bool
    size_bytes: int
    is_opaque: bool


@dataclass(frozen=True)
class LayerGraph:
    """The layers of a graph, in an order in which every edge runs forward.

    Attributes:
        graph: Whose nodes they own.
        layers: In order.
        ranks: Of each layer its place in the compiler's own order; () where they stand in that.
    """

    graph: Graph
    layers: tuple[Layer, ...]
    ranks: tuple[int, ...] = ()

    @property
    def own_order(self) -> tuple[int, ...]:
        """Return the layers, as indices, in the compiler's own order."""
        return tuple(sorted(range(len(self.layers)), key=self.rank))

    def rank(self, layer: int) -> int:
        """Return the place of a layer in the compiler's own order."""
        return self.ranks[layer] if self.ranks else layer

    def order_of(self, stages: Sequence[int]) -> tuple[int, ...]:
        """Return an order of which stages are runs, layers of one stage as they stand here.

        Args:
            stages: The stage of every layer, stages numbered in the order in which they run.

        Raises:
            GraphError: where a layer would come before one that it waits for.
        """
        for layer, before in enumerate(self.predecessors):
            late = next((other for other in before if stages[other] > stages[layer]), None)
            if late is not None:
                raise GraphError(
                    f"layer {self.layers[layer].name!r} of stage {stages[layer]} waits for "
                    f"{self.layers[late].name!r} of stage {stages[late]}"
                )
        return tuple(sorted(range(len(stages)), key=stages.__getitem__))

    def reordered(self, order: Sequence[int]) -> "LayerGraph":
        """Return the layers in another order, given as indices into this one.

        Raises:
            GraphError: where an edge would run backward.
        """
        ranks = tuple(map(self.rank, order))
        moved = tuple(self.layers[i] for i in order)
        found = LayerGraph(self.graph, moved, () if ranks == tuple(range(len(ranks))) else ranks)
        verify_layers(found)
        return found

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Return the layers whose nodes those of each layer wait for, ascending; O(nodes + edges)."""
        owner, found = self.layer_of, [set[int]() for _ in self.layers]
        for node, before in enumerate(self.graph.predecessors):
            found[owner[node]].update(owner[other] for other in before)
        return tuple(tuple(sorted(before - {layer})) for layer, before in enumerate(found))

    @cached_property
    def layer_of(self) -> tuple[int, ...]:
        """Return the layer index of every node."""
        owner = [-1] * len(self.graph.nodes)
        for index, layer in enumerate(self.layers):
            for node in layer.nodes:
                owner[node] = index
        return tuple(owner)

    def dtype(self, layer: int) -> str:
        """Return the dtype a layer computes in: that of its costliest node's first tensor output."""
        nodes = (self.graph.nodes[i] for i in self.layers[layer].nodes)
        lead = max(nodes, key=lambda node: node.flops)
        dtypes = (self.graph.values[out].dtype for out in lead.outputs)
        return next((dtype for dtype in dtypes if dtype != OPAQUE), "float32")

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Return every value that passes between layers, or from a caller to them, in order; O(nodes + edges)."""
        return tuple(self._find_edges())

    def _find_edges(self) -> Iterator[Edge]:
        graph, owner = self.graph, self.layer_of
        returned = set(graph.outputs)
        makers = (*((-1, name) for name in graph.inputs), *self._made())
        for producer, name in makers:
            value = graph.values[name]
            readers = sorted({owner[i] for i in graph.consumers.get(name, ())} - {producer})
            if readers or name in returned:
                yield Edge(
                    name,
                    producer,
                    tuple(readers),
                    name in returned,
                    graph.size_bytes(name),
                    value.dtype == OPAQUE,
                )

    def _made(self) -> Iterator[tuple[int, str]]:
        """Yield every value that a node makes, with the layer that makes it, layer by layer."""
        for index, layer in enumerate(self.layers):
            yield from ((index, name) for node in layer.nodes for name in self.graph.nodes[node].outputs)

    @cached_property
    def tied_layers(self) -> Mapping[str, tuple[int, ...]]:
        """Return the storages that more than one layer reads, with those layers ascending."""
        readers: dict[str, set[int]] = {}
        for index, layer in enumerate(self.layers):
            for name in layer.parameters:
                readers.setdefault(self.graph.parameters[name].storage, set()).add(index)
        return {storage: tuple(sorted(found)) for storage, found in readers.items() if len(found) > 1}


def verify_layers(layer_graph: LayerGraph) -> None:
    """Check that layers own every node once and that every edge runs forward.

    Raises:
        GraphError: naming the law, the layer and the node or value.
    """
    nodes = layer_graph.graph.nodes
    seen = [0] * len(nodes)
    for layer in layer_graph.layers:
        for node in layer.nodes:
            seen[node] += 1
    for index, count in enumerate(seen):
        if count != 1:
            raise GraphError(f"node {nodes[index].name!r} is in {count} layers, not in one")
    for edge in layer_graph.edges:
        backward = [c for c in edge.consumers if c < edge.producer]
        if backward:
            maker, reader = layer_graph.layers[edge.producer].name, layer_graph.layers[backward[0]].name
            raise GraphError(f"value {edge.value!r} runs backward, from layer {maker!r} to layer {reader!r}")
    owner = layer_graph.layer_of
    for index, before in enumerate(layer_graph.graph.predecessors):
        for other in before:
            if owner[other] > owner[index]:
                raise GraphError(
                    f"node {nodes[index].name!r} has to run after {nodes[other].name!r}, which is in a later layer"
                )
