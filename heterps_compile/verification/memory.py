"""How verification keeps the memory it takes in bounds.

The weights of a large model are used where they lie, and let go of between the run of the whole model and that of its
stages.

Left out: what a single op takes while it runs.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod

from heterps_compile.backends.contract import Backend, LeanBackend
from heterps_compile.backends.find import own_backend
from heterps_compile.host_memory import available_bytes
from heterps_compile.ir.graph import ITEM_BITS, Graph
from heterps_compile.units import format_bytes

_LARGE_BYTES = 2**28


def _lean_backends(backend: Backend, graph: Graph) -> list[LeanBackend]:
    """Give the backends in play that can run with little memory, for a graph of large weights; else none."""
    if sum({p.storage: p.size_bytes for p in graph.parameters.values()}.values()) < _LARGE_BYTES:
        return []
    found = {each.name: each for each in (own_backend(graph.family), backend)}
    return [each for each in found.values() if isinstance(each, LeanBackend)]


def too_large_to_run(graph: Graph) -> str:
    """Say why a run of the model on inputs of the graph's sizes would not fit the memory that is free, or give ""."""
    needed, free = 2 * _inputs_and_outputs_bytes(graph), available_bytes()
    if needed <= free:
        return ""
    batch = f" at a batch of {graph.batch:,}" if graph.batch is not None else ""
    return (
        f"not verified{batch}: the inputs and outputs of the whole model and of its stages take "
        f"{format_bytes(needed)}, and {format_bytes(free)} of memory are free"
    )


def _inputs_and_outputs_bytes(graph: Graph) -> int:
    """Give the bytes that exist at once at the least: inputs, and the outputs of all of the model."""
    names = [name for name in dict.fromkeys((*graph.inputs, *graph.outputs)) if name in graph.values]
    described = [(graph.values[name].dtype, graph.shape(name)) for name in names]
    return sum(prod(shape) * ITEM_BITS[dtype] // 8 for dtype, shape in described if dtype in ITEM_BITS)


@contextmanager
def weights_where_they_lie(backend: Backend, graph: Graph) -> Iterator[None]:
    """Run a model of large weights without copies of them, where a backend can."""
    with ExitStack() as stack:
        for each in _lean_backends(backend, graph):
            each.release(graph)
            stack.callback(each.release, graph)
            stack.enter_context(each.lean())
        yield


def release_weights(backend: Backend, graph: Graph) -> None:
    """Give back memory of weights that can be read again."""
    for each in _lean_backends(backend, graph):
        each.release(graph)
