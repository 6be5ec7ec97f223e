"""Sizes that depend on the elements of tensors (``nonzero``, ``masked_select``, ``item``), and their nodes.

Left out: what they are (nobody knows before the model runs; a plan takes the user's numbers).
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from heterps_compile.escape import one_line, printable, shorten

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+), in [^\n]*\n(?P<code>[^\n]*)', re.MULTILINE)
_PYTORCH = str(Path(torch.__file__).parent)
_NAME_SHOWN, _CODE_SHOWN, _NODES_SHOWN = 80, 60, 8

Symbol = Any  # a sympy.Symbol


def source_line(node: fx.Node) -> str:
    """Return the innermost line of the model's own source that made a node: ``model.py:7: i = x.nonzero()``; or ""."""
    frames = list(_FRAME.finditer(str(node.meta.get("stack_trace") or "")))
    own = [frame for frame in frames if not frame["file"].startswith(_PYTORCH)] or frames
    if not own:
        return ""
    code = shorten(one_line(own[-1]["code"]), _CODE_SHOWN)
    return printable(f"{shorten(Path(own[-1]['file']).name, _NAME_SHOWN)}:{own[-1]['line']}: {code}")


def data_sizes(nodes: Iterable[fx.Node]) -> dict[Symbol, fx.Node]:
    """Return the symbols in sizes of tensors that no input has, each with the node that makes it."""
    known: set[Symbol] = set()
    makers: dict[Symbol, fx.Node] = {}
    in_sizes: set[Symbol] = set()
    for node in nodes:
        leaves = pytree.tree_leaves(node.meta.get("val"))
        sizes = {s for leaf in leaves if isinstance(leaf, torch.Tensor) for s in _symbols(leaf.shape)}
        found = sizes | set(_symbols(leaves))
        if node.op == "placeholder":
            known |= found
        elif node.op.startswith("call_"):
            in_sizes |= sizes
            for symbol in sorted(found - known, key=str):
                makers.setdefault(symbol, node)
    return {symbol: node for symbol, node in makers.items() if symbol in in_sizes}


def told(node: fx.Node) -> str:
    """Say which node it is and where it stands in the model's source."""
    line = node.meta.get("line", "")
    return f"node '{printable(shorten(node.name, _NAME_SHOWN))}'{f' ({line})' if line else ''}"


def all_told(makers: dict[Symbol, fx.Node]) -> str:
    """List sizes with their makers: ``'u0' of node 'nonzero' (model.py:7: i = x.nonzero()), ...``."""
    shown = [f"{str(symbol)!r} of {told(node)}" for symbol, node in list(makers.items())[:_NODES_SHOWN]]
    more = len(makers) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _symbols(sizes: Iterable[Any]) -> list[Symbol]:
    return [
        symbol
        for size in sizes
        if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool))
        for symbol in size.node.expr.free_symbols
    ]
