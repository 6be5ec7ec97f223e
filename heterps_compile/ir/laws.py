"""The laws of a graph, as a list; the list is the verifier.

Left out: whether shapes agree with ops (shape inference in the front end decides that).
"""

from collections.abc import Callable, Iterator

from heterps_compile.errors import GraphError
from heterps_compile.units import format_bytes

from .graph import ITEM_BITS, OPAQUE, Graph

MOST_BYTES = 2**50
"""Of one value: beyond it times and sums of a model have no place in 64 bits."""


def _names_unique(graph: Graph) -> Iterator[str]:
    seen: set[str] = set()
    for node in graph.nodes:
        if node.name in seen:
            yield f"node {node.name!r} appears twice"
        seen.add(node.name)


def _one_producer(graph: Graph) -> Iterator[str]:
    made = set(graph.inputs)
    for node in graph.nodes:
        for out in node.outputs:
            if out in made or out in graph.parameters:
                yield f"value {out!r} is made twice, the second time by node {node.name!r}"
            made.add(out)


def _defined_before_use(graph: Graph) -> Iterator[str]:
    defined = {*graph.inputs, *graph.parameters}
    for node in graph.nodes:
        for name in node.inputs:
            if name not in defined:
                yield f"node {node.name!r} reads {name!r}, which no earlier node makes"
        defined.update(node.outputs)
    for name in graph.outputs:
        if name not in defined:
            yield f"output {name!r} is made by no node"


def _after_known(graph: Graph) -> Iterator[str]:
    seen: set[str] = set()
    for node in graph.nodes:
        for name in node.after:
            if name not in seen:
                yield f"node {node.name!r} has to run after {name!r}, which is no earlier node"
        seen.add(node.name)


def _values_described(graph: Graph) -> Iterator[str]:
    for name in (*graph.inputs, *(out for node in graph.nodes for out in node.outputs)):
        if name not in graph.values:
            yield f"value {name!r} has no dtype and shape"
    for value in graph.values.values():
        if value.dtype != OPAQUE and value.dtype not in ITEM_BITS:
            yield f"value {value.name!r} has unknown dtype {value.dtype!r}"


def _symbols_bound(graph: Graph) -> Iterator[str]:
    for value in graph.values.values():
        for dim in value.shape:
            if isinstance(dim, str) and dim not in graph.bindings:
                yield f"value {value.name!r} has dimension {dim!r}, which has no number"


def _sizes_not_negative(graph: Graph) -> Iterator[str]:
    for value in graph.values.values():
        if any(isinstance(dim, int) and dim < 0 for dim in value.shape):
            yield f"value {value.name!r} has a negative dimension: {value.shape}"
    for node in graph.nodes:
        if node.flops < 0:
            yield f"node {node.name!r} has {node.flops} FLOPs"


def _values_fit(graph: Graph) -> Iterator[str]:
    for name in graph.values:
        size = graph.size_bytes(name)
        if size > MOST_BYTES:
            shape = list(graph.shape(name))
            yield f"{name!r} of shape {shape} takes {format_bytes(size)}; give a smaller batch or sizes"


Law = tuple[str, Callable[[Graph], Iterator[str]]]

LAWS: tuple[Law, ...] = (
    ("every node has a name of its own", _names_unique),
    ("every value is made once", _one_producer),
    ("every value is made before it is read", _defined_before_use),
    ("every node comes after those it has to run after", _after_known),
    ("every value has a dtype and a shape", _values_described),
    ("every symbolic dimension has a number", _symbols_bound),
    ("no size is negative", _sizes_not_negative),
    ("no value takes more than 1 PiB", _values_fit),
)


def verify_graph(graph: Graph) -> None:
    """Check every law; O(nodes + edges).

    Raises:
        GraphError: naming the first law that is broken, where, and how often.
    """
    for law, faults in LAWS:
        broken = list(faults(graph))
        if broken:
            more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
            raise GraphError(f"graph {graph.name!r} breaks the law {law!r}: {broken[0]}{more}")
