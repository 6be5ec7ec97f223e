"""How verification keeps the memory that weights take in bounds.

The weights of a large model are used where they lie, and let go of between the run of the whole model and that of its
stages.

Left out: what a single op takes while it runs; inputs, outputs and what is between them (``batch.py``).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from heterps_compile.backends.contract import Backend
from heterps_compile.backends.find import own_backend
from heterps_compile.ir.graph import Graph

_LARGE_BYTES = 2**26


def _lean_backends(backend: Backend, graph: Graph) -> list[Backend]:
    """Return the backends in play for a graph of large weights; else none."""
    if sum({p.storage: p.size_bytes for p in graph.parameters.values()}.values()) < _LARGE_BYTES:
        return []
    return list({each.name: each for each in (own_backend(graph.family), backend)}.values())


@contextmanager
def weights_where_they_lie(backend: Backend, graph: Graph) -> Iterator[None]:
    """Run a model of large weights without copies of them, where a backend can."""
    with ExitStack() as stack:
        for each in _lean_backends(backend, graph):
            each.release(graph)
            stack.callback(each.release, graph)
            stack.enter_context(each.lean(graph))
        yield


def release_weights(backend: Backend, graph: Graph) -> None:
    """Give back memory of weights that can be read again."""
    for each in _lean_backends(backend, graph):
        each.release(graph)
