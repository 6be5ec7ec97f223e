"""Steps of optimisers: weights, their gradients and what the optimiser remembers in, the new ones out.

Left out: gradients themselves (``jax.grad``).
"""

from jax import numpy as jnp

from .known import Array


def groups_of(values: tuple[Array, ...], count: int) -> list[tuple[Array, ...]]:
    """Divide values into so many groups of equal size."""
    size = len(values) // count
    return [values[i * size : (i + 1) * size] for i in range(count)]


def adagrad(
    rate: Array, step: Array, *values: Array,
    decay_factor: float = 0.0, epsilon: float = 1e-06, norm_coefficient: float = 0.0, outputs: int = 2,
) -> tuple[Array, ...]:  # fmt: skip
    """Step by AdaGrad: weights, gradients, sums of squares in; weights and sums out."""
    shrunk = rate / (1 + step * decay_factor)
    weights, sums = [], []
    for x, g, h in zip(*groups_of(values, 3), strict=True):
        gradient = norm_coefficient * x + g
        sums.append(h + gradient * gradient)
        weights.append(x - shrunk * gradient / (jnp.sqrt(sums[-1]) + epsilon))
    return (*weights, *sums)[:outputs]


def adam(
    rate: Array, step: Array, *values: Array,
    alpha: float = 0.9, beta: float = 0.999, epsilon: float = 1e-06, norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0, outputs: int = 3,
) -> tuple[Array, ...]:  # fmt: skip
    """Step by Adam: weights, gradients, first and second moments in; weights and moments out."""
    corrected = jnp.where(step > 0, rate * jnp.sqrt(1 - beta**step) / (1 - alpha**step), rate).astype(rate.dtype)
    weights, first, second = [], [], []
    for x, g, v, h in zip(*groups_of(values, 4), strict=True):
        gradient = norm_coefficient * x + g
        first.append(alpha * v + (1 - alpha) * gradient)
        second.append(beta * h + (1 - beta) * gradient * gradient)
        moved = x - corrected * first[-1] / (jnp.sqrt(second[-1]) + epsilon)
        weights.append((1 - norm_coefficient_post) * moved)
    return (*weights, *first, *second)[:outputs]


def momentum(
    rate: Array, step: Array, *values: Array,
    alpha: float, beta: float, mode: str, norm_coefficient: float, outputs: int = 2,
) -> tuple[Array, ...]:  # fmt: skip
    """Step with momentum, standard or Nesterov's: weights, gradients, velocities in; weights and velocities out."""
    damped = jnp.where(step > 0, beta, 1).astype(rate.dtype)
    weights, velocities = [], []
    for x, g, v in zip(*groups_of(values, 3), strict=True):
        gradient = norm_coefficient * x + g
        velocities.append(alpha * v + damped * gradient)
        along = gradient + alpha * velocities[-1] if mode == "nesterov" else velocities[-1]
        weights.append(x - rate * along)
    return (*weights, *velocities)[:outputs]
