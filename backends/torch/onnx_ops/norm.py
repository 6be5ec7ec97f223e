"""Normalisation.

Left out: statistics that a module would keep by itself: in ONNX they are values like any other.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import op


def _inference(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float) -> Tensor:
    if scale.dtype != x.dtype or mean.dtype != x.dtype:
        wide = F.batch_norm(x.to(mean.dtype), mean, var, scale.to(mean.dtype), bias.to(mean.dtype), eps=epsilon)
        return wide.to(x.dtype)
    return F.batch_norm(x, mean, var, scale, bias, eps=epsilon)


@op("BatchNormalization", 7)
def batch_norm_old(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float,
    momentum: float,
    spatial: int = 1,
    outputs: int,
) -> Tensor | tuple[Tensor, ...]:
    """Before opset 14 a node with several outputs is in training; before 9 every element may have its statistics."""
    if not spatial:
        old = mean, var
        if outputs > 1:
            mean, var = x.mean(0), x.var(0, correction=0)
        y = (x - mean) * torch.rsqrt(var + epsilon) * scale + bias
        moved = [before * momentum + now * (1 - momentum) for before, now in zip(old, (mean, var), strict=True)]
        return y if outputs == 1 else (y, *moved, mean, var)
    if outputs == 1:
        return _inference(x, scale, bias, mean, var, epsilon)
    y, new_mean, new_var = batch_norm(x, scale, bias, mean, var, epsilon=epsilon, momentum=momentum, training_mode=1)
    axes = [0, *range(2, x.dim())]
    return y, new_mean, new_var, x.mean(axes), x.var(axes, correction=0)


@op("BatchNormalization", 14)
def batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Tensor | tuple[Tensor, ...]:
    if not training_mode:
        return _inference(x, scale, bias, mean, var, epsilon)
    axes = [0, *range(2, x.dim())]
    wide = x.to(mean.dtype)
    batch_mean, batch_var = wide.mean(axes), wide.var(axes, correction=0)
    y = F.batch_norm(x, None, None, scale.to(x.dtype), bias.to(x.dtype), training=True, eps=epsilon)
    return y, mean * momentum + batch_mean * (1 - momentum), var * momentum + batch_var * (1 - momentum)


@op("InstanceNormalization", 6)
def instance_norm(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=epsilon)


@op("LayerNormalization", 1)
@op("LayerNormalization", 17)
def layer_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,
    outputs: int,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    first = axis % x.dim()
    shape = list(x.shape[first:])
    fits = list(scale.shape) == shape and (bias is None or list(bias.shape) == shape)
    y = F.layer_norm(x, shape, scale, bias, epsilon) if fits else F.layer_norm(x, shape, eps=epsilon) * scale
    if not fits and bias is not None:
        y = y + bias
    if outputs == 1:
        return y
    axes = list(range(first, x.dim()))
    wide = x.to(torch.float32) if stash_type == 1 else x
    mean = wide.mean(axes, keepdim=True)
    deviation = torch.rsqrt(wide.var(axes, correction=0, keepdim=True) + epsilon)
    return y, mean, deviation


@op("RMSNormalization", 23)
def rms_norm(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Tensor:
    axes = list(range(axis % x.dim(), x.dim()))
    wide = x.to(torch.float32) if stash_type == 1 else x
    normal = wide * torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return normal.to(x.dtype) * scale


@op("GroupNormalization", 18)
def group_norm_by_group(x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float) -> Tensor:
    """Before opset 21: a scale and a bias for each group."""
    each = x.shape[1] // num_groups
    return group_norm(
        x, scale.repeat_interleave(each), bias.repeat_interleave(each), num_groups=num_groups, epsilon=epsilon
    )


@op("GroupNormalization", 21)
def group_norm(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    return F.group_norm(x, num_groups, scale, bias, epsilon)


@op("LRN", 1)
def local_response_norm(x: Tensor, *, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    if size % 2:
        return F.local_response_norm(x, size, alpha, beta, bias)
    squares = F.pad(x.square().transpose(1, -1), [(size - 1) // 2, size // 2])
    total = squares.unfold(-1, size, 1).sum(-1).transpose(1, -1)
    return x / (bias + alpha / size * total) ** beta


@op("LpNormalization", 1)
def lp_norm(x: Tensor, *, axis: int, p: int) -> Tensor:
    length = x.norm(p, axis, keepdim=True)
    return torch.where(length == 0, 0.0, x / length).to(x.dtype)


@op("MeanVarianceNormalization", 9)
def mean_variance_norm(x: Tensor, *, axes: list[int] | None = None) -> Tensor:
    along = [0, 2, 3] if axes is None else axes
    centred = x - x.mean(along, keepdim=True)
    return centred / (centred.square().mean(along, keepdim=True).sqrt() + 1e-9)


@op("SkipLayerNormalization", 1, domain="com.microsoft")
def skip_layer_norm(
    x: Tensor,
    skip: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    inner: Tensor | None = None,
    *,
    epsilon: float,
    outputs: int,
) -> Tensor | tuple[Tensor, ...]:
    total = x + skip if inner is None else x + skip + inner
    y = F.layer_norm(total, [x.shape[-1]], scale, bias, epsilon)
    if outputs == 1:
        return y
    deviation = torch.rsqrt(total.var(-1, correction=0, keepdim=True) + epsilon)
    return y, total.mean(-1, keepdim=True), deviation, total
