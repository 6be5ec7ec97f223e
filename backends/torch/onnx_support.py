"""Which nodes of an ONNX model the op table runs, and what it says of the others; the attributes of nodes.

Left out: how nodes become steps (``from_onnx.py``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from heterps_compile.backends.onnx_stage.ml_attributes import find_prepare, known_attributes
from heterps_compile.backends.onnx_stage.nodes import find_unsupported as nodes_unsupported
from heterps_compile.backends.onnx_stage.nodes import why_unprepared
from heterps_compile.backends.unsupported import UnsupportedNode, reason_without_row
from heterps_compile.escape import printable

from .onnx_ops.table import NEWEST_OPSET, find_op


def find_unsupported(nodes: Sequence[ir.Node], opsets: Mapping[str, int]) -> list[UnsupportedNode]:
    """Return the nodes, those of subgraphs too, that the table cannot run, and why."""
    return nodes_unsupported(nodes, opsets, _missing)


def _missing(node: ir.Node, domain: str, opset: int) -> str:
    if domain == "" and opset > NEWEST_OPSET:
        return f"the torch backend knows opsets up to {NEWEST_OPSET}"
    version = find_op(domain, node.op_type, opset)
    if version is None:
        return reason_without_row("torch", node.op_type)
    prepare = find_prepare(domain, node.op_type)
    known = version.attributes if prepare is None else known_attributes(node.op_type)
    unknown = [name for name in node.attributes if name not in known]
    if unknown:
        return f"the torch backend does not know its attribute {printable(unknown[0])!r}"
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return "it refers to an attribute of a function"
    if prepare is not None:
        return why_unprepared(node, prepare, attributes_of)
    if any(version.kind(i) is None for i, value in enumerate(node.inputs) if value is not None):
        return f"the torch backend takes {len(version.kinds)} inputs of it, and it has {len(node.inputs)}"
    return ""


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """Return the attributes of a node by ONNX's names."""
    return {name: plain(attribute) for name, attribute in node.attributes.items()}


def plain(attribute: ir.Attr) -> Any:
    """Return an attribute as Python has it."""
    if attribute.type is ir.AttributeType.TENSOR:
        return attribute.as_tensor().numpy()
    value = attribute.value
    return list(value) if isinstance(value, (tuple, list)) else value
