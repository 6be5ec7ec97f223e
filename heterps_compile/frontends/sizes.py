"""Find the values of a graph that are computed from shapes alone, and the nodes that compute them."""

from heterps_compile.ir.graph import Graph, OpKind


def of_shapes_alone(graph: Graph) -> set[str]:
    """List values computed from shapes alone."""
    found: set[str] = set()
    for node in graph.nodes:
        read = [name for name in node.inputs if name in graph.values]
        if node.kind is OpKind.SHAPE or (read and found.issuperset(read) and not node.draws):
            found.update(node.outputs)
    return found


def nodes_of_size(graph: Graph, name: str) -> tuple[set[int], set[str]]:
    """List the nodes that compute a value from shapes, and the tensors whose shapes they read."""
    found, read, waiting = set[int](), set[str](), [name]
    while waiting:
        index = graph.producer[waiting.pop()]
        node = graph.nodes[index]
        if index not in found:
            found.add(index)
            if node.kind is OpKind.SHAPE:
                read.update(node.inputs)
            else:
                waiting += [n for n in node.inputs if n in graph.producer]
    return found, read
