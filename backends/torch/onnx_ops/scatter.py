"""Writing to computed places.

Left out: in-place forms; every op gives a new tensor.
"""

import math

import torch
from torch import Tensor

from .table import op

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@op("Scatter", 9)
@op("ScatterElements", 11)
def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str = "none") -> Tensor:
    places = torch.where(indices < 0, indices + x.shape[axis], indices).to(torch.int64)
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _REDUCTIONS[reduction])


@op("ScatterND", 11)
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = indices.shape[-1]
    sizes = list(x.shape[:depth])
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    for i, size in enumerate(sizes):
        index = indices[..., i].to(torch.int64)
        flat = flat * size + torch.where(index < 0, index + size, index)
    rest = list(x.shape[depth:])
    width = math.prod(rest)
    rows = x.reshape(math.prod(sizes), width)
    written = updates.reshape(flat.numel(), width)
    places = flat.reshape(-1, 1).expand(flat.numel(), width)
    if reduction == "none":
        made = rows.scatter(0, places, written)
    else:
        made = rows.scatter_reduce(0, places, written, _REDUCTIONS[reduction])
    return made.reshape(x.shape)
