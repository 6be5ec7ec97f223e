"""Names in an ONNX model: shown in messages, made unique, read for the module they tell of.

Left out: names in a terminal or in Markdown (:mod:`heterps_compile.escape`).
"""

import re
from collections.abc import Iterable

import onnx_ir as ir

from heterps_compile.escape import shorten

_SHOWN = 80
_NAMES_SHOWN = 3
_SCOPES = "pkg.torch.onnx.name_scopes"  # written by torch.onnx.export: "['', 'encoder', 'encoder.layer.0', 'add']"
_SCOPE = re.compile(r"'([^'\\]*)'")


def quote(name: str | None) -> str:
    """Return a name in quotes for a message: escaped, and cut in the middle where it is long."""
    return repr(shorten(name or "", _SHOWN))


def quote_some(names: Iterable[str]) -> str:
    """Return a few names and the number of the others."""
    every = list(names)
    more = f" and {len(every) - _NAMES_SHOWN} more" if len(every) > _NAMES_SHOWN else ""
    return ", ".join(map(quote, every[:_NAMES_SHOWN])) + more


def op_name(node: ir.Node) -> str:
    """Return the op with its domain, which is left out where it is ONNX's own: ``com.microsoft::Gelu``."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def describe(node: ir.Node) -> str:
    """Return a node for a message: its name, or an output's where it has none, and its op."""
    known = node.name or next((out.name for out in node.outputs if out.name), "")
    return f"node {quote(known)} ({shorten(op_name(node), _SHOWN)})"


def free_name(wanted: str, taken: set[str]) -> str:
    """Return the name, with a number behind it where it is taken, and take it."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name


def name_nodes(graph: ir.Graph) -> None:
    """Give every node of the graph a name of its own; the first to bear a name keeps it."""
    given = {node.name for node in graph if node.name}
    seen: set[str] = set()
    nameless: dict[str, int] = {}
    for node in graph:
        wanted = node.name
        if not wanted:
            number = nameless[node.op_type] = nameless.get(node.op_type, -1) + 1
            wanted = f"{node.op_type}_{number}"
        if wanted in seen or not node.name:
            wanted = node.name = free_name(wanted, given)
        seen.add(wanted)


def module_path(node: ir.Node) -> str:
    """Return the dotted path of the module a node came from, or "" where the model does not name it.

    ``torch.onnx.export(dynamo=True)`` writes it into the node's metadata; older exporters scope the node's name,
    as in ``/encoder/layer.0/MatMul``.
    """
    scopes = node.metadata_props.get(_SCOPES)
    if scopes:
        found = _SCOPE.findall(scopes)
        return found[-2] if len(found) > 1 else ""
    *path, _ = (node.name or "").split("/")
    return ".".join(part for part in path if part)
