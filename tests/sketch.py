"""Graphs and problems drawn as text, so that a test has its answer in sight.

``sketch("x:8 -> a=embedding(x, table:1000x4) 64 -> b=gemm(a, w:4x4) ...")`` would be clever; one line a node is clear::

    graph = sketch('''
        in x 4x8
        par w 8x16
        gemm fc : x w -> h 4x16 flops=1024
        elementwise act : h -> y 4x16
        out y
    ''')
"""

from types import MappingProxyType

from heterps_compile.ir.graph import Graph, Node, OpKind, Parameter, Value
from heterps_compile.ir.layers import LayerGraph


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(d) for d in text.split("x")) if text != "-" else ()


def sketch(text: str, *, batch: int = 4, name: str = "sketch") -> Graph:
    """Build a graph from its drawing; values are float32 unless their shape is written ``opaque``."""
    inputs: list[str] = []
    outputs: list[str] = []
    nodes: list[Node] = []
    values: dict[str, Value] = {}
    parameters: dict[str, Parameter] = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        words = line.split()
        if words[0] == "in":
            inputs.append(words[1])
            values[words[1]] = Value(words[1], "float32", _shape(words[2]))
        elif words[0] == "par":
            shape = _shape(words[2])
            size_bytes = 4
            for dim in shape:
                size_bytes *= dim
            storage = words[3].removeprefix("tied=") if len(words) > 3 else words[1]
            parameters[words[1]] = Parameter(words[1], "float32", shape, storage, size_bytes)
        elif words[0] == "out":
            outputs += words[1:]
        else:
            head, _, tail = line.partition("->")
            kind, node_name, _, *read = head.split()
            made, shape_text, *rest = tail.split()
            flops = int(rest[0].removeprefix("flops=")) if rest else 0
            opaque = shape_text == "opaque"
            values[made] = Value(made, "opaque" if opaque else "float32", () if opaque else _shape(shape_text))
            nodes.append(Node(node_name, kind, OpKind(kind), tuple(read), (made,), flops, len(nodes)))
    return Graph(
        name,
        tuple(nodes),
        tuple(inputs),
        tuple(outputs),
        MappingProxyType(values),
        MappingProxyType(parameters),
        batch=batch,
    )


def layers_text(layer_graph: LayerGraph) -> str:
    """Draw layers: ``"fc: fc act | head: head"``."""
    names = [node.name for node in layer_graph.graph.nodes]
    return " | ".join(f"{layer.name}: {' '.join(names[i] for i in layer.nodes)}" for layer in layer_graph.layers)
