"""Modules that hold tensors under their original dotted names.

Names come from a model and may be anything: they go straight into a module's own tables, never through attribute
access, so that a parameter called ``inputs`` or ``forward`` is as good as any other.

Left out: methods of the modules the names came from.
"""

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import nn

Slot = tuple[MutableMapping[str, Any], str]
"""Where a tensor is held: a module's table, and the key in it."""


def hold_module(root: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module into a tree under a dotted path, with what the tree holds there already."""
    parent, atom = _descend(root, path)
    parent._modules[atom] = module


def hold_tensor(root: nn.Module, name: str, tensor: torch.Tensor, *, is_transient: bool) -> Slot:
    """Put a tensor into a tree under a dotted name and give its place; the tree may have it already.

    Args:
        root: Of the tree.
        name: ``state_dict`` key.
        tensor: The tensor itself; it is shared. It is held as a parameter where it is one, else as a buffer.
        is_transient: Whether ``state_dict`` leaves it out.
    """
    owner, atom = _descend(root, name)
    for table in (owner._parameters, owner._buffers):
        if atom in table:
            return table, atom
    if isinstance(tensor, nn.Parameter):
        owner._parameters[atom] = tensor
        return owner._parameters, atom
    owner._buffers[atom] = tensor
    if is_transient:
        owner._non_persistent_buffers_set.add(atom)
    return owner._buffers, atom


def _descend(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that holds a dotted name, made where it is missing, and the name's last part."""
    *path, atom = name.split(".")
    owner = root
    for part in path:
        child = owner._modules.get(part)
        if child is None:
            child = nn.Module()
            owner._modules[part] = child
        owner = child
    return owner, atom
