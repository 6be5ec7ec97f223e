"""The functions that look rows up in a table, with the names of their arguments.

Left out: what becomes of a call (``served.py``).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - the name everybody knows it by

EMBEDDING = ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse")
BAG = (
    "weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights",
    "include_last_offset", "padding_idx",
)  # fmt: skip
_F_EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_F_BAG = (
    "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
    "per_sample_weights", "include_last_offset", "padding_idx",
)  # fmt: skip

# Function: names of its arguments, in order.
LOOK_UPS: Mapping[Callable[..., Any], tuple[str, ...]] = {
    torch.embedding: EMBEDDING,
    torch.ops.aten.embedding: EMBEDDING,
    torch.ops.aten.embedding.default: EMBEDDING,
    torch.embedding_bag: BAG,
    torch.ops.aten.embedding_bag: BAG,
    torch.ops.aten.embedding_bag.default: BAG,
    torch.ops.aten.embedding_bag.padding_idx: BAG,
    F.embedding: _F_EMBEDDING,
    F.embedding_bag: _F_BAG,
}
