"""What a backward does otherwise than its forward says: custom functions, tensor hooks, regions without gradients."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .table import function, op


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -gradients[0]


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class _Scaled(torch.autograd.Function):
    """Right where it is alone: its backward is the one of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * 2 * x


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].clamp(-0.01, 0.01)


def _hooked(x: Tensor, by: float) -> Tensor:
    made = x * 1.0
    if made.requires_grad:
        made.register_hook(lambda g: g * by)
    return made


def _without(x: Tensor, kind: str) -> Tensor:
    if kind == "no_grad":
        with torch.no_grad():
            made = torch.tanh(x) * 2
        return made + x
    if kind == "straight":
        return x + (torch.round(x) - x).detach()
    if kind == "data":
        return x * x.detach().abs()
    if kind == "nested":
        with torch.no_grad():
            inner = x * 2
            with torch.enable_grad():
                made = inner + x
        return made
    if kind == "inference":
        return x.detach() * 0.5 + x
    return torch.where(x > 0, x, x.detach())


_CUSTOM = {"reverse": _Reverse, "straight": _Straight, "scaled": _Scaled, "clipped": _Clipped}


def _custom(x: Tensor, kind: str) -> Tensor:
    made: Tensor = _CUSTOM[kind].apply(x)  # type: ignore[no-untyped-call]
    return made


def _checkpointed(x: Tensor) -> Tensor:
    made: Tensor = checkpoint(lambda y: torch.tanh(y) * y, x, use_reentrant=False)
    return made


op("custom_backward", lambda d: ((d.float32(),), {"kind": d.choose(*_CUSTOM)}), function(_custom), 0.5)
op("tensor_hook", lambda d: ((d.float32(),), {"by": d.choose(10.0, -1.0)}), function(_hooked), 0.4)
op(
    "no_gradient",
    lambda d: ((d.float32(),), {"kind": d.choose("no_grad", "straight", "data", "nested", "inference", "where")}),
    function(_without),
    1,
)
op("checkpoint", lambda d: ((d.float32(),), {}), function(_checkpointed), 0.2)
