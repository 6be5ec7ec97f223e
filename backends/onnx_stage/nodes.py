"""What backends that run ONNX nodes by a table ask of a node, and which nodes such a table cannot run.

Left out: the tables, and what each says of a node (``backends/torch/onnx_support.py``, ``backends/jax/lower_onnx.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.escape import printable, shorten
from heterps_compile.frontends.onnx_bodies import shown_name, subgraphs

from .ml_attributes import Prepare

_REASON_SHOWN = 200

WhyNot = Callable[[ir.Node, str, int], str]
"""Says why a node of a domain and opset cannot be run, "" where it can."""


def find_unsupported(nodes: Sequence[ir.Node], opsets: Mapping[str, int], why_not: WhyNot) -> list[UnsupportedNode]:
    """Return the nodes, those of subgraphs too, that a table cannot run, and why."""
    found = []
    for node in nodes:
        domain = domain_of(node)
        opset = opset_of(opsets, domain)
        reason = why_not(node, domain, opset)
        if reason:
            found.append(UnsupportedNode(shown_name(node), node.op_type, domain or "ai.onnx", opset, reason))
        for body in subgraphs(node):
            found += find_unsupported(list(body), opsets, why_not)
    return found


def why_unprepared(node: ir.Node, prepare: Prepare, attributes: Callable[[ir.Node], dict[str, Any]]) -> str:
    """Say why what a node has in its attributes cannot be laid out, "" where it can."""
    try:
        prepare(attributes(node), are_read(node))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return printable(shorten(str(error), _REASON_SHOWN))
    return ""


def domain_of(node: ir.Node) -> str:
    """Return a node's domain, "" for ONNX's own."""
    return "" if node.domain == "ai.onnx" else node.domain


def opset_of(opsets: Mapping[str, int], domain: str) -> int:
    """Return the opset that a model imports for a domain."""
    return opsets.get(domain, opsets.get("ai.onnx", 1) if domain == "" else 1)


def are_read(node: ir.Node) -> list[bool]:
    """Say of every output of a node whether anybody reads it."""
    return [bool(out.uses()) or out.is_graph_output() for out in node.outputs]
