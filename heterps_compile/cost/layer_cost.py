"""The work of every layer, FLOPs and bytes from shapes alone, and whether data or computation dominates it.

What fuses is free: an elementwise or view result that stays inside its layer is assumed to stay in registers
or cache, as in ONNX Runtime and compiled PyTorch; every other intermediate is written once and read once.
An embedding reads the rows it gathers, not its table.

The first layer of a model has a kind of work besides, a *cold start*: a pass over a model displaces from the caches
what the next one begins with, code above all, so that its first layer takes longer than the same layer once more. That
grows with the bytes that a pass moves, up to what caches hold (``docs/profiling.md`` has what was measured).

Left out: caches, padding to tile sizes, the order in which a kernel walks its operands; the device a layer ends on
(``problem.py`` has its time on every type).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from heterps_compile.ir.graph import (
    COLD_START,
    DEPTHWISE,
    DROPOUT,
    DROPPING_ATTENTION,
    ITEM_BITS,
    OPAQUE,
    Graph,
    Node,
    OpKind,
)
from heterps_compile.ir.layers import Layer, LayerGraph

from .precision import copied_parameters

DATA_INTENSIVE = "data"
COMPUTE_INTENSIVE = "compute"


CACHES_BYTES = 32 << 20
"""Of which a pass displaces as much as it moves: the last-level cache that a core has, roughly."""


@dataclass(frozen=True, slots=True)
class KindWork:
    """What the nodes of one kind in a layer do for one batch, forward.

    Attributes:
        kind: One of :data:`~heterps_compile.ir.graph.WORK_KINDS`.
        operations: Kernels; of a concatenation one for every part. Views start none, and are called all the same.
        flops: Floating-point operations; of what draws random numbers their count, of look-ups that of rows.
        moved_bytes: What they read and make that grows with the batch; of an embedding the rows too; of an attention
            its weights, of which exponentials are taken wherever they are kept.
        parameter_bytes: Weights that they read whatever the batch.
        table_bytes: Tables that rows are gathered from: a backward makes their gradients whole, whatever the batch, but
            sparse ones.
        has_backward: Whether training has a backward of it: what is made of ids and constants alone has none.
    """

    kind: str
    operations: int
    flops: int
    moved_bytes: int
    parameter_bytes: int
    table_bytes: int = 0
    has_backward: bool = field(default=True, kw_only=True)

    def bytes_of(self, part: float = 1.0) -> float:
        """Return the bytes that are moved for a part of the batch; a cold start has all of a pass, up to the caches."""
        moved_bytes = self.moved_bytes * part + self.parameter_bytes
        return min(moved_bytes, float(CACHES_BYTES)) if self.kind == COLD_START else moved_bytes


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A trained table of which a step makes the gradients of rows alone, and what a layer looks up in it for a batch.

    Attributes:
        name: Of the parameter.
        rows: Each as often as it is looked up.
        is_pushed: Whether servers that the run starts step the table, to which its rows go; else all look-ups in it
            say so themselves (``sparse=True``).
    """

    name: str
    rows: int
    is_pushed: bool = False


@dataclass(frozen=True, slots=True)
class LayerCost:
    """The work of one layer for one batch.

    Attributes:
        flops: Floating-point operations, forward.
        parameter_bytes: Weights, buffers and constants it reads.
        touched_bytes: The part of its parameters that one batch reads: all, or the rows an embedding gathers.
        input_bytes: Activations that enter it.
        output_bytes: Activations that leave it.
        moved_bytes: All traffic with memory, forward: inputs, outputs, touched parameters, large intermediates.
        operations: Kernels it starts; views start none.
        label: ``"data"`` or ``"compute"``; "" until annotated.
        reason: The numbers behind the label.
        inside_bytes: The largest array that is made inside and does not leave.
        copied_bytes: Narrow copies of its float32 parameters, where it computes in less (``precision.py``).
        by_kind: The work of its nodes one by one, added up by kind; nothing fuses in it.
        fixed_bytes: The part of ``moved_bytes`` that every part of a batch moves again: weights, and narrow copies of
            them.
        served: Names of its tables that lie on parameter servers; its parameters above are the others.
        pulled_bytes: Of their rows that a batch looks up (``served_tables.py``).
        looked_up: Its tables whose gradients are of rows alone; of all others gradients are whole (``gradients.py``).
        saved: The arrays that it keeps for the backward, by name with their bytes (``saved.py``); None where no nodes
            say so, and it keeps all that enters and leaves it.
    """

    flops: int
    parameter_bytes: int
    touched_bytes: int
    input_bytes: int
    output_bytes: int
    moved_bytes: int
    operations: int
    label: str = ""
    reason: str = ""
    inside_bytes: int = 0
    copied_bytes: int = 0
    by_kind: tuple[KindWork, ...] = ()
    fixed_bytes: int = 0
    served: tuple[str, ...] = ()
    pulled_bytes: int = 0
    looked_up: tuple[LookedUp, ...] = ()
    saved: tuple[tuple[str, int], ...] | None = None

    @property
    def flop_per_byte(self) -> float:
        """Return the arithmetic intensity."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def table_bytes(self) -> int:
        """Return the bytes of the gradients of tables that a backward makes whole."""
        return sum(work.table_bytes for work in self.by_kind if work.has_backward)


_STAYS_IN_CACHE = frozenset({OpKind.ELEMENTWISE, OpKind.VIEW, OpKind.SHAPE, OpKind.CONSTANT})
_STARTS_NO_KERNEL = frozenset({OpKind.VIEW, OpKind.SHAPE})
_TAKES_APART = frozenset({"_operator.getitem"})  # the results of a node; nothing is called
_READS_AS_MUCH_AS_IT_MAKES = frozenset({OpKind.EMBEDDING, OpKind.MOVE, OpKind.CONSTANT})


def layer_costs(layer_graph: LayerGraph) -> tuple[LayerCost, ...]:
    """Return the work of every layer for one batch, forward; O(nodes + edges)."""
    entering = [0] * len(layer_graph.layers)
    leaving = [0] * len(layer_graph.layers)
    for edge in layer_graph.edges:
        if edge.producer >= 0:
            leaving[edge.producer] += edge.size_bytes
        for reader in edge.consumers:
            entering[reader] += edge.size_bytes
    crossing, trained = {edge.value for edge in layer_graph.edges}, of_weights(layer_graph.graph)
    sparse = _sparse_tables(layer_graph.graph)
    found = tuple(
        replace(
            _layer_cost(layer_graph.graph, layer, entering[i], leaving[i], crossing, trained),
            looked_up=tuple(_looked_up(layer_graph.graph, layer, sparse)),
        )
        for i, layer in enumerate(layer_graph.layers)
    )
    return (_begun_cold(found[0], found), *found[1:]) if found else found


def _begun_cold(first: LayerCost, costs: Sequence[LayerCost]) -> LayerCost:
    """Return the work of a layer that begins a pass over all."""
    works = [work for cost in costs for work in cost.by_kind]
    moved = sum(work.moved_bytes for work in works)
    kept = sum(work.parameter_bytes + work.table_bytes for work in works)
    return replace(first, by_kind=(*first.by_kind, KindWork(COLD_START, 1, 0, moved, kept, has_backward=False)))


def _sparse_tables(graph: Graph) -> set[str]:
    """Return the trained weights that look-ups with sparse gradients read, and nothing else does, under any name."""
    found = {name for name, parameter in graph.parameters.items() if parameter.kind == "weight"}
    read = {name for node in graph.nodes if node.sparse for name in node.inputs}
    otherwise = {name for node in graph.nodes if not node.sparse for name in node.inputs}
    dense = {graph.parameters[name].storage for name in found & (otherwise | set(graph.outputs))}
    return {name for name in found & read if graph.parameters[name].storage not in dense}


def _looked_up(graph: Graph, layer: Layer, sparse: set[str]) -> Iterator[LookedUp]:
    if not sparse:
        return
    rows: dict[str, int] = {}
    for node in (graph.nodes[i] for i in layer.nodes):
        for name in sparse.intersection(node.inputs):
            rows[name] = rows.get(name, 0) + looked_up_rows(graph, node)
    yield from (LookedUp(name, rows[name]) for name in layer.parameters if name in rows)


def of_weights(graph: Graph) -> set[str]:
    """Return the values that a gradient goes through: made of weights, and neither integers nor truths."""
    found = {name for name, parameter in graph.parameters.items() if parameter.kind == "weight"}
    for node in graph.nodes:
        if any(name in found for name in node.inputs):
            found.update(name for name in node.outputs if not _is_whole(graph, name))
    return found


def _is_whole(graph: Graph, name: str) -> bool:
    return name in graph.values and graph.values[name].dtype.startswith(("int", "uint", "bool"))


def _layer_cost(  # noqa: PLR0917 - a layer, what crosses its ends, and two sets of values
    graph: Graph, layer: Layer, input_bytes: int, output_bytes: int, crossing: set[str], trained: set[str]
) -> LayerCost:
    flops = operations = intermediate_bytes = inside_bytes = 0
    gathered: dict[str, int] = {}
    copied: dict[str, int] = {}
    for i in layer.nodes:
        node = graph.nodes[i]
        flops += node.flops
        operations += node.kind not in _STARTS_NO_KERNEL
        if node.kind is OpKind.EMBEDDING:
            rows_bytes = looked_up_bytes(graph, node)
            for name in node.inputs:
                if name in graph.parameters:
                    gathered[name] = gathered.get(name, 0) + rows_bytes
        copied.update({name: graph.parameters[name].size_bytes // 2 for name in copied_parameters(graph, node)})
        kept = [graph.size_bytes(out) for out in node.outputs if out not in crossing]
        if node.kind not in _STAYS_IN_CACHE:
            intermediate_bytes += sum(kept)
        inside_bytes = max(inside_bytes, node.scratch_bytes, *(kept if node.kind is not OpKind.VIEW else ()))
    sizes = {name: graph.parameters[name].size_bytes for name in layer.parameters}
    touched_bytes = sum(min(size, gathered.get(name, size)) for name, size in sizes.items())
    copies_bytes = 2 * sum(copied.values())  # a copy is written and read beside the reading of what it is of
    return LayerCost(
        flops=flops,
        parameter_bytes=sum(sizes.values()),
        touched_bytes=touched_bytes,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        moved_bytes=input_bytes + output_bytes + touched_bytes + 2 * intermediate_bytes + copies_bytes,
        operations=operations,
        inside_bytes=inside_bytes,
        copied_bytes=sum(copied.values()),
        by_kind=_work_by_kind(graph, layer, trained),
        fixed_bytes=sum(size for name, size in sizes.items() if name not in gathered) + copies_bytes,
    )


def _work_by_kind(graph: Graph, layer: Layer, trained: set[str]) -> tuple[KindWork, ...]:
    """Return the work of the nodes, by kind in the order of their first ones.

    A view moves nothing, but an eager runtime calls it as it calls a kernel; what takes a result apart is no call. Ids
    that are a part of others, such as a column of them, do not lie side by side: a look-up copies them first.
    """
    found: dict[tuple[str, bool], tuple[int, ...]] = {}

    def add(kind: str, work: tuple[int, ...], *, has_backward: bool) -> None:
        before = found.get((kind, has_backward), (0,) * len(work))
        found[kind, has_backward] = tuple(map(sum, zip(before, work, strict=True)))

    makers = {name: node for node in (graph.nodes[i] for i in layer.nodes) for name in node.outputs}
    for i in layer.nodes:
        node = graph.nodes[i]
        has_backward = any(name in trained for name in node.outputs)
        if node.kind is OpKind.VIEW and node.op not in _TAKES_APART:
            add(str(OpKind.VIEW), (1, 0, 0, 0, 0), has_backward=has_backward)
        if node.kind in _STARTS_NO_KERNEL:
            continue
        if node.kind is OpKind.EMBEDDING:
            copied = sum(graph.size_bytes(name) for name in node.inputs if _is_strided(graph, makers.get(name)))
            if copied:
                add(str(OpKind.MOVE), (1, 0, 2 * copied, 0, 0), has_backward=False)
        made = sum(graph.size_bytes(out) for out in node.outputs)
        held = sum(graph.parameters[name].size_bytes for name in set(node.inputs) if name in graph.parameters)
        if node.kind in _READS_AS_MUCH_AS_IT_MAKES:
            parts = _parts(graph, node) if node.kind is OpKind.MOVE else 1
            work = (parts, node.flops, 2 * made, 0, 0)
            if node.kind is OpKind.EMBEDDING:
                given = made or sum(graph.size_bytes(out) for out in _parts_of(graph, layer, node))
                work = (
                    1,
                    looked_up_rows(graph, node),
                    looked_up_bytes(graph, node) + given,
                    0,
                    0 if node.sparse else held,
                )
        else:
            read = sum(graph.size_bytes(name) for name in set(node.inputs) if name not in graph.parameters)
            inside = _attention_bytes(graph, node) if node.kind is OpKind.ATTENTION else 0
            work = (1, node.flops, made + read + inside, held, 0)
        kind = DEPTHWISE if _is_depthwise(graph, i) else str(node.kind)
        if node.draws and node.kind is OpKind.ATTENTION:
            kind = DROPPING_ATTENTION
        elif node.draws and node.kind in (OpKind.ELEMENTWISE, OpKind.CONSTANT):
            kind, work = DROPOUT, (1, sum(map(graph.numel, _tensors(graph, node.outputs))), *work[2:])
        add(kind, work, has_backward=has_backward)
    return tuple(KindWork(kind, *work, has_backward=has_backward) for (kind, has_backward), work in found.items())


def looked_up_bytes(graph: Graph, node: Node) -> int:
    """Return the bytes of the rows of tables that a node looks up: what it gives, of a bag what it adds up."""
    tables = [graph.parameters[name] for name in node.inputs if name in graph.parameters]
    if _is_bag(node) and tables and tables[0].shape and tables[0].shape[0] > 0:
        return looked_up_rows(graph, node) * (tables[0].size_bytes // tables[0].shape[0])
    return sum(graph.size_bytes(out) for out in node.outputs)


def _is_bag(node: Node) -> bool:
    return node.kind is OpKind.EMBEDDING and "embeddingbag" in node.op.lower().replace("_", "")


def looked_up_rows(graph: Graph, node: Node) -> int:
    """Return how many rows of tables a node looks up; a bag has ids first, and then where its bags begin."""
    ids = [name for name in _tensors(graph, node.inputs) if _is_whole(graph, name)]
    return sum(graph.numel(name) for name in (ids[:1] if _is_bag(node) else ids))


def _parts_of(graph: Graph, layer: Layer, node: Node) -> Iterator[str]:
    """Yield the floats among the parts of a node's result, which is no tensor."""
    for part in (graph.nodes[i] for i in layer.nodes):
        if part.op in _TAKES_APART and node.outputs[:1] == part.inputs[:1]:
            yield from (out for out in part.outputs if not _is_whole(graph, out))


def _is_strided(graph: Graph, maker: Node | None) -> bool:
    """Whether a value is a part of another one that does not lie there in one piece: its columns, not its rows."""
    if maker is None or maker.kind is not OpKind.VIEW or not maker.inputs or maker.inputs[0] not in graph.values:
        return False
    made, of = graph.shape(maker.outputs[0]), graph.shape(maker.inputs[0])
    return 0 < prod(made) < prod(of) and (len(made) < 1 or tuple(made[-(len(of) - 1) :]) != tuple(of[1:]))


def _tensors(graph: Graph, names: Iterable[str]) -> list[str]:
    return [name for name in names if name in graph.values and graph.values[name].dtype != OPAQUE]


def _parts(graph: Graph, node: Node) -> int:
    """Return how many tensors a node puts together; indices are none."""
    made = _tensors(graph, node.outputs)
    dtype = graph.values[made[0]].dtype if made else ""
    return max(1, sum(graph.values[name].dtype == dtype for name in _tensors(graph, node.inputs)))


def _attention_bytes(graph: Graph, node: Node) -> int:
    """Return the bytes of the weights of an attention, as far as its heads are a dimension of what it reads."""
    query, key = (*_tensors(graph, node.inputs)[:2], "", "")[:2]
    if not key or len(graph.shape(query)) < 2 or len(graph.shape(key)) < 2:
        return 0
    return prod(graph.shape(query)[:-1]) * graph.shape(key)[-2] * ITEM_BITS[graph.values[query].dtype] // 8


def _is_depthwise(graph: Graph, index: int) -> bool:
    """Whether a node convolves every channel by itself: its weight has one channel, and what it reads has more."""
    node = graph.nodes[index]
    if node.kind is not OpKind.CONV:
        return False
    weights = [graph.parameters[name].shape for name in node.inputs if name in graph.parameters]
    read = [graph.values[name].shape for name in node.inputs if name in graph.values]
    return any(len(shape) > 2 and shape[1] == 1 for shape in weights) and any(
        len(shape) > 2 and shape[1] != 1 for shape in read
    )
