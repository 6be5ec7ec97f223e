"""Selection by computed indices.

Left out: writing to computed places (``scatter.py``).
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import Int, Ints, Scalar, op


def _from_the_start(indices: Tensor, size: int) -> Tensor:
    whole = torch.where(indices < 0, indices + size, indices)
    return whole if whole.dtype == torch.int64 else whole.to(torch.int64)


@op("Gather", 1)
def gather(x: Tensor, indices: Scalar, *, axis: int) -> Tensor:
    if not isinstance(indices, Tensor):
        return x.select(axis, int(indices))
    if axis == 0 and x.dim() == 2 and x.is_floating_point() and indices.dim() > 0:
        return F.embedding(_from_the_start(indices, x.shape[0]), x)
    axis %= x.dim()
    chosen = x.index_select(axis, _from_the_start(indices, x.shape[axis]).reshape(-1))
    if indices.dim() == 1:
        return chosen
    return chosen.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


@op("GatherElements", 11)
def gather_elements(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return x.gather(axis, _from_the_start(indices, x.shape[axis]))


@op("GatherND", 11)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth = indices.shape[-1]
    places: list[Tensor] = []
    for axis in range(batch_dims):
        shape = [1] * (indices.dim() - 1)
        shape[axis] = x.shape[axis]
        places.append(torch.arange(x.shape[axis], device=x.device).reshape(shape))
    places += [_from_the_start(indices[..., i], x.shape[batch_dims + i]) for i in range(depth)]
    return x[tuple(places)]


@op("OneHot", 9)
def one_hot(indices: Tensor, depth: Int, values: Tensor, *, axis: int) -> Tensor:
    depth = int(depth)
    whole = indices.to(torch.int64)
    whole = torch.where(whole < 0, whole + depth, whole)
    chosen = whole.unsqueeze(-1) == torch.arange(depth, device=indices.device)
    return torch.where(chosen, values[1], values[0]).movedim(-1, axis)


@op("NonZero", 9)
def non_zero(x: Tensor) -> Tensor:
    return (x.reshape(1) if x.dim() == 0 else x).nonzero().t()


@op("TopK", 1)
def top_k_by_attribute(x: Tensor, *, k: int, axis: int) -> tuple[Tensor, Tensor]:
    return top_k(x, [k], axis=axis)


@op("TopK", 10)
def top_k_by_input(x: Tensor, k: Ints, *, axis: int) -> tuple[Tensor, Tensor]:
    return top_k(x, k, axis=axis)


@op("TopK", 11)
def top_k(x: Tensor, k: Ints, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:  # noqa: A002 - ONNX's name
    """Of equal elements the one with the lower index comes first, which ``torch.topk`` does not promise."""
    wide = x.to(torch.int64) if x.dtype in (torch.uint16, torch.uint32, torch.uint64) else x
    # numbers beyond int64 become negative: turning the top bit brings them into order
    keys = wide ^ torch.full_like(wide, -(2**63)) if x.dtype == torch.uint64 else wide
    _, order = torch.sort(keys, dim=axis, descending=bool(largest), stable=True)
    places = order.narrow(axis, 0, k[0])
    return wide.gather(axis, places).to(x.dtype), places


def _first_of(x: Tensor, axis: int, from_the_end: bool, keepdims: int, largest: bool) -> Tensor:
    turned = x.flip(axis) if from_the_end else x
    found = turned.argmax(axis, bool(keepdims)) if largest else turned.argmin(axis, bool(keepdims))
    return x.shape[axis] - 1 - found if from_the_end else found


@op("ArgMax", 1)
def arg_max(x: Tensor, *, axis: int, keepdims: int, select_last_index: int = 0) -> Tensor:
    return _first_of(x, axis, bool(select_last_index), keepdims, largest=True)


@op("ArgMin", 1)
def arg_min(x: Tensor, *, axis: int, keepdims: int, select_last_index: int = 0) -> Tensor:
    return _first_of(x, axis, bool(select_last_index), keepdims, largest=False)


@op("Unique", 11)
def unique(x: Tensor, *, axis: int | None = None, sorted: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # noqa: A002 - ONNX's name
    if axis is None:
        x = x.flatten()
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True, dim=axis)
    along = 0 if axis is None else axis
    count = values.shape[along]
    first = torch.full((count,), x.shape[along], dtype=torch.int64, device=x.device)
    first = first.scatter_reduce(0, inverse, torch.arange(x.shape[along], device=x.device), "amin")
    if not sorted:
        order = torch.argsort(first)
        values, counts, first = values.index_select(along, order), counts[order], first[order]
        inverse = torch.argsort(order)[inverse]
    return values, first, inverse, counts


@op("ArrayFeatureExtractor", 1, domain="ai.onnx.ml")
def array_feature_extractor(x: Tensor, indices: Tensor) -> Tensor:
    return (x.unsqueeze(0) if x.dim() == 1 else x).index_select(-1, indices.reshape(-1))
