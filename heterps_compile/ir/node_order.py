"""An order of a graph's nodes that depends on the graph alone: not on the order of its file, nor on names.

Two files of one model list its nodes in different topological orders, tower by tower or level by level. Layers are
placed in an order, and only runs of neighbours share a stage, so that the order decides which plans there are. This one
is made for plans of few and small transfers:

1. Embeddings that need no computation first, and what they read: the one with the smallest result first. A stage of
   embeddings is then one stage, however many towers read it.
2. What follows is walked from the outputs, a node after all that it needs (depth-first): a branch is finished before
   the next begins. Of a node's operands the one with the smallest result is made first, so that little waits for the
   others; of equal ones the one with more anchors behind it, then the one that the node reads first.
3. Nodes that no output needs come last, in the order of a hash of what they compute.

Nodes that all of this leaves equal are interchangeable: any order of them is the same problem.

Left out: devices (an order that is the best for one pool and one request is a search's to find).
"""

import hashlib
from collections.abc import Iterable, Iterator

from .graph import Graph, OpKind

_DIGEST_BYTES = 16


def canonical_order(graph: Graph) -> tuple[int, ...]:
    """Return the indices of a graph's nodes in the order of the rules above; O((nodes + edges) log edges)."""
    walk = _Walk(graph)
    walk.visit(graph.producer[name] for name in graph.outputs if name in graph.producer)
    walk.visit(_unneeded(graph, walk.order))
    first = sorted(_early_embeddings(graph, walk.order), key=lambda index: _made_bytes(graph, index))  # stable
    again = _Walk(graph)
    again.visit(first)
    again.visit(walk.order)
    return tuple(again.order)


class _Walk:
    """Depth-first over what nodes need; each node is listed after all of that."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order: list[int] = []
        self._seen = [False] * len(graph.nodes)
        self._anchors = _anchors_behind(graph)

    def visit(self, roots: Iterable[int]) -> None:
        """List all that the roots need and that is not listed yet, and the roots, in order."""
        for root in roots:
            if self._seen[root]:
                continue
            self._seen[root] = True
            open_nodes = [(root, self._needed(root))]
            while open_nodes:
                node, needed = open_nodes[-1]
                following = next((i for i in needed if not self._seen[i]), None)
                if following is None:
                    self.order.append(node)
                    open_nodes.pop()
                else:
                    self._seen[following] = True
                    open_nodes.append((following, self._needed(following)))

    def _needed(self, index: int) -> Iterator[int]:
        graph = self.graph
        made = [name for name in graph.nodes[index].inputs if name in graph.producer]
        made.sort(key=lambda name: (graph.size_bytes(name), -self._anchors[graph.producer[name]]))
        yield from (graph.producer[name] for name in made)
        yield from graph.predecessors[index]  # those that are no operands as well


def _anchors_behind(graph: Graph) -> list[int]:
    """Return the most anchors on any path that ends with each node."""
    found = [0] * len(graph.nodes)
    for index, node in enumerate(graph.nodes):
        found[index] = max((found[i] for i in graph.predecessors[index]), default=0) + node.kind.is_anchor
    return found


def _early_embeddings(graph: Graph, order: Iterable[int]) -> list[int]:
    """Return the embeddings that no other anchor comes before, in an order of the nodes."""
    computed = [False] * len(graph.nodes)
    found = []
    for index in order:
        kind = graph.nodes[index].kind
        computed[index] = any(computed[i] for i in graph.predecessors[index])
        if kind is OpKind.EMBEDDING and not computed[index]:
            found.append(index)
        computed[index] |= kind.is_anchor and kind is not OpKind.EMBEDDING
    return found


def _made_bytes(graph: Graph, index: int) -> int:
    return sum(map(graph.size_bytes, graph.nodes[index].outputs))


def _unneeded(graph: Graph, needed: Iterable[int]) -> list[int]:
    """Return the nodes that nothing follows and no output needs, in the order of a hash of what they compute."""
    left = set(range(len(graph.nodes))).difference(needed)
    ends = [index for index in left if not graph.successors[index]]
    if not ends:
        return []
    known = {name: f"input {place}" for place, name in enumerate(graph.inputs)}
    signs: list[str] = []
    for index, node in enumerate(graph.nodes):
        read = (known.get(name) or f"parameter {graph.parameters[name].shape}" for name in node.inputs)
        made = (f"{graph.values[name].dtype} {graph.shape(name)}" for name in node.outputs)
        before = sorted(signs[i] for i in graph.predecessors[index])  # operands, and what only has to run earlier
        text = "\n".join([node.op, *read, *made, *before])
        signs.append(hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest())
        known |= {name: f"{signs[index]}.{place}" for place, name in enumerate(node.outputs)}
    return sorted(ends, key=lambda index: signs[index])
