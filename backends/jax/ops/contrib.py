"""Ops of ONNX Runtime's own domain, ``com.microsoft``, that its optimiser and exporters write.

Left out: those that fuse more than a normalisation or an activation.
"""

from typing import Any

import jax

from .known import Array
from .norm import layer_norm


def exact_gelu(x: Array) -> Array:
    """Give x times the normal distribution function of x."""
    return jax.nn.gelu(x, approximate=False)


def bias_gelu(x: Array, bias: Array) -> Array:
    """Give gelu(x + bias)."""
    return jax.nn.gelu(x + bias, approximate=False)


def fast_gelu(x: Array, bias: Array | None = None) -> Array:
    """Give gelu(x + bias) by a formula with tanh."""
    return jax.nn.gelu(x if bias is None else x + bias, approximate=True)


def skip_layer_norm(
    x: Array, skip: Array, gamma: Array, beta: Array | None = None, bias: Array | None = None, *,
    epsilon: float = 1e-12, outputs: int = 1,
) -> Any:  # fmt: skip
    """Normalise the sum of x, a skip and a bias; also give mean, inverse deviation and that sum."""
    summed = x + skip if bias is None else x + skip + bias
    y, mean, inverse = layer_norm(summed, gamma, beta, epsilon=epsilon, outputs=3)
    return y if outputs == 1 else (y, mean, inverse, summed)[:outputs]
