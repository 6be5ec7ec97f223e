"""Attention, and rotary position embedding.

Left out: paged caches.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .dtypes import TORCH_TYPES
from .table import op


def _heads(x: Tensor, count: int | None) -> Tensor:
    """Return (batch, heads, length, size) of a tensor that has its heads in the last dimension."""
    if x.dim() == 4:
        return x
    if not count:
        raise ValueError("Attention on inputs of rank 3 needs q_num_heads and kv_num_heads")
    return x.reshape(x.shape[0], x.shape[1], count, x.shape[2] // count).transpose(1, 2)


def _as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, float("-inf"))


def _pad_mask(mask: Tensor, length: int) -> Tensor:
    missing = length - mask.shape[-1]
    if not missing:
        return mask
    return F.pad(mask, [0, missing], value=0 if mask.dtype == torch.bool else float("-inf"))


def _seen(q: Tensor, k: Tensor, offset: int | Tensor, left: int, right: int) -> Tensor:
    """Say which key each query sees: those at most ``left`` before and ``right`` behind it, -1 for no bound."""
    rows = torch.arange(q.shape[2], device=q.device).unsqueeze(1)
    columns = torch.arange(k.shape[2], device=q.device)
    behind = rows + (offset if isinstance(offset, int) else offset.reshape(-1, 1, 1, 1)) - columns
    seen = torch.ones_like(behind, dtype=torch.bool)
    if left >= 0:
        seen = seen & (behind <= left)
    return seen & (-behind <= right) if right >= 0 else seen


@op("Attention", 23)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    is_causal: int,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float,
    softmax_precision: int | None = None,
    outputs: int,
) -> Tensor | tuple[Tensor, ...]:
    is_flat = q.dim() == 3
    q, k, v = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    offset: int | Tensor = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    elif lengths is not None:
        offset = lengths - q.shape[2]
    present = (k, v)
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    if q.shape[1] != k.shape[1]:
        each = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    bias = None if mask is None else _as_bias(_pad_mask(mask, k.shape[2]), q.dtype)
    is_windowed = left_window_size >= 0 or right_window_size >= 0
    is_simple = not (is_windowed or softcap or softmax_precision) and lengths is None and outputs < 4
    if is_simple and not (is_causal and (mask is not None or past_key is not None)):
        y = F.scaled_dot_product_attention(q, k, v, bias, is_causal=bool(is_causal), scale=factor)
        return _with_present(_flat(y, is_flat), present, outputs)
    total = torch.zeros([q.shape[2], k.shape[2]], dtype=q.dtype, device=q.device) if bias is None else bias
    if is_causal or is_windowed:
        right = (
            min(n for n in (0 if is_causal else -1, right_window_size) if n >= 0)
            if (is_causal or right_window_size >= 0)
            else -1
        )
        total = total + _as_bias(_seen(q, k, offset, left_window_size, right), q.dtype)
    if lengths is not None:
        filled = torch.arange(k.shape[2], device=q.device) < lengths.reshape(-1, 1, 1, 1)
        total = total + _as_bias(filled, q.dtype)
    root = math.sqrt(factor)
    scores = torch.matmul(q * root, k.transpose(2, 3) * root)
    shown = scores
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
        shown = scores if qk_matmul_output_mode == 1 else shown
    biased = scores + total
    shown = biased if qk_matmul_output_mode == 2 else shown
    if qk_matmul_output_mode == 0 and softcap:
        shown = scores
    wide = biased if softmax_precision is None else biased.to(TORCH_TYPES[softmax_precision])
    blind = (total == float("-inf")).all(-1, keepdim=True)  # such a query sees no key at all
    weights = torch.softmax(wide, -1).masked_fill(blind, 0.0).to(q.dtype)
    shown = weights if qk_matmul_output_mode == 3 else shown
    return _with_present(_flat(torch.matmul(weights, v), is_flat), (*present, shown), outputs)


def _flat(y: Tensor, is_flat: bool) -> Tensor:
    return y.transpose(1, 2).flatten(2) if is_flat else y


def _with_present(y: Tensor, others: tuple[Tensor, ...], outputs: int) -> Tensor | tuple[Tensor, ...]:
    return (y, *others)[:outputs] if outputs > 1 else y


@op("RotaryEmbedding", 23)
def rotary_embedding(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: int,
    num_heads: int | None = None,
    rotary_embedding_dim: int,
) -> Tensor:
    shape, is_flat = list(x.shape), x.dim() == 3
    heads = _heads(x, num_heads)  # (batch, heads, length, size)
    width = rotary_embedding_dim or heads.shape[3]
    turned, kept = heads[..., :width], heads[..., width:]
    if positions is not None:
        cos, sin = cos[positions], sin[positions]  # (batch, length, width / 2)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if interleaved:
        one, other = turned[..., 0::2], turned[..., 1::2]
    else:
        one, other = turned[..., : width // 2], turned[..., width // 2 :]
    real, imaginary = cos * one - sin * other, sin * one + cos * other
    parts = [real, imaginary]
    made = torch.stack(parts, -1).flatten(3) if interleaved else torch.cat(parts, -1)
    made = torch.cat([made, kept], -1) if width < heads.shape[3] else made
    return made.transpose(1, 2).reshape(shape) if is_flat else made


@op("LinearAttention", 27)
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float,
    update_rule: str,
) -> tuple[Tensor, Tensor]:
    """A state instead of a cache: each step decays it, writes a key's value into it and reads it by the query."""
    wide = torch.float32
    q, k, v = (
        _heads(x, count).to(wide) for x, count in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    batch, _, steps, width = k.shape
    state = torch.zeros([batch, kv_num_heads, width, v.shape[3]], dtype=wide) if past is None else past.to(wide)
    factor = scale or 1 / math.sqrt(width)
    gates = None if decay is None else _heads(decay, kv_num_heads).to(wide).exp()
    rates = None if beta is None else beta.to(wide).transpose(1, 2).unsqueeze(3)
    read = []
    for i in range(steps):
        new_key, new_value = k[:, :, i], v[:, :, i]
        if gates is not None:
            state = state * gates[:, :, i].unsqueeze(3)
        if rates is not None:
            new_value = rates[:, :, i] * (new_value - torch.einsum("bhdm,bhd->bhm", state, new_key))
        state = state + new_key.unsqueeze(3) * new_value.unsqueeze(2)
        shared = state.repeat_interleave(q_num_heads // kv_num_heads, 1)
        read.append(factor * torch.einsum("bhd,bhdm->bhm", q[:, :, i], shared))
    y = torch.stack(read, 1).flatten(2).to(query.dtype)
    return y, state.to(query.dtype if past is None else past.dtype)
