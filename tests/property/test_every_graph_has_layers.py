"""Every graph that keeps the laws has layers that keep theirs, in an order that is the graph's own."""

import random

from permuted import permuted_graph

from heterps_compile.ir.graph import Graph, Node, OpKind, Parameter, Value
from heterps_compile.ir.laws import verify_graph
from heterps_compile.ir.layers import verify_layers
from heterps_compile.passes.group_layers import group_nodes

KINDS = (
    OpKind.GEMM, OpKind.EMBEDDING, OpKind.ELEMENTWISE, OpKind.ELEMENTWISE, OpKind.VIEW, OpKind.SHAPE, OpKind.CONSTANT,
    OpKind.OTHER,
)  # fmt: skip


def drawn(seed: int) -> Graph:
    """Draw a graph: any kind of node anywhere, values that are no tensors, nodes that draw random numbers in order."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    values = {name: Value(name, "float32", (4, chance.choice((2, 8)))) for name in ("x", "z")}
    parameters = {name: Parameter(name, "float32", (8, 8), name, 256) for name in ("w", "v")}
    nodes: list[Node] = []
    drawing: tuple[str, ...] = ()
    for i in range(chance.randint(1, 14)):
        kind = chance.choice(KINDS)
        read = [] if kind is OpKind.CONSTANT else chance.sample(list(values), chance.randint(1, min(3, len(values))))
        read += chance.sample(["w", "v"], chance.choice((0, 0, 1))) + ["w"] * (kind is OpKind.EMBEDDING)
        after = drawing if (draws := chance.random() < 0.25) else ()
        made = f"n{i}:0"
        dtype = "opaque" if chance.random() < 0.2 else "float32"
        values[made] = Value(made, dtype, () if dtype == "opaque" else (4, chance.choice((2, 8))))
        nodes.append(
            Node(f"n{i}", kind.value, kind, tuple(dict.fromkeys(read)), (made,), chance.randint(0, 9), i, after=after)
        )
        drawing = (nodes[-1].name,) if draws else drawing
    outputs = chance.sample([node.outputs[0] for node in nodes], chance.randint(1, min(2, len(nodes))))
    return Graph(f"drawn {seed}", tuple(nodes), ("x", "z"), tuple(outputs), values, parameters, batch=4)


def test_layers_keep_their_laws_and_do_not_depend_on_the_order_of_nodes():
    for seed in range(700, 1300):
        graph = drawn(seed)
        verify_graph(graph)
        layers = group_nodes(graph)
        verify_layers(layers)
        permuted = permuted_graph(graph, seed)
        again = group_nodes(permuted.graph)
        verify_layers(again)
        signs = [
            [(layer.kind, [found.graph.nodes[i].op for i in layer.nodes]) for layer in found.layers]
            for found in (layers, again)
        ]
        assert signs[0] == signs[1], seed
