"""Choose the batch that verification runs at, so that it leaves memory to others.

1. At the batch of the plan, where what verification holds at once stays within a limit.
2. Else at a smaller one, where the batch of the model is dynamic and the whole model runs at it.
3. Else at the batch of the plan, where that fits the memory that is free.
4. Else not at all; a note has the numbers.

Left out: weights (``large_weights.py``), what a kernel takes beside its operands, what fusing saves.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

from heterps_compile.host_memory import available_bytes
from heterps_compile.ir.graph import TORCH, Graph, OpKind
from heterps_compile.plan.plan_notes import NOT_VERIFIED
from heterps_compile.units import format_bytes

_LEAST_BATCH = 2  # models that were exported for any batch may still ask for more than one sample
_SHARE_OF_FREE = 4
_LIMIT_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Bytes that verification may take.

    Attributes:
        free_bytes: More than that does not fit.
        wanted_bytes: More than that is not taken where a smaller batch avoids it.
    """

    free_bytes: int
    wanted_bytes: int

    @classmethod
    def of_machine(cls) -> Self:
        """Return those of this machine at this moment: a quarter of what is free, at most 1 GiB."""
        free = available_bytes()
        return cls(free, min(free // _SHARE_OF_FREE, _LIMIT_BYTES))


@dataclass(frozen=True, slots=True)
class VerifiedBatch:
    """At which batch verification runs.

    Attributes:
        graph: That inputs are generated for, or None where nothing is run.
        note: On it, "" where none is needed.
    """

    graph: Graph | None
    note: str = ""


def choose_batch(
    graph: Graph, limits: MemoryLimits, calls: int, *, is_trained: bool, why_not: Callable[[Graph], str]
) -> VerifiedBatch:
    """Choose the batch that verification runs at.

    Args:
        graph: At the batch of the plan.
        limits: Of memory.
        calls: That inputs are generated for.
        is_trained: Whether gradients are compared as well.
        why_not: Runs the whole model at the batch of a graph; says why it does not take that batch, "" where it does.
    """
    needed = working_set_bytes(graph, graph.batch, calls, is_trained=is_trained)
    if needed <= limits.wanted_bytes:
        return VerifiedBatch(graph)
    least = working_set_bytes(graph, graph.batch, calls)
    refused = ""
    if _is_free(graph):
        batch = _smaller(graph.batch, graph.batch * limits.wanted_bytes // needed)
        at_batch = working_set_bytes(graph, batch, calls)
        if at_batch <= limits.free_bytes:
            smaller = with_batch(graph, batch)
            why = why_not(smaller)
            if not why:
                return VerifiedBatch(smaller, f"verified at batch {batch:,} of {graph.batch:,}, to spare memory")
            refused = f"; a batch of {batch:,} would spare memory, and the whole model does not take it: {why}"
        else:
            least, refused = at_batch, f", at a batch of {batch:,} too"
    if least <= limits.free_bytes:
        return VerifiedBatch(graph, f"verified at the batch of {graph.batch:,}{refused}" if refused else "")
    return VerifiedBatch(
        None,
        f"{NOT_VERIFIED} at a batch of {graph.batch:,}: the inputs and outputs of the whole model and of its "
        f"stages, and what is between them, take {format_bytes(least)}{refused}, and "
        f"{format_bytes(limits.free_bytes)} of memory are free",
    )


def with_batch(graph: Graph, batch: int) -> Graph:
    """Return a graph of dynamic batch whose inputs have another one; values of an ONNX model keep their numbers."""
    assert graph.batch_symbol is not None  # noqa: S101 - the callers have asked; this tells the type checker
    bindings = MappingProxyType({**graph.bindings, graph.batch_symbol: batch})
    return replace(graph, bindings=bindings, batch=batch)


def working_set_bytes(graph: Graph, batch: int, calls: int, *, is_trained: bool = False) -> int:
    """Estimate the bytes that verification holds at once; O(nodes + edges).

    Inputs of every call and a copy of those of one, outputs of the whole model and of its stages, and the largest set
    of other values that live at the same time. For gradients all values live, and so do their gradients.

    Args:
        graph: At the batch of the plan.
        batch: The batch to run at. A value that comes of an input of the batch shrinks with it if one of its dimensions
            is the batch or a multiple of it.
        calls: That inputs are generated for.
        is_trained: Whether gradients are computed.
    """
    sizes = _sizes(graph, batch)
    outputs = {name for name in graph.outputs if name in sizes}
    ends = outputs.union(graph.inputs)
    inside = {name: 0 if name in ends else size for name, size in sizes.items()}
    between = 2 * _made(graph, inside) if is_trained else _largest_live(graph, inside)
    return (calls + 1) * sum(sizes[name] for name in graph.inputs) + 2 * sum(sizes[o] for o in outputs) + between


def _sizes(graph: Graph, batch: int) -> dict[str, int]:
    """Return the bytes of every value at a batch."""
    reached = {name for name in graph.inputs if graph.batch_symbol in graph.values[name].shape}
    for node in graph.nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)

    def size(name: str) -> int:
        whole = graph.size_bytes(name)
        grows = name in reached and any(_is_of_batch(graph, dim) for dim in graph.values[name].shape)
        return -(-whole * batch // graph.batch) if grows else whole

    return {name: size(name) for name in graph.values}


def _is_of_batch(graph: Graph, dim: int | str) -> bool:
    """Say whether a dimension grows with the batch; what a front end has put into numbers is judged by these."""
    return dim == graph.batch_symbol if isinstance(dim, str) else dim > 0 and dim % graph.batch == 0


def _made(graph: Graph, sizes: dict[str, int]) -> int:
    return sum(sizes[out] for node in graph.nodes if node.kind is not OpKind.VIEW for out in node.outputs)


def _largest_live(graph: Graph, sizes: dict[str, int]) -> int:
    """Return the most bytes of values that live while a node runs; a view lives in what it is a view of."""
    home: dict[str, str] = {}
    last: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        read = [name for name in node.inputs if name in sizes]
        for out in node.outputs:
            home[out] = home.get(read[0], read[0]) if node.kind is OpKind.VIEW and read else out
            last[home[out]] = index
        for name in read:
            last[home.get(name, name)] = index
    dying: dict[int, list[str]] = {}
    for name, index in last.items():
        dying.setdefault(index, []).append(name)
    live = largest = 0
    for index, node in enumerate(graph.nodes):
        live += sum(sizes[out] for out in node.outputs if home[out] == out)
        largest = max(largest, live)
        live -= sum(sizes[name] for name in dying.get(index, ()) if name in home)
    return largest


def _smaller(batch: int, most: int) -> int:
    """Return a batch up to a number: by halves where possible, so that it stays even where the model needs that."""
    while batch > max(most, _LEAST_BATCH) and batch % (2 * _LEAST_BATCH) == 0:
        batch //= 2
    return min(batch, max(most, _LEAST_BATCH))


def _is_free(graph: Graph) -> bool:
    """Say whether the batch can be another number without a contradiction among the inputs."""
    return graph.batch_symbol is not None and graph.batch > _LEAST_BATCH and not has_computed_sizes(graph)


def has_computed_sizes(graph: Graph) -> bool:
    """Check whether sizes of inputs follow from the batch."""
    if graph.family != TORCH:
        return False
    from heterps_compile.frontends.torch_symbols import inputs_of_computed_size  # noqa: PLC0415 - torch only for its own

    return bool(inputs_of_computed_size(graph))
