"""Ops that PyTorch's exporter translates to what differs at the edges, rewritten before it does.

::

    attention with a mask         -> 0 in rows that the mask hides whole, where a softmax gives NaN or the mean
    attention not of rank 4       -> its products and a softmax (``attention.py``)
    scatter_reduce with "mean"    -> the sum over the count; ONNX's scatter has no mean
    avg_pool2d with a divisor     -> the mean, times the window's size over the divisor, which the exporter drops
    a mean of nothing             -> NaN, where ONNX Runtime gives 0
    dropout that drops nothing    -> its input under another name, which what is changed in place has in common with it
    smoothed labels               refused: the exporter drops the smoothing

Left out: attention with dropout, which training writes out (``rewrite_training.py``); the order in which ``topk`` gives
equal elements, which PyTorch leaves open.
"""

import math
from typing import Any, NoReturn

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.operator_schemas import normalize_function
from torch.fx.proxy import GraphAppendingTracer
from torch.utils import _pytree as pytree

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable

from .attention import ATTENTION, write_out

_aten: Any = torch.ops.aten
_SCATTER = _aten.scatter_reduce.two
_POOL = _aten.avg_pool2d.default
_LOSS = _aten.cross_entropy_loss.default
_RANK = 4  # of attention that the exporter translates
_DROPOUTS = (
    _aten.dropout.default,
    _aten.feature_dropout.default,
    _aten.alpha_dropout.default,
    _aten.feature_alpha_dropout.default,
)
_EDGES = (ATTENTION, _SCATTER, _POOL, _LOSS, _aten.mean.default, _aten.mean.dim, *_DROPOUTS)


def rewrite_edges(program: ExportedProgram, stage: int) -> None:
    """Rewrite such nodes of a traced stage, in place.

    Raises:
        BackendError: naming stage and node of one that has no translation.
    """
    graph = program.graph
    tracer = GraphAppendingTracer(graph)
    for node in [n for n in graph.nodes if n.op == "call_function" and n.target in _EDGES]:
        if not all("val" in read.meta for read in node.all_input_nodes):
            continue  # made by another rewriting, as a bag's mean is
        given = _given(node, tracer)
        with graph.inserting_before(node):
            made = _made(node, given, stage)
        if made is not None:
            made.node.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(made.node)
            graph.erase_node(node)
    program.graph_module.recompile()


def _given(node: fx.Node, tracer: GraphAppendingTracer) -> dict[str, Any]:
    """Return the arguments of a node by name, nodes as proxies that append to the graph."""
    target: Any = node.target
    normal = normalize_function(target, node.args, node.kwargs, normalize_to_only_use_kwargs=True)
    assert normal is not None  # noqa: S101 - an op always has a schema; this tells the type checker

    def proxy(value: Any) -> Any:
        return fx.Proxy(value, tracer) if isinstance(value, fx.Node) else value

    return {name: pytree.tree_map(proxy, value) for name, value in normal.kwargs.items()}


def _made(node: fx.Node, given: dict[str, Any], stage: int) -> Any:
    """Return what a node becomes, or None where it stays."""
    if node.target is ATTENTION:
        return _attention(node, given)
    if node.target is _SCATTER:
        return _scatter(given)
    if node.target is _POOL:
        return _pool(node, given, stage)
    if node.target in _DROPOUTS:
        return None if given["train"] and given["p"] else _aten.alias.default(given["input"])
    if node.target is not _LOSS:
        return _mean(node, given)
    if given.get("label_smoothing"):
        _refuse(node, stage, "smooths its labels (label_smoothing), which PyTorch's exporter drops")
    return None


def _refuse(node: fx.Node, stage: int, fault: str) -> NoReturn:
    raise BackendError(
        f"stage {stage} cannot become ONNX: node {printable(node.name)!r} ({node.target}) {fault}; leave that out, or "
        f"take the backend torch"
    )


def _attention(node: fx.Node, given: dict[str, Any]) -> Any:
    mask = given.get("attn_mask")
    if given.get("dropout_p"):
        return None
    if any(given[name].node.meta["val"].ndim != _RANK for name in ("query", "key", "value")):
        return write_out(given)
    if mask is None:
        return None
    if mask.node.meta["val"].dtype == torch.bool:
        is_seen = _aten.any.dim(mask, -1, True)
        open_mask = _aten.logical_or.default(mask, _aten.logical_not.default(is_seen))
    else:
        is_seen = _aten.gt.Scalar(_aten.amax.default(mask, [-1], True), -math.inf)
        open_mask = _aten.where.ScalarOther(is_seen, mask, 0.0)
    options = {name: given[name] for name in ("is_causal", "scale", "enable_gqa") if name in given}
    attended = ATTENTION(given["query"], given["key"], given["value"], open_mask, **options)
    attended.node.meta["val"] = node.meta["val"]
    return _aten.where.ScalarOther(is_seen, attended, 0.0)


def _scatter(given: dict[str, Any]) -> Any:
    if given["reduce"] != "mean":
        return None
    places = (given["dim"], given["index"])
    options = {"include_self": given.get("include_self", True)}
    x, source = given["input"], given["src"]
    total = _SCATTER(x, *places, source, "sum", **options)
    count = _SCATTER(_aten.ones_like.default(x), *places, _aten.ones_like.default(source), "sum", **options)
    if x.node.meta["val"].is_floating_point():
        return _aten.div.Tensor(total, count)
    return _aten.div.Tensor_mode(total, count, rounding_mode="floor")


def _pool(node: fx.Node, given: dict[str, Any], stage: int) -> Any:
    divisor = given.get("divisor_override")
    if divisor is None:
        return None
    if given.get("ceil_mode"):
        _refuse(node, stage, "has a divisor of its own and windows beyond the edge (ceil_mode)")
    sides = [int(side) for side in given["kernel_size"]]
    size = sides[0] * sides[-1]
    places = [given.get(name) or default for name, default in (("stride", []), ("padding", [0, 0]))]
    return _aten.mul.Tensor(_POOL(given["input"], sides, *places, False, True), size / divisor)


def _mean(node: fx.Node, given: dict[str, Any]) -> Any:
    read, made = given["input"].node.meta["val"], node.meta["val"]
    is_of_nothing = any(isinstance(size, int) and size == 0 for size in read.shape)
    if not is_of_nothing or not all(isinstance(size, int) and size for size in made.shape):
        return None
    kept = {"dtype": given["dtype"]} if given.get("dtype") else {}
    over = (given["dim"], given.get("keepdim", False)) if node.target is _aten.mean.dim else ()
    total = (_aten.sum.dim_IntList if over else _aten.sum.default)(given["input"], *over, **kept)
    return _aten.div.Tensor(total, total)  # 0 / 0
