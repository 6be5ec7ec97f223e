"""Ops of ONNX Runtime's own domain, ``com.microsoft``, that its optimiser and exporters write.

Left out: quantised ones (``contrib_quantize.py``), caches that grow in place, packed batches, image models in NHWC.
"""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from .conv import conv
from .known import Array
from .linear import gemm
from .norm import layer_norm, rms_norm


def exact_gelu(x: Array) -> Array:
    """Return x times the normal distribution function of x."""
    return jax.nn.gelu(x, approximate=False)


def bias_gelu(x: Array, bias: Array) -> Array:
    """Return gelu(x + bias)."""
    return jax.nn.gelu(x + bias, approximate=False)


def fast_gelu(x: Array, bias: Array | None = None) -> Array:
    """Return gelu(x + bias) by a formula with tanh."""
    return jax.nn.gelu(x if bias is None else x + bias, approximate=True)


def skip_layer_norm(
    x: Array, skip: Array, gamma: Array, beta: Array | None = None, bias: Array | None = None, *,
    epsilon: float = 1e-12, outputs: int = 1,
) -> Any:  # fmt: skip
    """Normalise the sum of x, a skip and a bias; also give mean, inverse deviation and that sum."""
    summed = x + skip if bias is None else x + skip + bias
    y, mean, inverse = layer_norm(summed, gamma, beta, epsilon=epsilon, outputs=3)
    return y if outputs == 1 else (y, mean, inverse, summed)[:outputs]


def quick_gelu(x: Array, *, alpha: float = 1.702) -> Array:
    """Return x times the sigmoid of alpha x."""
    return x * jax.nn.sigmoid(alpha * x)


def fused_mat_mul(
    a: Array, b: Array, *,
    alpha: float = 1.0, trans_a: int = 0, trans_b: int = 0, trans_batch_a: int = 0, trans_batch_b: int = 0,
) -> Array:  # fmt: skip
    """Return alpha a b, each of a and b turned first where asked."""
    product = turned(a, trans_a, trans_batch_a) @ turned(b, trans_b, trans_batch_b)
    return product if alpha == 1 else (alpha * product).astype(product.dtype)


def turned(x: Array, swap: int, batch: int) -> Array:
    """Bring the first dimension to the rows, and swap rows and columns, as asked; a vector stays one."""
    if x.ndim < 2:
        return x
    moved = jnp.moveaxis(x, 0, -2) if batch else x
    return jnp.swapaxes(moved, -1, -2) if swap else moved


def activated(x: Array, activation: str, parameters: tuple[float, ...]) -> Array:
    """Apply the activation that is fused into an op; its parameters are as those of the op of that name."""
    if activation in ("", "Relu"):
        return jax.nn.relu(x) if activation else x
    if activation == "LeakyRelu":
        return jax.nn.leaky_relu(x, parameters[0] if parameters else 0.01)
    if activation == "Sigmoid":
        return jax.nn.sigmoid(x)
    if activation == "Tanh":
        return jnp.tanh(x)
    if activation == "Clip" and len(parameters) > 1:
        return jnp.clip(x, parameters[0], parameters[1])
    if activation == "HardSigmoid" and len(parameters) > 1:
        return jnp.clip(parameters[0] * x + parameters[1], 0, 1)
    raise ValueError(f"the fused activation {activation!r} with {len(parameters)} parameters")


def fused_gemm(
    a: Array, b: Array, c: Array | None = None, *,
    alpha: float = 1.0, beta: float = 1.0, trans_a: int = 0, trans_b: int = 0, activation: str = "",
    activation_alpha: float | None = None, activation_beta: float | None = None,
) -> Array:  # fmt: skip
    """Return the activation of alpha a b + beta c."""
    given = tuple(p for p in (activation_alpha, activation_beta) if p is not None)
    return activated(gemm(a, b, c, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b), activation, given)


def fused_conv(
    x: Array, w: Array, b: Array | None = None, z: Array | None = None, *,
    activation: str = "", activation_params: tuple[float, ...] = (), auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None, group: int = 1, kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None, strides: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Return the activation of a convolution plus z."""
    made = conv(
        x, w, b, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
        strides=strides,
    )  # fmt: skip
    return activated(made if z is None else made + z, activation, activation_params)


def simplified_layer_norm(
    x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, outputs: int = 1
) -> Any:
    """Divide x by its root mean square; also give the inverse of that."""
    y = rms_norm(x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)
    if outputs == 1:
        return y
    over = tuple(range(axis % x.ndim, x.ndim))
    return y, lax.rsqrt(jnp.mean(jnp.square(x.astype(np.float32)), over, keepdims=True) + epsilon)


def skip_simplified_layer_norm(
    x: Array, skip: Array, gamma: Array, bias: Array | None = None, *, epsilon: float = 1e-12, outputs: int = 1
) -> Any:
    """Divide the sum of x, a skip and a bias by its root mean square; also give the inverse of that, and the sum."""
    summed = x + skip if bias is None else x + skip + bias
    full = summed.astype(np.float32)
    inverse = lax.rsqrt(jnp.mean(jnp.square(full), -1, keepdims=True) + epsilon)
    y = (full * inverse).astype(x.dtype) * gamma
    return y if outputs == 1 else (y, inverse, inverse, summed)[:outputs]  # nobody reads a mean that there is not


def embed_layer_norm(
    ids: Array, segments: Array | None, words: Array, positions: Array, segment_table: Array | None, gamma: Array,
    beta: Array, mask: Array | None = None, position_ids: Array | None = None, *,
    epsilon: float = 1e-12, mask_index_type: int = 0, outputs: int = 1,
) -> Any:  # fmt: skip
    """Normalise the sum of embeddings; also give the lengths that a mask tells, and the sum."""
    places = np.arange(ids.shape[1]) if position_ids is None else position_ids
    summed = jnp.asarray(words)[ids] + jnp.asarray(positions)[places]
    if segments is not None and segment_table is not None:
        summed = summed + jnp.asarray(segment_table)[segments]
    y = layer_norm(summed, gamma, beta, epsilon=epsilon)
    if outputs == 1:
        return y
    lengths = jnp.zeros(ids.shape[0], np.int32) if mask is None else jnp.sum(mask == 1, 1).astype(np.int32)
    return (y, lengths, summed)[:outputs]


def heads_apart(x: Array, heads: int) -> Array:
    """Return (batch, heads, length, size) of a tensor that has its heads in the last dimension."""
    return jnp.swapaxes(x.reshape(x.shape[0], x.shape[1], heads, -1), 1, 2)


def mask_added(mask: Array, queries: int, keys: int, batch: int, filled: float) -> Array:
    """Return what a mask adds to scores: of rank 1 it has the ends of sequences, and may have their starts behind."""
    if mask.ndim == 1:
        inside = np.arange(keys) < mask[:batch, None]
        if mask.shape[0] == 2 * batch:
            inside = inside & (np.arange(keys) >= mask[batch:, None])
        elif mask.shape[0] != batch:
            raise ValueError(f"a mask of {mask.shape[0]} numbers for a batch of {batch}")
        return jnp.where(inside, 0.0, filled)[:, None, None]
    if mask.ndim == 4:
        mask = mask[:, :, keys - queries : keys, :keys]
    elif mask.ndim == 3:
        mask = mask[:, None]
    else:
        mask = mask[:, None, None]
    return jnp.where(mask == 0, filled, 0.0)


def attend(q: Array, k: Array, v: Array, shift: Array | None, added: Array | None, scale: float, causal: int) -> Any:
    """Return softmax(q k^T scale + bias) v with the heads put together, and the scores."""
    factor = np.asarray(scale or 1 / np.sqrt(q.shape[3]), q.dtype)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * factor
    scores = scores if added is None else scores + added
    scores = scores if shift is None else scores + shift.astype(scores.dtype)
    if causal:
        rows = np.arange(q.shape[2])[:, None] + (k.shape[2] - q.shape[2])
        scores = jnp.where(np.arange(k.shape[2]) > rows, jnp.finfo(scores.dtype).min, scores)
    y = jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(scores, -1), v)
    return y.reshape(*y.shape[:2], -1), scores


def fused_attention(
    x: Array, weights: Array, bias: Array | None = None, mask: Array | None = None, past: Array | None = None,
    added: Array | None = None, *,
    num_heads: int, unidirectional: int = 0, scale: float = 0.0, mask_filter_value: float = -10000.0,
    qkv_hidden_sizes: tuple[int, ...] = (), outputs: int = 1,
) -> Any:  # fmt: skip
    """Attend to x itself by one matrix of weights; also give keys and values, the past ones in front."""
    product = x @ weights if bias is None else x @ weights + bias
    sizes = qkv_hidden_sizes or (weights.shape[1] // 3,) * 3
    q, k, v = (heads_apart(p, num_heads) for p in jnp.split(product, [sizes[0], sizes[0] + sizes[1]], -1))
    if past is not None:
        k, v = jnp.concatenate([past[0], k], 2), jnp.concatenate([past[1], v], 2)
    shift = None if mask is None else mask_added(mask, q.shape[2], k.shape[2], x.shape[0], mask_filter_value)
    y, _ = attend(q, k, v, shift, added, scale, unidirectional)
    return y if outputs == 1 else (y, jnp.stack([k, v]))


def multi_head_attention(
    query: Array, key: Array | None = None, value: Array | None = None, bias: Array | None = None,
    padding: Array | None = None, added: Array | None = None, past_key: Array | None = None,
    past_value: Array | None = None, *,
    num_heads: int, mask_filter_value: float = -10000.0, scale: float = 0.0, unidirectional: int = 0,
    outputs: int = 1,
) -> Any:  # fmt: skip
    """Attend by queries, keys and values in any of their layouts; also give keys and values, the past ones in front."""
    if key is None:
        q, k, v = (jnp.swapaxes(query[:, :, :, i], 1, 2) for i in range(3))
    else:
        q = heads_apart(query, num_heads)
        if value is None:
            k, v = (jnp.swapaxes(key[:, :, :, i], 1, 2) for i in range(2))
        else:
            k, v = (part if part.ndim == 4 else heads_apart(part, num_heads) for part in (key, value))
    if bias is not None:
        width = q.shape[1] * q.shape[3]
        shifts = jnp.split(bias, [width, 2 * width])
        q, k, v = (p + s.reshape(num_heads, 1, -1) for p, s in zip((q, k, v), shifts, strict=True))
    if past_key is not None and past_value is not None:
        k, v = jnp.concatenate([past_key, k], 2), jnp.concatenate([past_value, v], 2)
    shift = None
    if padding is not None:
        if padding.ndim == 1 and padding.shape[0] != q.shape[0]:
            raise ValueError(f"a mask of {padding.shape[0]} numbers for a batch of {q.shape[0]}")
        shift = mask_added(padding, q.shape[2], k.shape[2], q.shape[0], mask_filter_value)
    y, scores = attend(q, k, v, shift, added, scale, unidirectional)
    return y if outputs == 1 else (y, k, v, scores)[:outputs]


def rotary_embedding_by_position(
    x: Array, positions: Array, cos: Array, sin: Array, *,
    interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0, scale: float = 1.0,
) -> Array:  # fmt: skip
    """Rotate pairs of elements by the angle of their position; one position is that of every first element."""
    if scale != 1:
        raise ValueError(f"a scale of {scale}, which ONNX Runtime does not read")
    width = 2 * cos.shape[1]
    heads = x if x.ndim == 4 else heads_apart(x, num_heads if rotary_embedding_dim else x.shape[2] // width)
    pairs, kept = heads[..., :width], heads[..., width:]
    if positions.ndim == 1:
        positions = (positions + np.arange(heads.shape[2]))[None]
    c, s = jnp.asarray(cos)[positions][:, None], jnp.asarray(sin)[positions][:, None]
    a, b = (pairs[..., 0::2], pairs[..., 1::2]) if interleaved else jnp.split(pairs, 2, -1)
    parts = [c * a - s * b, s * a + c * b]
    made = jnp.stack(parts, -1).reshape(pairs.shape) if interleaved else jnp.concatenate(parts, -1)
    made = jnp.concatenate([made, kept], -1)
    return made if x.ndim == 4 else jnp.swapaxes(made, 1, 2).reshape(x.shape)
