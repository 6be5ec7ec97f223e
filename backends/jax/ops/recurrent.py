"""Recurrent layers, as one ``lax.scan`` a direction.

Left out: sequence lengths that shorten the scan itself (what is beyond a sequence's end is masked).
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from .known import Array
from .shape import reverse_sequence


def activation(name: str, alpha: float | None, beta: float | None) -> Callable[[Array], Array]:
    """Return an activation by ONNX's name."""
    a, b = alpha, beta
    functions: dict[str, Callable[[Array], Array]] = {
        "relu": jax.nn.relu,
        "tanh": jnp.tanh,
        "sigmoid": jax.nn.sigmoid,
        "softsign": jax.nn.soft_sign,
        "softplus": jax.nn.softplus,
        "affine": lambda x: (1.0 if a is None else a) * x + (0.0 if b is None else b),
        "leakyrelu": lambda x: jnp.where(x < 0, (0.01 if a is None else a) * x, x),
        "thresholdedrelu": lambda x: jnp.where(x > (1.0 if a is None else a), x, 0),
        "scaledtanh": lambda x: (1.0 if a is None else a) * jnp.tanh((1.0 if b is None else b) * x),
        "hardsigmoid": lambda x: jnp.clip((0.2 if a is None else a) * x + (0.5 if b is None else b), 0, 1),
        "elu": lambda x: jax.nn.elu(x, 1.0 if a is None else a),
    }
    return functions[name.lower()]


def activations_of(
    names: tuple[str, ...], alpha: tuple[float, ...] | None, beta: tuple[float, ...] | None, direction: int, count: int
) -> list[Callable[[Array], Array]]:  # fmt: skip
    """Return the activations of a direction; parameters are given in order to those that take any."""
    takes_alpha = ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
    takes_beta = ("affine", "scaledtanh", "hardsigmoid")
    alphas, betas = list(alpha or ()), list(beta or ())
    made = []
    for name in names:
        a = alphas.pop(0) if alphas and name.lower() in takes_alpha else None
        b = betas.pop(0) if betas and name.lower() in takes_beta else None
        made.append(activation(name, a, b))
    return made[direction * count : (direction + 1) * count]


def scan_direction(
    step: Callable[[Any, Array], Any], x: Array, states: tuple[Array, ...], lengths: Array | None, *, backward: bool
) -> tuple[Array, tuple[Array, ...]]:  # fmt: skip
    """Run a step over x[seq, batch, ...]; states stay and outputs are zero beyond a sequence's end."""
    limit = jnp.full(x.shape[1], x.shape[0]) if lengths is None else lengths
    if backward:
        x = reverse_sequence(x, limit)

    def guarded(before: Any, item: Any) -> Any:
        time, now = item
        after = step(before, now)
        inside = (time < limit)[:, None]
        kept = tuple(jnp.where(inside, new, old) for new, old in zip(after, before, strict=True))
        return kept, jnp.where(inside, after[0], 0)

    last, y = lax.scan(guarded, states, (jnp.arange(x.shape[0]), x))
    return (reverse_sequence(y, limit) if backward else y), last


def run_directions(
    make_step: Callable[[int], Any], x: Array, states: list[Array | None], width: int, lengths: Array | None,
    direction: str, layout: int, outputs: int,
) -> Any:  # fmt: skip
    """Run every direction and stack outputs and last states as ONNX lays them out."""
    count = 2 if direction == "bidirectional" else 1
    if layout:
        x = jnp.swapaxes(x, 0, 1)
        states = [None if state is None else jnp.swapaxes(state, 0, 1) for state in states]
    zero = jnp.zeros((count, x.shape[1], width), x.dtype)
    full = [zero if state is None else state for state in states]
    ys, lasts = [], []
    for d in range(count):
        backward = direction == "reverse" or d == 1
        y, last = scan_direction(make_step(d), x, tuple(state[d] for state in full), lengths, backward=backward)
        ys.append(y)
        lasts.append(last)
    y = jnp.stack(ys, 1)
    results = [y, *(jnp.stack(parts) for parts in zip(*lasts, strict=True))]
    if layout:
        results = [jnp.transpose(y, (2, 0, 1, 3)), *(jnp.swapaxes(last, 0, 1) for last in results[1:])]
    return results[0] if outputs == 1 else tuple(results[:outputs])


def limited(x: Array, clip: float) -> Array:
    """Limit what goes into an activation; 0 is no limit."""
    return jnp.clip(x, -clip, clip) if clip else x


def rnn(
    x: Array, w: Array, r: Array, b: Array | None = None, sequence_lens: Array | None = None,
    initial_h: Array | None = None, *,
    activations: tuple[str, ...] | None = None, activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None, clip: float = 0.0, direction: str = "forward",
    hidden_size: int = 0, layout: int = 0, outputs: int = 1,
) -> Any:  # fmt: skip
    """Run a plain recurrent layer."""
    del hidden_size  # r has it
    names = activations or ("Tanh", "Tanh")
    width = r.shape[2]

    def make_step(d: int) -> Any:
        (f,) = activations_of(names, activation_alpha, activation_beta, d, 1)
        bias = 0 if b is None else b[d, :width] + b[d, width:]
        return lambda before, now: (f(limited(now @ w[d].T + before[0] @ r[d].T + bias, clip)),)

    return run_directions(make_step, x, [initial_h], width, sequence_lens, direction, layout, outputs)


def gru(
    x: Array, w: Array, r: Array, b: Array | None = None, sequence_lens: Array | None = None,
    initial_h: Array | None = None, *,
    activations: tuple[str, ...] | None = None, activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None, clip: float = 0.0, direction: str = "forward",
    hidden_size: int = 0, layout: int = 0, linear_before_reset: int = 0, outputs: int = 1,
) -> Any:  # fmt: skip
    """Run a gated recurrent layer; gates in the order update, reset, hidden."""
    del hidden_size  # r has it
    names = activations or ("Sigmoid", "Tanh") * 2
    width = r.shape[2]

    def make_step(d: int) -> Any:
        f, g = activations_of(names, activation_alpha, activation_beta, d, 2)
        bias = jnp.zeros(6 * width, x.dtype) if b is None else b[d]
        of_input, of_state = bias[: 3 * width], bias[3 * width :]

        def step(before: Any, now: Array) -> Any:
            (h,) = before
            wz, wr, wh = jnp.split(now @ w[d].T + of_input, 3, -1)
            rz, rr = jnp.split(h @ r[d, : 2 * width].T + of_state[: 2 * width], 2, -1)
            z, reset = f(limited(wz + rz, clip)), f(limited(wr + rr, clip))
            u, bias_h = r[d, 2 * width :].T, of_state[2 * width :]
            inner = reset * (h @ u + bias_h) if linear_before_reset else (reset * h) @ u + bias_h
            return ((1 - z) * g(limited(wh + inner, clip)) + z * h,)

        return step

    return run_directions(make_step, x, [initial_h], width, sequence_lens, direction, layout, outputs)


def lstm(
    x: Array, w: Array, r: Array, b: Array | None = None, sequence_lens: Array | None = None,
    initial_h: Array | None = None, initial_c: Array | None = None, p: Array | None = None, *,
    activations: tuple[str, ...] | None = None, activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None, clip: float = 0.0, direction: str = "forward",
    hidden_size: int = 0, input_forget: int = 0, layout: int = 0, outputs: int = 1,
    rounded: Callable[[Array], Array] = jnp.asarray,
) -> Any:  # fmt: skip
    """Run a long short-term memory; gates and peepholes: input, output, forget, cell. Round what r multiplies."""
    del hidden_size  # r has it
    names = activations or ("Sigmoid", "Tanh", "Tanh") * 2
    width = r.shape[2]

    def make_step(d: int) -> Any:
        f, g, last = activations_of(names, activation_alpha, activation_beta, d, 3)
        bias = 0 if b is None else b[d, : 4 * width] + b[d, 4 * width :]
        peep_i, peep_o, peep_f = (0, 0, 0) if p is None else jnp.split(p[d], 3)

        def step(before: Any, now: Array) -> Any:
            h, c = before
            i, o, forget, cell = jnp.split(now @ w[d].T + rounded(h) @ r[d].T + bias, 4, -1)
            i = f(limited(i + peep_i * c, clip))
            forget = 1 - i if input_forget else f(limited(forget + peep_f * c, clip))
            c = forget * c + i * g(limited(cell, clip))
            return f(limited(o + peep_o * c, clip)) * last(c), c

        return step

    return run_directions(make_step, x, [initial_h, initial_c], width, sequence_lens, direction, layout, outputs)
