"""A copy of a PyTorch model in float64.

Left out: models that ask for another precision themselves (``x.float()``, autocast), which stay as they are.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError

from .noise import Noise
from .torch_reasons import whole_reason

_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def copy_in_float64(model: nn.Module, name: str, noise: Noise | None = None) -> nn.Module:
    """Copy a model, its parameters, buffers and other tensors widened; noise goes onto parameters and buffers.

    Raises:
        InputError: where it cannot be copied.
    """
    try:
        made = copy.deepcopy(model).double()
    except Exception as error:  # whatever the model holds
        raise InputError(f"{name} cannot be copied: {whole_reason(error)}") from error
    for module in made.modules():
        for key, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                vars(module)[key] = _wide(value)
    if noise is not None:
        generator = torch.Generator().manual_seed(noise.seed)
        with torch.no_grad():
            for tensor in (*made.parameters(), *made.buffers()):
                if tensor.is_floating_point():
                    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                    tensor.mul_(1 + noise.size * drawn.to(tensor.device))
    return made


def widen_values(values: Any) -> Any:
    """Make a structure of values, floating tensors in it in float64."""
    if isinstance(values, Mapping):
        return {key: widen_values(value) for key, value in values.items()}
    return pytree.tree_map(_wide, values)


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in _NARROW else value
