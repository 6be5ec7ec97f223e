"""Dropout and steps of optimisers.

Left out: optimisers of other domains.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import Int, op

_PREVIEW = "ai.onnx.preview.training"


@op("Dropout", 7)
def dropout_in_inference(x: Tensor, *, ratio: float = 0.5, outputs: int) -> Tensor | tuple[Tensor, Tensor]:
    return (x, torch.ones_like(x, dtype=torch.bool)) if outputs > 1 else x


@op("Dropout", 12)
def dropout(
    x: Tensor,
    ratio: float | Tensor | None = None,
    training: Int | None = None,
    *,
    seed: int | None = None,
    outputs: int,
) -> Tensor | tuple[Tensor, Tensor]:
    """Masks are drawn from PyTorch's random numbers; a seed in the node is not used, as it would repeat every mask."""
    rate = 0.5 if ratio is None else float(ratio)
    if not training or rate == 0.0:
        return dropout_in_inference(x, outputs=outputs)
    if outputs == 1:
        return F.dropout(x, rate)
    kept = F.dropout(torch.ones_like(x), rate)
    return x * kept, kept > 0


@op("Momentum", 1, domain=_PREVIEW)
def momentum_step(
    rate: Tensor, count: Tensor, *xs: Tensor, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Tensor, ...]:
    third = len(xs) // 3
    weights, velocities = [], []
    for x, gradient, velocity in zip(xs[:third], xs[third : 2 * third], xs[2 * third :], strict=True):
        regular = gradient + norm_coefficient * x
        new = alpha * velocity + torch.where(count > 0, beta, 1.0) * regular
        weights.append(x - rate * (regular + alpha * new if mode == "nesterov" else new))
        velocities.append(new)
    return (*weights, *velocities)


@op("Adagrad", 1, domain=_PREVIEW)
def adagrad_step(
    rate: Tensor,
    count: Tensor,
    *xs: Tensor,
    decay_factor: float,
    epsilon: float,
    norm_coefficient: float,
) -> tuple[Tensor, ...]:
    third = len(xs) // 3
    now = rate / (1 + count * decay_factor)
    weights, squares = [], []
    for x, gradient, square in zip(xs[:third], xs[third : 2 * third], xs[2 * third :], strict=True):
        regular = gradient + norm_coefficient * x
        new = square + regular.square()
        weights.append((x - now * regular / (new.sqrt() + epsilon)).to(x.dtype))
        squares.append(new)
    return (*weights, *squares)


@op("Adam", 1, domain=_PREVIEW)
def adam_step(
    rate: Tensor,
    count: Tensor,
    *xs: Tensor,
    alpha: float,
    beta: float,
    epsilon: float,
    norm_coefficient: float,
    norm_coefficient_post: float,
) -> tuple[Tensor, ...]:
    quarter = len(xs) // 4
    now = torch.where(count > 0, rate * torch.sqrt(1 - beta**count) / (1 - alpha**count), rate)
    weights, firsts, seconds = [], [], []
    for i in range(quarter):
        x, gradient, first, second = xs[i::quarter]
        regular = norm_coefficient * x + gradient
        new_first = alpha * first + (1 - alpha) * regular
        new_second = beta * second + (1 - beta) * regular.square()
        moved = x - now * new_first / (new_second.sqrt() + epsilon)
        weights.append(((1 - norm_coefficient_post) * moved).to(x.dtype))
        firsts.append(new_first)
        seconds.append(new_second)
    return (*weights, *firsts, *seconds)
