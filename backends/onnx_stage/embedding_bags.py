"""Bags of embeddings as ops that ONNX has; PyTorch's exporter would write a loop with one turn a bag.

::

    bags of one length      rows [bags, length, width]  -> reduced over the length
    bags between offsets    rows [items, width]         -> scattered to the bag of each item, reduced there

Bags of one length are what a 2-D input becomes: a flat list of items, and offsets that are a range with that step.
An empty bag is zero, and items with the padding index are in no bag, as PyTorch has it.

Left out: gradients scaled by frequency, which a forward run does not see.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.operator_schemas import normalize_function
from torch.fx.proxy import GraphAppendingTracer

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable

_aten: Any = torch.ops.aten
_BAGS = (
    _aten.embedding_bag.default,
    _aten.embedding_bag.padding_idx,
    _aten._embedding_bag.default,
    _aten._embedding_bag_forward_only.default,
)
_RANGES = (_aten.arange.default, _aten.arange.start, _aten.arange.start_step)
_SUM, _MEAN, _MAX = range(3)  # PyTorch's numbers of the modes


@dataclass(frozen=True, slots=True)
class _Bags:
    """The operands of one node, as proxies that append to its graph; ``length`` where all bags are of one."""

    weight: Any
    dtype: torch.dtype
    indices: Any
    offsets: Any
    mode: int
    sample_weights: Any
    padding: int
    includes_last: bool
    length: int | None


def rewrite_embedding_bags(program: ExportedProgram, stage: int) -> None:
    """Replace every bag of embeddings in a program's graph, in place.

    Raises:
        BackendError: naming stage and node of one whose other results are read, which ONNX has nothing for.
    """
    graph = program.graph
    tracer = GraphAppendingTracer(graph)
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _BAGS:
            continue
        results = {user: user.args[1] for user in node.users if user.target is operator.getitem}
        read = [place for user, place in results.items() if user.users]
        if len(results) < len(node.users) or any(place != 0 for place in read):
            raise BackendError(
                f"stage {stage} cannot become ONNX: node {printable(node.name)!r} ({node.target}) is read for more "
                f"than the bags themselves (result {max(read)}), and ONNX has no op for that; take the backend torch"
            )
        with graph.inserting_before(node):
            bags = _operands(node, lambda operand: fx.Proxy(operand, tracer))
            made = (_between_offsets if bags.length is None else _of_one_length)(bags).node
        made.meta["val"] = node.meta["val"][0]
        for user in results:
            user.replace_all_uses_with(made)
            graph.erase_node(user)
        graph.erase_node(node)
    program.graph_module.recompile()


def _operands(node: fx.Node, proxy: Callable[[fx.Node], fx.Proxy]) -> _Bags:
    normal = normalize_function(node.target, node.args, node.kwargs, normalize_to_only_use_kwargs=True)  # type: ignore[arg-type]  # a node's own
    assert normal is not None  # noqa: S101 - an op always has a schema; this tells the type checker
    given: dict[str, Any] = normal.kwargs
    padding, weights = given.get("padding_idx"), given.get("per_sample_weights")
    return _Bags(
        proxy(given["weight"]),
        given["weight"].meta["val"].dtype,
        proxy(given["indices"]),
        proxy(given["offsets"]),
        int(given.get("mode", _SUM)),
        None if weights is None else proxy(weights),
        -1 if padding is None else int(padding),
        bool(given.get("include_last_offset", False)),
        None if given.get("include_last_offset") else _length(given["indices"], given["offsets"]),
    )


def _length(indices: fx.Node, offsets: fx.Node) -> int | None:
    """Return the step of offsets that are a range from 0 to the number of items, or None where they are not."""
    if offsets.target not in _RANGES:
        return None
    bounds = [_value(bound) for bound in offsets.args]
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: tuple(bounds)}[len(bounds)]
    (items,) = indices.meta["val"].shape
    whole = isinstance(step, int) and step > 0 and start == 0 and statically_known_true(items % step == 0)
    return int(step) if whole and statically_known_true(end == items) else None


def _value(bound: Any) -> Any:
    return bound.meta["val"] if isinstance(bound, fx.Node) else bound


def _of_one_length(bags: _Bags) -> Any:
    items = _aten.reshape.default(bags.indices, [-1, bags.length])
    rows = _aten.embedding.default(bags.weight, items)
    if bags.sample_weights is not None:
        weights = _aten.reshape.default(bags.sample_weights, [-1, bags.length])
        rows = _aten.mul.Tensor(rows, _aten.unsqueeze.default(weights, 2))
    if bags.padding < 0:
        reduce = {_SUM: _aten.sum.dim_IntList, _MEAN: _aten.mean.dim, _MAX: _aten.amax.default}[bags.mode]
        return reduce(rows, [1])
    kept = _aten.unsqueeze.default(_aten.ne.Scalar(items, bags.padding), 2)
    count = _aten.sum.dim_IntList(_aten.to.dtype(kept, bags.dtype), [1])
    if bags.mode == _MAX:
        rows = _aten.where.ScalarOther(kept, rows, float("-inf"))
        return _or_zero(_aten.amax.default(rows, [1]), count)
    total = _aten.sum.dim_IntList(_aten.where.ScalarOther(kept, rows, 0.0), [1])
    return _mean(total, count) if bags.mode == _MEAN else total


def _between_offsets(bags: _Bags) -> Any:
    offsets = _aten.slice.Tensor(bags.offsets, 0, 0, -1) if bags.includes_last else bags.offsets
    rows = _aten.embedding.default(bags.weight, bags.indices)
    if bags.sample_weights is not None:
        rows = _aten.mul.Tensor(rows, _aten.unsqueeze.default(bags.sample_weights, 1))
    # an item's bag is the last one that begins at or before it
    place = _aten.cumsum.default(_aten.ones_like.default(bags.indices, dtype=torch.int64), 0)
    begun = _aten.lt.Tensor(_aten.unsqueeze.default(offsets, 0), _aten.unsqueeze.default(place, 1))
    bag = _aten.sub.Tensor(_aten.sum.dim_IntList(_aten.to.dtype(begun, torch.int64), [1]), 1)
    bag = _aten.unsqueeze.default(bag, 1)
    kept = _aten.unsqueeze.default(_aten.ne.Scalar(bags.indices, bags.padding), 1)
    none = _aten.zeros_like.default(_aten.unsqueeze.default(offsets, 1), dtype=bags.dtype)  # [bags, 1]
    empty = _aten.add.Tensor(none, _aten.zeros_like.default(_aten.slice.Tensor(bags.weight, 0, 0, 1)))  # [bags, width]
    count = _aten.scatter_add.default(none, 0, bag, _aten.to.dtype(kept, bags.dtype))
    bag = _aten.expand_as.default(bag, rows)
    if bags.mode == _MAX:
        rows = _aten.where.ScalarOther(kept, rows, float("-inf"))
        lowest = _aten.sub.Scalar(empty, float("inf"))
        return _or_zero(_aten.scatter_reduce.two(lowest, 0, bag, rows, "amax"), count)
    rows = _aten.where.ScalarOther(kept, rows, 0.0)
    total = _aten.scatter_add.default(empty, 0, bag, rows)
    return _mean(total, count) if bags.mode == _MEAN else total


def _mean(total: Any, count: Any) -> Any:
    return _aten.div.Tensor(total, _aten.clamp.default(count, 1))


def _or_zero(largest: Any, count: Any) -> Any:
    return _aten.where.ScalarOther(_aten.gt.Scalar(count, 0), largest, 0.0)
