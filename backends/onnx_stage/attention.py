"""Attention of any rank as products, a softmax and what drops between them, for which ONNX has ops.

Not covered: attention of four dimensions that drops nothing, which the exporter translates.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_aten: Any = torch.ops.aten
ATTENTION: Any = _aten.scaled_dot_product_attention.default


def write_out(given: Mapping[str, Any], drop: Callable[[Any], Any] = lambda weights: weights) -> Any:
    """Write attention out, as its documentation has it.

    Args:
        given: Arguments by name, nodes as proxies.
        drop: Maps the weights of the values to those that are kept.
    """
    query, key, value = (given[name] for name in ("query", "key", "value"))
    mask: Any = given.get("attn_mask")
    fakes = [operand.node.meta["val"] for operand in (query, key, value)]
    if given.get("enable_gqa"):
        times = fakes[0].shape[-3] // fakes[1].shape[-3]
        key, value = (_aten.repeat_interleave.self_int(operand, times, -3) for operand in (key, value))
    scale = given.get("scale")
    scores = _aten.matmul.default(query, _aten.transpose.int(key, -2, -1))
    scores = _aten.mul.Tensor(scores, 1 / math.sqrt(fakes[0].shape[-1]) if scale is None else scale)
    if given.get("is_causal"):
        mask = _aten.tril.default(_aten.ones_like.default(scores, dtype=torch.bool))
    if mask is not None:
        is_chosen = not isinstance(mask.node.meta.get("val"), Tensor) or mask.node.meta["val"].dtype == torch.bool
        scores = _aten.where.ScalarOther(mask, scores, -math.inf) if is_chosen else _aten.add.Tensor(scores, mask)
    if given.get("attn_mask") is None:
        weights = _aten.softmax.int(scores, -1)
    else:  # a row that is masked whole is zero
        is_seen = _aten.gt.Scalar(_aten.amax.default(scores, [-1], True), -math.inf)
        weights = _aten.softmax.int(_aten.where.ScalarOther(is_seen, scores, 0.0), -1)
        weights = _aten.where.ScalarOther(is_seen, weights, 0.0)
    return _aten.matmul.default(drop(weights), value)
