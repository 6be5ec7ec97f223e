"""Losses against class indices.

Left out: nothing.
"""

from typing import Any

import jax
from jax import numpy as jnp

from .known import Array


def nll_loss(
    x: Array, target: Array, weight: Array | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Array:  # fmt: skip
    """Return the negative of x[N, C, ...] at the target classes, weighted by class."""
    inside = jnp.clip(target, 0, x.shape[1] - 1)
    picked = -jnp.take_along_axis(x, jnp.expand_dims(inside, 1), 1)[:, 0]
    share = jnp.ones(target.shape, x.dtype) if weight is None else weight[inside]
    if ignore_index is not None:
        share = jnp.where(target == ignore_index, 0, share)
    loss = picked * share
    if reduction == "none":
        return loss
    return jnp.sum(loss) if reduction == "sum" else jnp.sum(loss) / jnp.sum(share)


def softmax_cross_entropy_loss(
    scores: Array, labels: Array, weights: Array | None = None, *,
    ignore_index: int | None = None, reduction: str = "mean", outputs: int = 1,
) -> Any:  # fmt: skip
    """Return the loss of the log-softmax over classes; also that log-softmax."""
    logs = jax.nn.log_softmax(scores, 1)
    loss = nll_loss(logs, labels, weights, ignore_index=ignore_index, reduction=reduction)
    return loss if outputs == 1 else (loss, logs)
