"""Which nodes of a PyTorch model become no ONNX, found before any stage is cut.

A node is looked up in the table of PyTorch's exporter; what is not there is taken apart as the exporter does, by
itself. That table has no public name: where a release of PyTorch has it elsewhere, such nodes are found when their
stage is exported.

Left out: nodes that change a tensor in place, modules, and calls that were traced as they are; they too are found then.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.frontends.torch_program import quiet_tracing
from heterps_compile.ir.graph import Graph

from .exporter_registry import read_once
from .missing_translations import MISSING, OPSET
from .quiet_export import quiet_export

_REWRITTEN = ("aten.embedding_bag", "aten._embedding_bag")  # before the export


def find_unwritable(graph: Graph) -> list[UnsupportedNode]:
    """Return the nodes of a graph of the family ``"torch"`` that the exporter has no ONNX for."""
    with quiet_export():
        exporter = _exporter()
    if exporter is None:
        return []
    nodes = list(graph.source.graph.nodes)
    found = []
    judged: dict[Any, str] = {}
    for node in graph.nodes:
        traced = nodes[node.origin]
        if traced.target not in judged:
            judged[traced.target] = _missing(traced, exporter)
        if judged[traced.target]:
            reason = f"ONNX has nothing for {judged[traced.target]}"
            found.append(UnsupportedNode(node.name, node.op, traced.target.namespace, OPSET, reason))
    return found


@dataclass(frozen=True, slots=True)
class _Exporter:
    """PyTorch's exporter: whether it has an op in its table, and how it takes others apart."""

    has: Callable[[Any], bool]
    decompositions: dict[Any, Callable[..., Any]]


@cache
def _exporter() -> _Exporter | None:
    try:
        from torch.onnx._internal.exporter import _decomp, _registration  # noqa: PLC0415 - see above

        with read_once():
            registry = _registration.ONNXRegistry.from_torchlib()
        known = set(_decomp.get_onnx_implemented_overloads(registry)) | set(MISSING)
        decompositions = _decomp.create_onnx_friendly_decomposition_table(known)
        return _Exporter(lambda op: op in MISSING or registry.is_registered(op), decompositions)
    except (ImportError, AttributeError):
        return None


def _missing(node: fx.Node, exporter: _Exporter) -> str:
    """Return the name of an op that a node becomes and the exporter does not know, or ""."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable:
        return ""
    if str(op).startswith(_REWRITTEN):
        return ""
    parts = _parts(op, node, exporter)
    return next((str(part) for part in parts if not (part._schema.is_mutable or exporter.has(part))), "")


def _parts(op: Any, node: fx.Node, exporter: _Exporter) -> Iterator[Any]:
    """Yield the ops that the exporter makes of one, or none where it cannot be said."""
    if exporter.has(op):
        return
    given, spec = pytree.tree_flatten((node.args, node.kwargs))
    values = [leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf for leaf in given]
    places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        args, kwargs = pytree.tree_unflatten(
            [tensors[places.index(i)] if i in places else value for i, value in enumerate(values)], spec
        )
        return op(*args, **kwargs)

    try:
        with quiet_tracing(), torch.no_grad():
            traced = make_fx(call, decomposition_table=exporter.decompositions)(*(values[i] for i in places))
    except Exception:  # noqa: BLE001 - whatever keeps it from being taken apart alone, the export says
        return
    yield from (n.target for n in traced.graph.nodes if isinstance(n.target, torch._ops.OpOverload))
