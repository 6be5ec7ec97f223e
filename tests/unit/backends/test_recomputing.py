"""Stages that compute their activations again: the very numbers of those that keep them, and less memory between."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from heterps_compile.backends.find import find_backend
from heterps_compile.backends.torch.recomputing import Recomputing
from heterps_compile.errors import BackendError

MICRO_BATCHES = 3


class Counting(nn.Module):
    """Scales by how often it ran, and keeps a moving average in a row of a buffer, through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("runs", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(2, 4))
        self.register_buffer("constant", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.runs.add_(1)
        y = torch.tanh(self.linear(x) * self.runs.clone() + self.average[1].clone() * self.constant)
        self.average[1].lerp_(y.detach().mean(0), 0.25)
        return torch.sigmoid(y)


class Unpacked(nn.Module):
    """A stage: takes values, gives a tuple."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*modules)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.body(x), x.detach() + 1)


def dropping() -> Unpacked:
    return Unpacked(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))


MODULES: dict[str, Callable[[], Unpacked]] = {
    "dropout": dropping,
    "batch norm": lambda: Unpacked(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.BatchNorm1d(4, momentum=None)),
    "spectral norm": lambda: Unpacked(spectral_norm(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 4)),
    "counters": lambda: Unpacked(Counting(), Counting()),
}


def train(make: Callable[[], Unpacked], how: Callable[[Unpacked], Callable[..., Any]], autocast: bool) -> list[Tensor]:
    """Run forwards of all micro-batches, then all backwards; give outputs, gradients and state in the end."""
    torch.manual_seed(0)
    module = make()
    run, made, leaves = how(module), [], []
    for micro_batch in range(MICRO_BATCHES):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(micro_batch), requires_grad=True)
        torch.manual_seed(100 + micro_batch)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y, fixed = run(x)
        assert y.requires_grad
        assert not fixed.requires_grad
        made.append(y)
        leaves.append(x)
    state = [tensor.clone() for tensor in module.state_dict().values()]
    torch.manual_seed(7)
    for y in made:
        y.float().square().sum().backward()
    drawn = torch.rand(2)
    assert all(torch.equal(a, b) for a, b in zip(state, module.state_dict().values(), strict=True))
    gradients = [tensor.grad for tensor in (*leaves, *module.parameters())]
    assert all(gradient is not None for gradient in gradients)
    return [*made, *state, drawn, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODULES)
def test_a_repeated_forward_gives_the_bits_of_the_first_and_changes_nothing_twice(name, autocast):
    kept = train(MODULES[name], lambda module: module, autocast)
    again = train(MODULES[name], Recomputing, autocast)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


def test_a_weight_that_a_forward_changes_is_named():
    class Renormed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3, max_norm=0.1)

        def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
            return (self.table(ids).tanh(),)

    with pytest.raises(BackendError, match=r"'table.weight'.*--recompute"):
        Recomputing(Renormed())(torch.tensor([1, 2]))


def test_between_forward_and_backward_a_stage_holds_what_enters_it():
    """Ten layers of 64 KiB each keep ten activations; repeated, its input alone is left."""
    held: dict[str, int] = {}

    def saved(name: str, run: Callable[..., Any], x: Tensor) -> Any:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.numel()), t)[1], lambda t: t):
            made = run(x)
        held[name] = sum(sizes)
        return made

    module = Unpacked(*(layer for _ in range(10) for layer in (nn.Linear(64, 64), nn.Tanh())))
    x = torch.randn(256, 64)
    saved("kept", module, x)
    saved("repeated", Recomputing(module), x)
    assert held["kept"] > 10 * x.numel()
    assert held["repeated"] == x.numel()


def test_without_gradients_a_stage_runs_as_it_is():
    module = MODULES["counters"]()
    with torch.no_grad():
        Recomputing(module)(torch.ones(2, 4))
    assert int(module.body[0].runs) == 1


def test_stages_that_cannot_repeat_say_so():
    with pytest.raises(BackendError, match=r"'onnxruntime'.*activations.*--recompute"):
        find_backend("onnxruntime").recomputing(nn.Identity())
