"""Python source of the constants that ops take; reading it back gives the same constant, of the same type.

Left out: tensors (they are parameters) and objects of the user's own classes.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def literal(value: Any, find: Callable[[fx.Node], str]) -> str:
    """Write a constant, or a structure of constants and nodes, as a Python expression in ASCII.

    Args:
        value: What to write.
        find: Gives the expression of a node.

    Raises:
        TypeError: for what has no such expression.
    """
    if isinstance(value, fx.Node):
        return find(value)
    # fx keeps its own list and dict types, so containers go by kind and scalars by exact type
    if isinstance(value, tuple):
        return _sequence(value, find, "(", ")", "," if len(value) == 1 else "")
    if isinstance(value, list):
        return _sequence(value, find, "[", "]", "")
    if isinstance(value, dict):
        items = (f"{literal(k, find)}: {literal(v, find)}" for k, v in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, slice):
        parts = (literal(part, find) for part in (value.start, value.stop, value.step))
        return f"slice({', '.join(parts)})"
    if type(value) is range:
        return f"range({value.start}, {value.stop}, {value.step})"
    if value is Ellipsis:
        return "..."
    if value is None or type(value) in (bool, int):
        return repr(value)
    if type(value) is str:
        return ascii(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if type(value) is complex:
        return f"complex({literal(value.real, find)}, {literal(value.imag, find)})"
    if type(value) is torch.device:
        return f"torch.device({str(value)!a})"
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        name = str(value).removeprefix("torch.")
        if getattr(torch, name, None) is value:
            return f"torch.{name}"
    raise TypeError(f"a {type(value).__name__} has no literal")


def _sequence(values: Any, find: Callable[[fx.Node], str], left: str, right: str, tail: str) -> str:
    return left + ", ".join(literal(value, find) for value in values) + tail + right
