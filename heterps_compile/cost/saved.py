"""The arrays that autograd saves of every node for the backward, each storage once.

An op saves the arrays that its derivative reads, as PyTorch lists them (``tools/autograd/derivatives.yaml``): inputs,
its output, or arrays of its own such as masks and statistics. A view saves its base. Under autocast a product saves the
narrow copy of a wide input, and an op that computes in float32 the wide copy of a narrow one. A copy belongs to one
node, as autocast shares copies of weights alone. An op without an entry here saves its inputs and its output.

Kernels are those of CPUs for every pool, which save the most: a mask of dropout as wide as its input, and of attention
that drops weights its products, in float32. Kernels of GPUs save less, and are not measured. A pool of CPUs alone takes
autocast's list for CPUs, every other pool that for GPUs.

Left out: parameters and their narrow copies (``memory.py``); statistics of batches, a number a channel; losses; cuDNN's
recurrence, which is counted as oneDNN's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod

from heterps_compile.cluster.devices import Cluster
from heterps_compile.ir.graph import ITEM_BITS, OPAQUE, Graph, Node, OpKind
from heterps_compile.ir.layers import LayerGraph

from .layer_cost import LayerCost, of_weights
from .precision import in_precision, is_product, plain_name, stays_wide

Saved = tuple[str, int]
"""The name of an array, and its bytes."""

_NOTHING, _OUTPUT, _INPUT, _FACTORS, _INDICES = "nothing", "output", "input", "factors", "indices"
_SAVED_OF: Mapping[str, str] = {
    op: saved
    for saved, ops in (
        (
            _NOTHING,
            "add sub rsub neg mean sum cat concat stack clone contiguous pad constant_pad_nd copy to _to_copy cast "
            "float type_as reducesum reducemean identity transpose permute reshape roll flip repeat tile expand detach "
            "cumsum upsample_nearest2d upsample_bilinear2d resize",
        ),
        (
            _OUTPUT,
            "relu sigmoid tanh exp expm1 sqrt rsqrt reciprocal softmax _softmax log_softmax _log_softmax logsoftmax",
        ),
        (
            _INPUT,
            "gelu silu hardswish hardtanh relu6 hardsigmoid elu leaky_relu leakyrelu softplus mish log log1p log2 "
            "log10 pow abs sin cos erf square clamp clamp_min clamp_max clip avg_pool1d avg_pool2d avg_pool3d "
            "averagepool adaptive_avg_pool1d adaptive_avg_pool2d log_sigmoid threshold var std",
        ),
        (_FACTORS, "mul div true_divide"),
        (_INDICES, "index index_select gather where masked_fill"),
    )
    for op in ops.split()
}
"""By an op's plain name; kinds of ops with arrays of their own have functions below."""

_STATE_BYTES: Mapping[str, tuple[int, int]] = {"lstm": (26, 10), "gru": (0, 8)}
"""A number of a hidden state of a step: bytes, and further ones for each byte of an item (measured, oneDNN)."""
_PLAIN_STATE = (0, 3)


def with_saved(
    layer_graph: LayerGraph, costs: Sequence[LayerCost], precision: str, pool: Cluster
) -> tuple[LayerCost, ...]:
    """Return the work of layers with the arrays that each saves on the devices of a pool; O(nodes).

    Args:
        layer_graph: The layers, with values as the model was read.
        costs: The work of each.
        precision: One of :data:`~heterps_compile.cost.precision.PRECISIONS`.
        pool: The devices.
    """
    on_cpu = all(device.kind == "cpu" for device in pool.device_types)
    graph = in_precision(layer_graph.graph, precision, on_cpu=on_cpu)
    count = _Count(graph, of_weights(graph), _bases(graph), on_cpu=on_cpu)
    found = []
    for layer, cost in zip(layer_graph.layers, costs, strict=True):
        arrays = {name: size for node in layer.nodes for name, size in count.saved(graph.nodes[node])}
        scratch_bytes = max((graph.nodes[node].scratch_bytes for node in layer.nodes), default=0)
        if scratch_bytes > sum(arrays.values()):
            arrays[f"scratch of {layer.name}"] = scratch_bytes - sum(arrays.values())
        found.append(replace(cost, saved=tuple(arrays.items())))
    return tuple(found)


def _bases(graph: Graph) -> dict[str, str]:
    """Return, for every view, the value whose storage it shares."""
    bases: dict[str, str] = {}
    for node in graph.nodes:
        of = next((name for name in node.inputs if name in graph.values), "")
        base = bases.get(of, of)
        if node.kind is OpKind.VIEW and base and graph.values[base].dtype != OPAQUE:
            kept = {graph.values[base].dtype, OPAQUE}  # another dtype is a copy
            bases.update({name: base for name in node.outputs if graph.values[name].dtype in kept})
    return bases


@dataclass(frozen=True, slots=True)
class _Count:
    """What is known of a graph: the values that gradients go through, the bases of views, autocast's list."""

    graph: Graph
    trained: Set[str]
    bases: Mapping[str, str]
    on_cpu: bool

    def saved(self, node: Node) -> Iterator[Saved]:
        """Yield the arrays that the backward of a node reads."""
        if not any(name in self.trained for name in node.outputs):
            return
        plain = plain_name(node.op)
        saved = _SAVED_OF.get(plain)
        own = _OF_OPS.get(plain) or _OF_KINDS.get(node.kind)
        made = [name for name in node.outputs if self._is_float(name)]
        if own is not None:
            yield from own(self, node)
        elif saved == _FACTORS:
            yield from self._factors(node)
        elif saved == _INDICES:
            yield from self._indices(node)
        elif saved == _INPUT:
            is_mean = plain.startswith("adaptive") and prod(self.graph.shape(made[0])[2:]) == 1
            yield from () if is_mean else self._inputs(node, 1)
        elif saved == _OUTPUT or node.kind is OpKind.SOFTMAX:
            yield from map(self._whole, made)
        elif saved is None:
            yield from self._inputs(node)
            yield from map(self._whole, made)

    def _is_float(self, name: str) -> bool:
        return name in self.graph.values and "float" in self.graph.values[name].dtype

    def _whole(self, name: str) -> Saved:
        base = self.bases.get(name, name)
        return base, self.graph.size_bytes(base)

    def _own(self, node: Node, part: str, count: int, item_bytes: int) -> Saved:
        return f"{part} of {node.name}", count * item_bytes

    def _item_bytes(self, node: Node) -> int:
        """Return the bytes of an item of a node's result; of a result of several parts those of the first."""
        readers = (out for i in self.graph.consumers.get(node.outputs[0], ()) for out in self.graph.nodes[i].outputs)
        made = next((name for name in (*node.outputs, *readers) if self._is_float(name)), None)
        return 4 if made is None else ITEM_BITS[self.graph.values[made].dtype] // 8

    def _inputs(self, node: Node, count: int | None = None) -> Iterator[Saved]:
        """Yield floating inputs as the node reads them, which is a copy where autocast casts them."""
        item_bytes = self._item_bytes(node)
        casts = is_product(node) or stays_wide(node, on_cpu=self.on_cpu)
        for name in [name for name in node.inputs if self._is_float(name)][:count]:
            if casts and ITEM_BITS[self.graph.values[name].dtype] != 8 * item_bytes:
                yield self._own(node, f"{name} cast", self.graph.numel(name), item_bytes)
            else:
                yield self._whole(name)

    def _indices(self, node: Node) -> Iterator[Saved]:
        values = self.graph.values
        wholes = (name for name in node.inputs if name in values and not self._is_float(name))
        yield from (self._whole(name) for name in wholes if values[name].dtype != OPAQUE)

    def _factors(self, node: Node) -> Iterator[Saved]:
        """Yield the factors that the gradient of another one is made of."""
        trained = [i for i, name in enumerate(node.inputs) if name in self.trained]
        is_divided = "div" in plain_name(node.op) and 1 in trained  # the gradient of a divisor is made of both
        factors = [i for i in range(len(node.inputs)) if is_divided or set(trained) - {i}]
        read = {self.bases.get(node.inputs[i], node.inputs[i]) for i in factors}
        copies = self._inputs(node)
        floats = [name for name in node.inputs if self._is_float(name)]
        yield from (copy for name, copy in zip(floats, copies, strict=True) if self.bases.get(name, name) in read)

    def _norm(self, node: Node) -> Iterator[Saved]:
        yield from self._inputs(node, 1)
        floats = [name for name in node.inputs if self._is_float(name)]
        if "layer" in plain_name(node.op) and floats:
            yield self._own(node, "statistics", 2 * prod(self.graph.shape(floats[0])[:-1]), 4)

    def _dropout(self, node: Node) -> Iterator[Saved]:
        if node.draws:
            yield self._own(node, "mask", self.graph.numel(node.outputs[0]), self._item_bytes(node))

    def _max_pool(self, node: Node) -> Iterator[Saved]:
        yield from self._inputs(node)
        yield self._own(node, "indices", self.graph.numel(node.outputs[0]), 8)

    def _attention(self, node: Node) -> Iterator[Saved]:
        query, key, value = (name for name in (*node.inputs, *node.inputs[-1:] * 3)[:3])
        shape, keys = self.graph.shape(query), self.graph.shape(key)
        rows = prod(shape[:-1])
        if node.draws:
            for part, name in (("query", query), ("key", key), ("value", value)):
                yield self._own(node, part, self.graph.numel(name), 4)
            yield self._own(node, "weights, mask and product", 3 * rows * keys[-2], 4)
            return
        yield from self._inputs(node, 4)  # with a mask of numbers; one of truths becomes numbers
        for mask in (name for name in node.inputs[3:4] if name in self.graph.values and not self._is_float(name)):
            yield self._own(node, "mask", self.graph.numel(mask), self._item_bytes(node))
        yield self._whole(node.outputs[0])
        yield self._own(node, "sums", rows, 4)

    def _recurrent(self, node: Node) -> Iterator[Saved]:
        yield from self._inputs(node)
        shapes = [self.graph.parameters[name].shape for name in node.inputs if name in self.graph.parameters]
        matrices = [shape for shape in shapes if len(shape) > 1]
        if not matrices:
            return
        item_bytes = self._item_bytes(node)
        fixed, by_item = _STATE_BYTES.get(plain_name(node.op), _PLAIN_STATE)
        steps = self.graph.numel(node.inputs[0]) // matrices[0][-1]
        states = steps * sum(prod(shape[:-2]) * shape[-1] for shape in matrices[1::2])
        yield self._own(node, "states", states, fixed + by_item * item_bytes)


_Own = Callable[[_Count, Node], Iterator[Saved]]
_OF_OPS: Mapping[str, _Own] = {
    "dropout": _Count._dropout,
    "maxpool": _Count._max_pool,
    "max_pool1d": _Count._max_pool,
    "max_pool2d": _Count._max_pool,
    "max_pool3d": _Count._max_pool,
}
_OF_KINDS: Mapping[OpKind, _Own] = {
    OpKind.VIEW: lambda _count, _node: iter(()),
    OpKind.SHAPE: lambda _count, _node: iter(()),
    OpKind.CONSTANT: lambda _count, _node: iter(()),
    OpKind.EMBEDDING: _Count._indices,
    OpKind.CONV: _Count._inputs,
    OpKind.GEMM: _Count._inputs,
    OpKind.MATMUL: _Count._factors,
    OpKind.ATTENTION: _Count._attention,
    OpKind.RECURRENT: _Count._recurrent,
    OpKind.NORM: _Count._norm,
}
