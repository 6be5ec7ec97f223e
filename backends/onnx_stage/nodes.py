"""What backends that run ONNX nodes by a table ask of a node, and which nodes such a table cannot run.

Left out: the tables (``backends/torch/onnx_ops/table.py``, ``backends/jax/table.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx_ir as ir

from heterps_compile.backends.unsupported import UnsupportedNode, reason_without_row
from heterps_compile.escape import printable, shorten
from heterps_compile.frontends.onnx_bodies import shown_name, subgraphs
from heterps_compile.frontends.onnx_facts import NEWEST_OPSET

from .ml_attributes import Prepare, find_prepare, known_attributes

_NAME_SHOWN, _REASON_SHOWN = 80, 200


class Body(Protocol):
    """What a table has for a version of an op."""

    @property
    def max_inputs(self) -> int | None:
        """Return how many inputs it takes, None where it is any number or not known."""
        ...

    def knows(self, attribute: str) -> bool:
        """Say whether it has an attribute, by ONNX's name."""
        ...


@dataclass(frozen=True, slots=True)
class OpTable:
    """The op table of a backend.

    Attributes:
        backend: Its name, for messages.
        find: Returns what it has for a domain, op and opset, None where that is nothing.
        attributes: Reads those of a node, by ONNX's names.
    """

    backend: str
    find: Callable[[str, str, int], Body | None]
    attributes: Callable[[ir.Node], dict[str, Any]]


def find_unsupported(nodes: Sequence[ir.Node], opsets: Mapping[str, int], table: OpTable) -> list[UnsupportedNode]:
    """Return the nodes, those of subgraphs too, that a table cannot run, and why."""
    found = []
    for node in nodes:
        domain = domain_of(node)
        opset = opset_of(opsets, domain)
        reason = _why_not(table, node, domain, opset)
        if reason:
            found.append(UnsupportedNode(shown_name(node), node.op_type, domain or "ai.onnx", opset, reason))
        for body in subgraphs(node):
            found += find_unsupported(list(body), opsets, table)
    return found


def _why_not(table: OpTable, node: ir.Node, domain: str, opset: int) -> str:
    body, backend = table.find(domain, node.op_type, opset), table.backend
    if domain == "" and opset > NEWEST_OPSET:
        return f"the {backend} backend knows opsets up to {NEWEST_OPSET}"
    if body is None:
        return reason_without_row(backend, node.op_type)
    prepare = find_prepare(domain, node.op_type)
    known = body.knows if prepare is None else known_attributes(node.op_type).__contains__
    unknown = [name for name in node.attributes if not known(name)]
    if unknown:
        return f"the {backend} backend does not know its attribute {printable(shorten(unknown[0], _NAME_SHOWN))!r}"
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return "it refers to an attribute of a function"
    if prepare is not None:
        return _why_unprepared(node, prepare, table.attributes)
    most = body.max_inputs
    if most is not None and any(value is not None for value in node.inputs[most:]):
        return f"the {backend} backend takes {most} inputs of it, and it has {len(node.inputs)}"
    return ""


def _why_unprepared(node: ir.Node, prepare: Prepare, attributes: Callable[[ir.Node], dict[str, Any]]) -> str:
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
