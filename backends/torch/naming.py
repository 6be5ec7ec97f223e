"""Names in written source: of the tensors a stage holds, and the words it has for itself.

A name from a model becomes part of the source only where it is a plain ASCII identifier; any other stands there as
a string literal, in ASCII.

Left out: names of values (``backends/local_names.py``), and of files, which are made of stage indices alone.
"""

import keyword
import re
from collections.abc import Container

from torch import nn

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_LONGEST_ATTRIBUTE = 100

# What the classes in a written file have for themselves, which an attribute of that name would hide or be hidden by.
_TAKEN = frozenset({*dir(nn.Module()), "at", "find", "hold", "inputs", "outputs", "tied_as"})
MODULE_LEVEL = frozenset({"math", "torch", "nn", "F", "Path", "Block", "TENSORS", "TIED", "TIED_AS", "load", "self"})


def attribute(name: str, tensors: Container[str] = ()) -> str:
    """Write how a stage reads a tensor by its dotted name: ``self.layer[0].weight``, ``self.at('we"ird')``.

    Args:
        name: Of the tensor.
        tensors: Names of all tensors of the stage; one of them may be a block on the way to another.
    """
    if is_behind_a_tensor(name, tensors):
        return f"self.find({name!a})"
    return "self" + "".join(map(step, name.split(".")))


def is_behind_a_tensor(name: str, tensors: Container[str]) -> bool:
    """Say whether a block on the way to a tensor has the name of a tensor, which an attribute would give instead."""
    path = name.split(".")
    return any(".".join(path[:i]) in tensors for i in range(1, len(path)))


def is_index(atom: str) -> bool:
    """Say whether a part of a name is a number as it is written."""
    return bool(_INDEX.fullmatch(atom))


def step(atom: str) -> str:
    """Write how a block reads what it has under a part of a name."""
    if is_index(atom):
        return f"[{atom}]"
    is_plain = _PLAIN.fullmatch(atom) and not keyword.iskeyword(atom) and len(atom) <= _LONGEST_ATTRIBUTE
    return f".{atom}" if is_plain and atom not in _TAKEN else f".at({atom!a})"
