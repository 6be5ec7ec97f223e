"""Fingerprints: what a layer is and where it stands, whatever it is called and wherever it is numbered.

A fingerprint has three parts of 12 hexadecimal digits, ``own-before-after``, refined over the graph as Weisfeiler and
Lehman do::

    own      the ops of its nodes, the dtypes and shapes of what they make, of the parameters they read
    before   its anchor, and everything upstream: which input feeds it, through what
    after    its anchor, and everything downstream: which output it leads to, at which operand of what

The anchor is the node that a layer is named after; which cheap nodes join it may depend on the order in which a file
lists them, and then ``own`` alone is another. Two equal towers differ by the inputs they read, the query and the key of
an attention by what reads them; and a layer that is put in between changes only ``before`` below it and only ``after``
above it: every other layer still has a part by which it is found (``plan/match_layers.py``).

Left out: values of weights (``weights.py``), attributes that neither shapes nor parameters show (a dilation that a
padding makes up for), the numbers of symbolic dimensions.
"""

import hashlib
from collections.abc import Iterable

from heterps_compile.ir.graph import Graph, Node
from heterps_compile.ir.layers import LayerGraph

_DIGEST_BYTES = 6  # two of a million layers agree by chance once in 500 models


def make_fingerprints(layers: LayerGraph) -> dict[str, str]:
    """Return the fingerprint of every layer by its name; O(nodes + edges)."""
    graph = layers.graph
    own = _own(graph)
    before, after = _before(graph, own), _after(graph, own)
    found = {}
    for layer in layers.layers:
        anchor = next((i for i in layer.nodes if graph.nodes[i].name == layer.name), layer.nodes[0])
        found[layer.name] = f"{_digest(sorted(own[i] for i in layer.nodes))}-{before[anchor]}-{after[anchor]}"
    return found


def _own(graph: Graph) -> list[str]:
    symbols = _symbols(graph)
    return [
        _digest([node.op, *(_tensor(graph, symbols, name) for name in _read_and_made(graph, node))])
        for node in graph.nodes
    ]


def _read_and_made(graph: Graph, node: Node) -> Iterable[str]:
    yield from (name for name in node.inputs if name in graph.parameters)
    yield from node.outputs


def _tensor(graph: Graph, symbols: dict[str, str], name: str) -> str:
    if name in graph.parameters:
        parameter = graph.parameters[name]
        return f"{parameter.kind} {parameter.dtype} {list(parameter.shape)}"
    value = graph.values[name]
    return f"{value.dtype} {[dim if isinstance(dim, int) else symbols.get(dim, '?') for dim in value.shape]}"


def _symbols(graph: Graph) -> dict[str, str]:
    """Return every symbolic dimension of the inputs a name that does not depend on its own."""
    dims = [dim for name in graph.inputs for dim in graph.values[name].shape if isinstance(dim, str)]
    return {dim: f"?{number}" for number, dim in enumerate(dict.fromkeys(dims))}


def _before(graph: Graph, own: list[str]) -> list[str]:
    symbols = _symbols(graph)
    known = {name: f"input {place} {_tensor(graph, symbols, name)}" for place, name in enumerate(graph.inputs)}
    known |= {name: _tensor(graph, symbols, name) for name in graph.parameters}
    found = []
    for node, itself in zip(graph.nodes, own, strict=True):
        found.append(_digest([itself, *(known[name] for name in node.inputs)]))
        known |= {name: f"{found[-1]}.{place}" for place, name in enumerate(node.outputs)}
    return found


def _after(graph: Graph, own: list[str]) -> list[str]:
    found = [""] * len(graph.nodes)
    uses: dict[str, list[str]] = {}
    for place, name in enumerate(graph.outputs):
        uses.setdefault(name, []).append(f"output {place}")
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        found[index] = _digest([own[index], *("|".join(sorted(uses.get(name, ()))) for name in node.outputs)])
        for place, name in enumerate(node.inputs):
            uses.setdefault(name, []).append(f"{found[index]}.{place}")
    return found


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=_DIGEST_BYTES).hexdigest()
