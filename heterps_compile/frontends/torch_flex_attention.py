"""Compute ``flex_attention`` by plain operators, which every backend has, while a model is traced.

    q, k -> scores = scale q k' -> score_mod(scores, b, h, i, j) -> -inf where mask_mod is false -> softmax -> times v

The two modifications are written for one score. Each is called once, on all scores [B, H, Q, K] and on indices that
broadcast: b [B, 1, 1, 1], h [1, H, 1, 1], i [1, 1, Q, 1], j [1, 1, 1, K]. A row without any allowed key gives 0.

When the model runs whole, outputs are those of PyTorch's own implementation and gradients those of the plain operators,
since PyTorch has no gradient of it on a CPU.

Left out: blocks, which only save work; a modification that does not work element by element, which verification finds.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_MODULE = "torch.nn.attention.flex_attention"


@contextmanager
def plain_flex_attention(called: Callable[[], None], *, is_traced: bool) -> Iterator[None]:
    """Have ``flex_attention`` computed by plain operators inside.

    Args:
        called: Called whenever a model calls ``flex_attention``.
        is_traced: Whether the model is traced; else outputs are those of PyTorch's own implementation.
    """
    flex: Any = sys.modules.get(_MODULE)
    if flex is None:
        yield
        return
    own = flex.flex_attention_hop

    def run(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Any, ...]:
        called()
        if is_traced:
            return _plain(query, key, value, *rest)
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))):
            return tuple(own(query, key, value, *rest))
        with torch.no_grad():
            theirs = own(query.detach(), key.detach(), value.detach(), *rest)
        ours = _plain(query, key, value, *rest)
        return tuple(None if o is None else _valued(o, t) for o, t in zip(ours, theirs, strict=True))

    instead = {
        "flex_attention_hop": run,
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,  # else it is compiled before it is called
        "_validate_device": lambda *_: None,  # refuses gradients on a CPU
    }
    if is_traced:  # blocks are made of tensors that cannot be traced, and only mask_mod is read
        instead |= {
            "_create_empty_block_mask": lambda query, key: _Mask(
                flex.noop_mask, (query.size(-2), key.size(-2)), query.size(0), query.device
            ),
            "create_mask": lambda _, batch, heads, queries, keys, device: _Blocks(batch, device),
            "_convert_mask_to_block_mask": lambda blocks, **_: (blocks, None),
            "_create_sparse_block_from_block_mask": lambda blocks, mask_mod, lengths, *_: _Mask(
                mask_mod, lengths, blocks[0].batch, blocks[0].device
            ),
        }
    before = {name: getattr(flex, name) for name in instead if hasattr(flex, name)}
    try:
        for name in before:
            setattr(flex, name, instead[name])
        yield
    finally:
        for name, value in before.items():
            setattr(flex, name, value)


class _Blocks:
    """The batch and device of blocks that are not made."""

    def __init__(self, batch: int, device: Any) -> None:
        found = torch.device(device)
        if found.index is None and found.type != "cpu":
            found = torch.device(found.type, torch.accelerator.current_device_index())
        self.batch, self.device = batch, found

    def size(self, _: int) -> int:
        """Find the batch."""
        return self.batch


class _Mask:
    """What ``flex_attention`` reads of a block mask, without its blocks."""

    def __init__(self, mask_mod: Callable[..., Tensor], lengths: tuple[int, int], batch: int, device: Any) -> None:
        self.mask_mod, self.shape, self.BLOCK_SIZE = mask_mod, (batch, 1, *lengths), (1, 1)
        self.kv_num_blocks = _Blocks(batch, device)

    def as_tuple(self) -> tuple[Any, ...]:
        """Pass on the outputs of ``flex_attention``."""
        return (self.mask_mod,)


def _valued(ours: Tensor, theirs: Tensor) -> Tensor:
    """Make a tensor with the values of one and the gradient of another."""
    return torch.where(ours == theirs, ours, ours + (theirs - ours).detach())


def _plain(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Any, ...]:
    """Compute outputs [B, H, Q, E], log-sums and largest scores [B, H, Q]."""
    score_mod, block_mask, scale, kernel_options = rest
    batch, heads, queries, _ = query.shape
    group, keys = heads // key.size(1), key.size(2)
    if group > 1:
        key, value = (torch.repeat_interleave(x, group, dim=1) for x in (key, value))
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
    sizes = ((batch, (-1, 1, 1, 1)), (heads, (1, -1, 1, 1)), (queries, (1, 1, -1, 1)), (keys, (1, 1, 1, -1)))
    at = [torch.arange(size, device=scores.device).view(shape) for size, shape in sizes]
    changed = score_mod(scores, *at).to(wide).expand(scores.shape)
    masked = torch.where(block_mask[-1](*at), changed, -math.inf)
    is_empty = (masked == -math.inf).all(-1, keepdim=True)
    weights = masked.masked_fill(is_empty, 0.0).softmax(-1).masked_fill(is_empty, 0.0)
    log_sums = masked.logsumexp(-1) / math.log(2) if kernel_options.get("OUTPUT_LOGSUMEXP") else None
    most = masked.amax(-1) / math.log(2) if kernel_options.get("OUTPUT_MAX") else None
    return weights.to(query.dtype) @ value.to(query.dtype), log_sums, most
