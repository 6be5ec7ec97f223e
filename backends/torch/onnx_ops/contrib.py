"""Ops of ONNX Runtime's own domain, ``com.microsoft``, that its optimiser and exporters write.

The activations and ``SkipLayerNormalization`` stand with their kin in ``activation.py`` and ``norm.py``.

Left out: quantised ones (``contrib_quantize.py``), caches that grow in place, packed batches, image models in NHWC.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .conv import conv
from .linear import gemm
from .norm import rms_norm
from .table import Int, op

MICROSOFT = "com.microsoft"


@op("QuickGelu", 1, domain=MICROSOFT)
def quick_gelu(x: Tensor, *, alpha: float) -> Tensor:
    return x * torch.sigmoid(alpha * x)


@op("BiasGelu", 1, domain=MICROSOFT)
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


@op("FusedMatMul", 1, domain=MICROSOFT)
def fused_mat_mul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803 - ONNX Runtime's names
    transB: int = 0,  # noqa: N803
    transBatchA: int = 0,  # noqa: N803
    transBatchB: int = 0,  # noqa: N803
) -> Tensor:
    left, right = _turned(a, transA, transBatchA), _turned(b, transB, transBatchB)
    product = torch.matmul(left, right)
    return product if alpha == 1.0 else alpha * product


@op("TransposeMatMul", 1, domain=MICROSOFT)
def transpose_mat_mul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float,
    transA: int,  # noqa: N803 - ONNX Runtime's names
    transB: int,  # noqa: N803
) -> Tensor:
    return fused_mat_mul(a, b, alpha=alpha, transA=transA, transB=transB)


def _turned(x: Tensor, swap: int, batch: int) -> Tensor:
    """Bring the first dimension to the rows, and swap rows and columns, as asked; a vector stays one."""
    if x.dim() < 2:
        return x
    moved = x.movedim(0, -2) if batch else x
    return moved.transpose(-1, -2) if swap else moved


def _activated(x: Tensor, activation: str, parameters: list[float]) -> Tensor:
    """Apply the activation that is fused into an op; its parameters are as those of the op of that name."""
    given = [*parameters, 0.0, 0.0]
    if activation in ("", "Relu"):
        return torch.relu(x) if activation else x
    if activation == "LeakyRelu":
        return F.leaky_relu(x, given[0] if parameters else 0.01)
    if activation == "Sigmoid":
        return torch.sigmoid(x)
    if activation == "Tanh":
        return torch.tanh(x)
    if activation == "Clip" and len(parameters) > 1:
        return torch.clamp(x, given[0], given[1])
    if activation == "HardSigmoid" and len(parameters) > 1:
        return torch.clamp(given[0] * x + given[1], 0, 1)
    raise ValueError(f"the fused activation {activation!r} with {len(parameters)} parameters")


@op("FusedGemm", 1, domain=MICROSOFT)
def fused_gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float,
    beta: float,
    transA: int,  # noqa: N803 - ONNX's names
    transB: int,  # noqa: N803
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
) -> Tensor:
    given = [p for p in (activation_alpha, activation_beta) if p is not None]
    return _activated(gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB), activation, given)


@op("FusedConv", 1, domain=MICROSOFT)
def fused_conv(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: list[float] | None = None,
    auto_pad: str,
    dilations: list[int] | None = None,
    group: int,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    made = conv(
        x, w, bias, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
        strides=strides,
    )  # fmt: skip
    return _activated(made if z is None else made + z, activation, activation_params or [])


@op("SimplifiedLayerNormalization", 1)
def simplified_layer_norm(
    x: Tensor, scale: Tensor, *, axis: int, epsilon: float, stash_type: int, outputs: int
) -> Tensor | tuple[Tensor, Tensor]:
    y = rms_norm(x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)
    if outputs == 1:
        return y
    axes = list(range(axis % x.dim(), x.dim()))
    return y, torch.rsqrt(x.to(torch.float32).square().mean(axes, keepdim=True) + epsilon)


@op("SkipSimplifiedLayerNormalization", 1, domain=MICROSOFT)
def skip_simplified_layer_norm(
    x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None, *, epsilon: float, outputs: int
) -> Tensor | tuple[Tensor, ...]:
    total = x + skip if bias is None else x + skip + bias
    wide = total.to(torch.float32)
    deviation = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    y = (wide * deviation).to(x.dtype) * scale
    return y if outputs == 1 else (y, deviation, deviation, total)  # nobody reads a mean that there is not


@op("EmbedLayerNormalization", 1, domain=MICROSOFT)
def embed_layer_norm(
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    positions: Tensor,
    segment_table: Tensor | None,
    scale: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float,
    mask_index_type: int = 0,
    outputs: int,
) -> Tensor | tuple[Tensor, ...]:
    places = torch.arange(ids.shape[1], device=ids.device) if position_ids is None else position_ids.to(torch.int64)
    total = F.embedding(ids.to(torch.int64), words) + F.embedding(places, positions)
    if segments is not None and segment_table is not None:
        total = total + F.embedding(segments.to(torch.int64), segment_table)
    y = F.layer_norm(total, [total.shape[-1]], scale, bias, epsilon)
    if outputs == 1:
        return y
    lengths = torch.zeros_like(ids[:, 0]) if mask is None else (mask == 1).sum(1)
    return y, lengths.to(torch.int32), total


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _scores_mask(mask: Tensor, queries: int, keys: int, filled: float) -> Tensor:
    """Return what a mask of any of its forms adds to scores (batch, heads, queries, keys)."""
    if mask.dim() == 1:
        raise ValueError("a mask of the ends of sequences, which differ from batch to batch in layout")
    if mask.dim() == 4:
        mask = mask[:, :, keys - queries : keys, :keys]
    elif mask.dim() == 3:
        mask = mask.unsqueeze(1)
    else:
        mask = mask.unsqueeze(1).unsqueeze(1)
    return torch.where(mask == 0, filled, 0.0)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, bias: Tensor | None, *, scale: float, causal: int
) -> tuple[Tensor, Tensor]:
    """Return softmax(q k^T scale + bias) v with the heads put together, and the weights."""
    scores = torch.matmul(q, k.transpose(2, 3)) * (scale or 1 / math.sqrt(q.shape[3]))
    if bias is not None:
        scores = scores + bias
    if added is not None:
        scores = scores + added.to(scores.dtype)
    if causal:
        past = k.shape[2] - q.shape[2]
        rows = torch.arange(q.shape[2], device=q.device).unsqueeze(1) + past
        ahead = torch.arange(k.shape[2], device=q.device) > rows
        scores = scores.masked_fill(ahead, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1)
    return torch.matmul(weights, v).transpose(1, 2).flatten(2), scores


@op("Attention", 1, domain=MICROSOFT)
def attention(
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    added: Tensor | None = None,
    *,
    num_heads: int,
    unidirectional: int,
    scale: float = 0.0,
    mask_filter_value: float = -10000.0,
    qkv_hidden_sizes: list[int] | None = None,
    outputs: int,
) -> Tensor | tuple[Tensor, Tensor]:
    product = torch.matmul(x, weights)
    product = product if bias is None else product + bias
    third = weights.shape[1] // 3
    q, k, v = (_split_heads(part, num_heads) for part in torch.split(product, qkv_hidden_sizes or [third] * 3, -1))
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    shift = None if mask is None else _ends_mask(mask, x, k, mask_filter_value)
    y, _ = _attend(q, k, v, shift, added, scale=scale, causal=unidirectional)
    return y if outputs == 1 else (y, torch.stack([k, v]))


def _ends_mask(mask: Tensor, x: Tensor, k: Tensor, filled: float) -> Tensor:
    """Return what a mask adds; one of rank 1 has the ends of sequences, and may have their starts behind these."""
    batch, keys = x.shape[0], k.shape[2]
    if mask.dim() > 1:
        return _scores_mask(mask, x.shape[1], keys, filled)
    places = torch.arange(keys, device=x.device)
    inside = places < mask[:batch].unsqueeze(1)
    if mask.shape[0] == 2 * batch:
        inside = inside & (places >= mask[batch:].unsqueeze(1))
    elif mask.shape[0] != batch:
        raise ValueError(f"a mask of {mask.shape[0]} numbers for a batch of {batch}")
    return torch.where(inside, 0.0, filled).unsqueeze(1).unsqueeze(1)


@op("MultiHeadAttention", 1, domain=MICROSOFT)
def multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    padding: Tensor | None = None,
    added: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int,
    outputs: int,
) -> Tensor | tuple[Tensor, ...]:
    q, k, v = _queries_keys_values(query, key, value, num_heads)
    if bias is not None:
        width = q.shape[1] * q.shape[3]
        rest = bias.shape[0] - 2 * width
        q, k, v = (
            part + shift.reshape(num_heads, 1, -1)
            for part, shift in zip((q, k, v), torch.split(bias, [width, width, rest]), strict=True)
        )
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    shift = None
    if padding is not None:
        if padding.dim() == 1 and padding.shape[0] != q.shape[0]:
            raise ValueError(f"a mask of {padding.shape[0]} numbers for a batch of {q.shape[0]}")
        shift = _ends_mask(padding, query, k, mask_filter_value)
    y, scores = _attend(q, k, v, shift, added, scale=scale, causal=unidirectional)
    return y if outputs == 1 else (y, k, v, scores)[:outputs]


def _queries_keys_values(
    query: Tensor, key: Tensor | None, value: Tensor | None, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Take apart what may be packed (batch, length, heads, 3 or 2, size), or have its heads apart already."""
    if key is None:
        q, k, v = (query[:, :, :, i].transpose(1, 2) for i in range(3))
        return q, k, v
    q = _split_heads(query, heads)
    if value is None:
        return q, key[:, :, :, 0].transpose(1, 2), key[:, :, :, 1].transpose(1, 2)
    return (
        q,
        key if key.dim() == 4 else _split_heads(key, heads),
        value if value.dim() == 4 else _split_heads(value, heads),
    )


@op("RotaryEmbedding", 1, domain=MICROSOFT)
def rotary_embedding(
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """A single position is that of the first element of every sequence."""
    if scale != 1.0:
        raise ValueError(f"a scale of {scale}, which ONNX Runtime does not read")
    if x.dim() == 4:
        heads = x
    else:
        count = num_heads if rotary_embedding_dim else x.shape[2] // (2 * cos.shape[1])
        heads = _split_heads(x, count)
    width = 2 * cos.shape[1]
    turned, kept = heads[..., :width], heads[..., width:]
    if positions.dim() == 1:
        places = positions + torch.arange(heads.shape[2], device=x.device)
        angles_cos, angles_sin = cos[places].unsqueeze(0), sin[places].unsqueeze(0)
    else:
        angles_cos, angles_sin = cos[positions], sin[positions]
    angles_cos, angles_sin = angles_cos.unsqueeze(1), angles_sin.unsqueeze(1)
    half = width // 2
    one, other = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    parts = [angles_cos * one - angles_sin * other, angles_sin * one + angles_cos * other]
    made = torch.stack(parts, -1).flatten(3) if interleaved else torch.cat(parts, -1)
    made = torch.cat([made, kept], -1)
    return made if x.dim() == 4 else made.transpose(1, 2).reshape(x.shape)


@op("Trilu", 1, domain=MICROSOFT)
def trilu(x: Tensor, k: Int = 0, *, upper: int) -> Tensor:
    return torch.triu(x, k) if upper else torch.tril(x, k)
