"""The text around a written stage: everything in it but the tensors and the nodes.

Left out: how the marked places are filled (``print_stage.py``).
"""

TEMPLATE = r'''"""Stage @@INDEX@@ of @@MODEL@@, written by heterps-compile.

Plain PyTorch: ``load()`` gives the stage with its weights, an ``nn.Module`` that can be run and trained. It takes the
values named in ``inputs``, in order, and gives a tuple of those named in ``outputs``.
"""

import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

# Name in the model: what it is, dtype, shape. A "constant" is not part of the model's state_dict.
TENSORS = @@TENSORS@@

# Names that share the tensor of another name.
TIED = @@TIED@@

# Tensors that go by several names in the model, and the one among them by which the plan calls the tensor: what has
# the same name there in two stages is one tensor, and its gradients are to be added up.
TIED_AS = @@TIED_AS@@


class Block(nn.Module):
    """Holds tensors and blocks under the names they have in the model, whatever those are."""

    def at(self, name):
        """Give a tensor or block by its name."""
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                return table[name]
        raise AttributeError(name)

    def find(self, name):
        """Give a tensor by its dotted name, also where a block and a tensor on the way have one name."""
        *path, last = name.split(".")
        block = self
        for part in path:
            block = block._modules[part]
        return block.at(last)

    def __getitem__(self, index):
        """Give a tensor or block that is named by a number."""
        return self.at(str(index))

    def hold(self, name, kind, tensor):
        """Put a tensor under its dotted name."""
        *path, last = name.split(".")
        block = self
        for part in path:
            block = block._modules.setdefault(part, Block())
        if kind == "weight" or kind == "frozen weight":
            block._parameters[last] = tensor
        else:
            block._buffers[last] = tensor
            if kind == "constant":
                block._non_persistent_buffers_set.add(last)


class Stage@@INDEX@@(Block):
    """The stage; give it its tensors by name, as ``load()`` does."""

    inputs = @@INPUTS@@
    outputs = @@OUTPUTS@@
    tied_as = TIED_AS

    def __init__(self, tensors):
        super().__init__()
        made = {}
        for name, (kind, dtype, shape) in TENSORS.items():
            source = TIED.get(name, name)
            if source not in made:
                if source not in tensors:
                    raise ValueError(f"tensor {source!r} is missing")
                tensor = tensors[source]
                if tensor.dtype != dtype or tuple(tensor.shape) != shape:
                    found = f"{tensor.dtype} {tuple(tensor.shape)}"
                    raise ValueError(f"tensor {source!r} is {found}, it must be {dtype} {shape}")
                is_weight = kind in ("weight", "frozen weight")
                made[source] = nn.Parameter(tensor, requires_grad=kind == "weight") if is_weight else tensor
            self.hold(name, kind, made[source])

@@FORWARD@@


def load(path=None):
    """Give the stage with its weights, read from the safetensors file beside this one or from another."""
    from safetensors.torch import load_file

    read = load_file(path or Path(__file__).with_name("stage_@@INDEX@@.safetensors"))
    # A file's tensors begin at any address, and how a product rounds can depend on that; copies begin where torch's do.
    return Stage@@INDEX@@({name: tensor.clone() for name, tensor in read.items()})
'''
