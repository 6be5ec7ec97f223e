"""Small modules that put code of their owner into their backward, and the same written with plain ops."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

Make = Callable[[], nn.Module]

WIDTH = 4


class Middle(nn.Module):
    """Two layers with something between them, in a submodule of the second."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = Branch(between)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Branch(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.between = between
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return self.last(self.between(h))


class Reverse(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Straight(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def ten_times(gradient: Tensor) -> Tensor:
    return gradient * 10


def hooked(x: Tensor) -> Tensor:
    x.register_hook(ten_times)
    return x


def on_grad_fn(x: Tensor) -> Tensor:
    """Hook a node of the autograd graph, which nothing but a comparison of gradients can see."""
    if x.grad_fn is not None:
        x.grad_fn.register_prehook(lambda gradients: tuple(g * 3 for g in gradients))
    return x


def packed(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return torch.sin(x)


def watched(x: Tensor) -> Tensor:
    torch.autograd.graph.register_multi_grad_hook([x], ten_times)
    return x


def with_hook(kind: str) -> nn.Module:
    made = Middle(torch.sin)
    if kind == "parameter":
        made.first.weight.register_hook(ten_times)
    elif kind == "after":
        made.first.weight.register_post_accumulate_grad_hook(partial(ten_times))
    else:
        getattr(made.first, kind)(lambda *given: tuple(g * 10 for g in given[1]))
    return made


def forward_hooked() -> nn.Module:
    """Return a module whose forward hook, which survives, hooks a tensor, which does not."""
    made = Middle(torch.sin)
    made.first.register_forward_hook(lambda module, args, result: hooked(result))
    return made


REFUSED: dict[str, tuple[Make, str]] = {
    "gradient reversal": (
        lambda: Middle(Reverse.apply),
        r"autograd\.Function 'Reverse' in module 'second' \(.*\.py:\d+\)",
    ),
    "straight-through": (lambda: Middle(Straight.apply), r"autograd\.Function 'Straight' in module 'second'"),
    "tensor hook": (lambda: Middle(hooked), r"the tensor hook 'ten_times' in module 'second' \(.*\.py:\d+\)"),
    "hook of a forward hook": (forward_hooked, r"the tensor hook 'ten_times'"),
    "saved tensors": (lambda: Middle(packed), "saved_tensors_hooks in module 'second'"),
    "multi-grad hook": (lambda: Middle(watched), "the hook on gradients 'ten_times'"),
    "parameter hook": (partial(with_hook, "parameter"), r"'ten_times' on 'weight' in module 'first' \(.*:\d+\)"),
    "hook after a gradient": (partial(with_hook, "after"), "the hook 'ten_times' after the gradient of 'weight'"),
    "module hook": (partial(with_hook, "register_full_backward_hook"), "the backward hook .* in module 'first'"),
    "module pre-hook": (partial(with_hook, "register_full_backward_pre_hook"), "backward hook .* in module 'first'"),
    "old module hook": (partial(with_hook, "register_backward_hook"), "the backward hook .* in module 'first'"),
    "re-entrant checkpoint": (
        lambda: Middle(lambda x: checkpoint(torch.sin, x, use_reentrant=True)),
        "a re-entrant checkpoint in module",
    ),
}
"""What tracing drops, by name: a module that has it, and how it is named."""


def hooked_if_asked(x: Tensor) -> Tensor:
    return hooked(x) if x.requires_grad else x


class AtTheInput(nn.Module):
    """A hook on what depends on no parameter: there is a gradient only where the caller asks for the input's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(hooked_if_asked(x * 1.0))))


FOUND: dict[str, Make] = {
    "hook on a node of the autograd graph": lambda: Middle(on_grad_fn),
    "hook if asked": AtTheInput,
}
"""What tracing drops unseen; a comparison of gradients finds it."""


def scaled(y: Tensor, x: Tensor, k: float) -> Tensor:
    """Return y, whose gradient goes to x k times: the way out that the refusals name."""
    return y.detach() + k * (x - x.detach())


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return x + y


@torch.inference_mode()
def inferred(x: Tensor) -> Tensor:
    return x * 2


def half_frozen() -> nn.Module:
    made = Middle(torch.sin)
    made.first.bias.requires_grad_(False)
    made.second.requires_grad_(False)
    return made


class Tied(nn.Module):
    """An embedding that is the head as well, read by both stages."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(9, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 9, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        ids = (x[:, :2].abs() * 4).long().clamp(0, 8)
        return self.head(torch.tanh(self.mix(self.words(ids))))


EQUAL: dict[str, Make] = {
    "reversal with plain ops": lambda: Middle(lambda x: scaled(x, x, -1)),
    "straight-through with plain ops": lambda: Middle(lambda x: scaled((x > 0).float(), x, 1)),
    "ten times with plain ops": lambda: Middle(lambda x: scaled(x, x, 10)),
    "no_grad": lambda: Middle(without_gradient),
    "inference mode": lambda: Middle(lambda x: x + inferred(x).clone()),
    "detach": lambda: Middle(lambda x: x + x.detach()),
    "checkpoint": lambda: Middle(lambda x: checkpoint(torch.sin, x, use_reentrant=False)),
    "frozen parameters": half_frozen,
    "tied weights": Tied,
    "dropout": lambda: Middle(nn.Dropout(0.5)),
    "batch norm": lambda: Middle(nn.BatchNorm1d(WIDTH)),
}
"""What changes gradients and survives tracing."""
