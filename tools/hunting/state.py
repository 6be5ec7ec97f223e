"""What changes: buffers that a forward writes, and tensors that are changed in place, views among them."""

from typing import Any

import torch
from torch import Tensor, nn

from .table import Draw, Drawn, UnfitError, function, op

BUFFERS = (
    "count",
    "count_used",
    "average",
    "average_read_first",
    "replaced",
    "ring",
    "slice",
    "alias",
    "view",
    "hidden",
    "whole_number",
    "constant",
    "attribute",
    "twice",
    "copied",
    "returned",
    "in_training",
)


class _Buffered(nn.Module):
    """A layer that remembers; ``kind`` says what and how."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer(
            "k", torch.tensor(1.0) if kind.startswith("count") else torch.ones(width), persistent=kind != "hidden"
        )
        if kind == "alias":
            self.register_buffer("other", self.k)
        elif kind == "view":
            self.register_buffer("other", self.k[: max(1, width // 2)])
        elif kind == "whole_number":
            self.register_buffer("calls", torch.tensor(0))
        elif kind == "ring":
            self.register_buffer("memory", torch.zeros(3, width))
        elif kind == "attribute":
            self.plain = torch.linspace(0, 1, width)

    def forward(self, x: Tensor) -> Any:
        kind = self.kind
        step = x.detach().reshape(-1, x.shape[-1]).mean(0)
        if kind == "count":
            self.k += 1
            return x * 1.0
        if kind == "count_used":
            self.k += 1
            return x * self.k
        if kind in {"average", "hidden"}:
            self.k.mul_(0.9).add_(step, alpha=0.1)
            return x - self.k
        if kind == "average_read_first":
            made = x - self.k
            self.k.mul_(0.9).add_(0.1 * step)
            return made
        if kind == "replaced":
            self.k = self.k * 0.9 + 0.1 * step
            return x + self.k
        if kind == "ring":
            self.memory.copy_(self.memory.roll(1, 0))
            self.memory[0] = step
            return x + self.memory.mean(0)
        if kind == "slice":
            self.k[:1] += step[:1]
            return x * self.k
        if kind == "alias":
            self.k += 0.5
            return x * self.other
        if kind == "view":
            self.k += 0.5
            return x + self.other.sum()
        if kind == "whole_number":
            self.calls += 1
            return x * (self.calls % 3 + 1)
        if kind == "attribute":
            return x + self.plain
        if kind == "twice":
            self.k += step
            made = x * self.k
            self.k -= 0.25
            return made + self.k
        if kind == "copied":
            before = self.k.clone()
            self.k.copy_(step)
            return x + before
        if kind == "returned":
            self.k += 1
            return x + 1, self.k
        if kind == "in_training":
            if self.training:
                self.k.mul_(0.5)
            return x * self.k
        return x * self.k


def _buffer(draw: Draw) -> Drawn:
    return (draw.float32(1, 2, 3, 4),), {"kind": draw.choose(*BUFFERS)}


_CHANGES: dict[str, Any] = {
    "add_": lambda x: x.add_(1.0),
    "mul_": lambda x: x.mul_(2.0),
    "relu_": lambda x: x.relu_(),
    "clamp_": lambda x: x.clamp_(-1, 1),
    "zero_first": lambda x: x.select(-1, 0).zero_(),
    "slice_assign": lambda x: x.__setitem__((slice(None), slice(0, 1)), 0.5) if x.dim() > 1 else x.add_(0.5),
    "slice_add": lambda x: x[..., ::2].add_(1.0),
    "flip_assign": lambda x: x.__setitem__(Ellipsis, x.flip(-1)),
    "masked_fill_": lambda x: x.masked_fill_(x > 0.5, 0.25),
    "mask_assign": lambda x: x.__setitem__(x > 1, 1.0),
    "neg_half": lambda x: x.narrow(-1, 0, max(1, x.shape[-1] // 2)).neg_(),
    "view_mul": lambda x: x.view(-1).mul_(0.5),
    "transposed": lambda x: x.transpose(0, -1).add_(0.1),
    "tanh_": lambda x: x.tanh_(),
    "fill_part": lambda x: x[0].fill_(0.3),
    "augmented": lambda x: x.__iadd__(x.mean()),
    "index_add_": lambda x: x.index_add_(-1, torch.tensor([0]), torch.ones_like(x[..., :1])),
    "self_copy": lambda x: x.copy_(x * 0.9),
    "unsqueeze_": lambda x: x.unsqueeze(0).mul_(1.1),
}


def _change(draw: Draw) -> Drawn:
    places = [
        i
        for i, v in enumerate(draw.values)
        if isinstance(v, Tensor) and v.is_floating_point() and v.dim() >= 1 and draw.made(i)
    ]
    inputs = [
        i
        for i, v in enumerate(draw.values[: draw.given])
        if isinstance(v, Tensor) and v.is_floating_point() and v.dim() >= 1
    ]
    if inputs and draw.flip(0.06):
        places = inputs
    if not places:
        raise UnfitError
    return (draw.rng.choice(places),), {"kind": draw.choose(*_CHANGES), "gives": draw.choose("same", "copy")}


def _changed(x: Tensor, kind: str, gives: str) -> Tensor:
    _CHANGES[kind](x)
    return x if gives == "same" else x * 1.0


def _store(draw: Draw) -> Drawn:
    """Write a value into part of another."""
    x = draw.one(lambda v: v.is_floating_point() and v.dim() >= 2)
    if not draw.made(x):
        raise UnfitError
    return (x, draw.like(x)), {"kind": draw.choose("first", "step", "out", "copy_", "add_")}


def _stored(x: Tensor, y: Tensor, kind: str) -> Tensor:
    if kind == "first":
        x[:, 0] = y[:, -1]
    elif kind == "step":
        x[..., ::2] = y[..., ::2] * 0.5
    elif kind == "copy_":
        x.copy_(y)
    elif kind == "add_":
        x.add_(y)
    else:
        made = torch.zeros(2, *x.shape, dtype=x.dtype)
        made[0], made[1] = x, y
        return made.sum(0)
    return x


op("buffer", _buffer, lambda v, kind: _Buffered(v[0].shape[-1], kind), 3)
op("change", _change, function(_changed), 3)
op("store", _store, function(_stored), 2)
