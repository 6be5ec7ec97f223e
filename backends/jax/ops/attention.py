"""Attention, and what goes with it in language models.

Left out: fusing the softmax with the products (XLA decides).
"""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from .known import Array, as_dtype


def split_heads(x: Array, heads: int) -> Array:
    """Turn x[batch, seq, heads * size] into x[batch, heads, seq, size]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def join_heads(x: Array) -> Array:
    """Turn x[batch, heads, seq, size] into x[batch, seq, heads * size]."""
    n, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(n, length, heads * size)


def attention_bias(
    q: Array, k: Array, attn_mask: Array | None, offset: Any, nonpad_kv_seqlen: Array | None,
    is_causal: int, left_window_size: int, right_window_size: int,
) -> Array:  # fmt: skip
    """Return what is added to the scores: zero or a mask's number where a query may attend to a key, else -inf."""
    rows, columns = q.shape[2], k.shape[2]
    zero, never = np.zeros((), q.dtype), np.asarray(-np.inf, q.dtype)
    bias = jnp.zeros((rows, columns), q.dtype)
    if attn_mask is not None:
        missing = [(0, 0)] * (attn_mask.ndim - 1) + [(0, columns - attn_mask.shape[-1])]
        if attn_mask.dtype == bool:
            bias = bias + jnp.where(jnp.pad(attn_mask, missing), zero, never)
        else:
            bias = bias + jnp.pad(attn_mask, missing, constant_values=-np.inf)
    ahead = jnp.arange(columns) - (jnp.arange(rows)[:, None] + jnp.reshape(offset, (-1, 1, 1, 1)))
    if is_causal:
        bias = bias + jnp.where(ahead <= 0, zero, never)
    if left_window_size >= 0:
        bias = bias + jnp.where(-ahead <= left_window_size, zero, never)
    if right_window_size >= 0:
        bias = bias + jnp.where(ahead <= right_window_size, zero, never)
    if nonpad_kv_seqlen is not None:
        bias = bias + jnp.where(jnp.arange(columns) < nonpad_kv_seqlen.reshape(-1, 1, 1, 1), zero, never)
    return bias


def attention(
    q: Array, k: Array, v: Array, attn_mask: Array | None = None, past_key: Array | None = None,
    past_value: Array | None = None, nonpad_kv_seqlen: Array | None = None, *,
    is_causal: int = 0, kv_num_heads: int = 0, left_window_size: int = -1, q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0, right_window_size: int = -1, scale: float | None = None, softcap: float = 0.0,
    softmax_precision: Any = None, outputs: int = 1,
) -> Any:  # fmt: skip
    """Return softmax(q k^T scale + bias) v; also the keys and values with the past ones, and the scores."""
    is_packed = q.ndim == 3
    if is_packed:
        q, k, v = split_heads(q, q_num_heads), split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
    offset: Any = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = jnp.concatenate([past_key, k], 2), jnp.concatenate([past_value, v], 2)
    elif nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen - q.shape[2]
    present_key, present_value = k, v
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, 1), jnp.repeat(v, group, 1)
    root = np.asarray(np.sqrt(1 / np.sqrt(q.shape[3]) if scale is None else scale), q.dtype)
    raw = jnp.einsum("bhqd,bhkd->bhqk", q * root, k * root)
    capped = softcap * jnp.tanh(raw / softcap) if softcap else raw
    bias = attention_bias(q, k, attn_mask, offset, nonpad_kv_seqlen, is_causal, left_window_size, right_window_size)
    biased = capped + bias
    precise = biased if softmax_precision is None else biased.astype(as_dtype(softmax_precision))
    masked = jnp.all(jnp.isneginf(precise), -1, keepdims=True)  # a query without a key gives zero
    share = jnp.where(masked, 0, jax.nn.softmax(jnp.where(masked, 0, precise), -1)).astype(q.dtype)
    y = jnp.einsum("bhqk,bhkd->bhqd", share, v)
    y = join_heads(y) if is_packed else y
    seen = (raw, capped, biased, share)[qk_matmul_output_mode]
    return y if outputs == 1 else (y, present_key, present_value, seen)[:outputs]


def rotary_embedding(
    x: Array, cos_cache: Array, sin_cache: Array, position_ids: Array | None = None, *,
    interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
) -> Array:  # fmt: skip
    """Rotate pairs of elements by the angle of their position."""
    is_packed = x.ndim == 3
    if is_packed:
        x = split_heads(x, num_heads)
    width = rotary_embedding_dim or x.shape[3]
    turned, rest = x[..., :width], x[..., width:]
    cos, sin = (c if position_ids is None else jnp.asarray(c)[position_ids] for c in (cos_cache, sin_cache))
    cos, sin = cos[:, None], sin[:, None]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else jnp.split(turned, 2, -1)
    real, imaginary = cos * a - sin * b, sin * a + cos * b
    if interleaved:
        turned = jnp.stack([real, imaginary], -1).reshape(turned.shape)
    else:
        turned = jnp.concatenate([real, imaginary], -1)
    y = jnp.concatenate([turned, rest], -1)
    return join_heads(y) if is_packed else y


def linear_attention(
    query: Array, key: Array, value: Array, past_state: Array | None = None, decay: Array | None = None,
    beta: Array | None = None, *, chunk_size: int = 64, kv_num_heads: int, q_num_heads: int, scale: float = 0.0,
    update_rule: str = "gated_delta", outputs: int = 1,
) -> Any:  # fmt: skip
    """Attend through a state that every key and value updates: it may fade (gated) and correct itself (delta)."""
    del chunk_size  # a hint for speed
    q, k, v = (
        split_heads(part, heads).astype(jnp.float32)
        for part, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    n, _, length, depth = q.shape
    width, factor = v.shape[3], scale or 1 / np.sqrt(depth)
    state_dtype = query.dtype if past_state is None else past_state.dtype
    state = jnp.zeros((n, kv_num_heads, depth, width), jnp.float32) if past_state is None else past_state
    fade = jnp.zeros((n, kv_num_heads, length, 1)) if decay is None else split_heads(decay, kv_num_heads)
    rate = jnp.ones((n, 1, length, 1)) if beta is None else split_heads(beta, beta.shape[2])

    def step(state: Array, item: Any) -> Any:
        q_t, k_t, v_t, fade_t, rate_t = item
        state = state * jnp.exp(fade_t)[..., None]
        if update_rule.endswith("delta"):
            v_t = rate_t * (v_t - jnp.einsum("bhkv,bhk->bhv", state, k_t))
        state = state + k_t[..., None] * v_t[..., None, :]
        shared = jnp.repeat(state, q_num_heads // kv_num_heads, 1)
        return state, factor * jnp.einsum("bhkv,bhk->bhv", shared, q_t)

    items = tuple(jnp.moveaxis(part.astype(jnp.float32), 2, 0) for part in (q, k, v, fade, rate))
    state, y = lax.scan(step, state.astype(jnp.float32), items)
    packed = join_heads(jnp.moveaxis(y, 0, 2)).astype(query.dtype)
    return packed if outputs == 1 else (packed, state.astype(state_dtype))
