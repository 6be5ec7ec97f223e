"""Stages of jax train as the model does: verification compares their gradients with PyTorch's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradient_models import WIDTH, Middle, Tied
from kept_models import Keeps, averaged
from torch import Tensor, nn

import heterps_compile
from heterps_compile.backends.jax.backend import JaxBackend
from heterps_compile.errors import VerificationError

X = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))


def compiled(module: nn.Module, backend: str = "jax", stages: int = 1) -> heterps_compile.CompiledModel:
    return heterps_compile.compile(module, (X,), mode="training", method="greedy", min_stages=stages, backend=backend)


def test_tied_weights_of_two_stages_have_one_gradient() -> None:
    found = compiled(Tied().train(), stages=2).plan.verification
    assert (found.calls, found.gradients) == (1, 3)


def test_what_is_kept_is_kept_in_two_calls_and_differentiated() -> None:
    found = compiled(Keeps(averaged, torch.ones(WIDTH)).train()).plan.verification
    assert (found.calls, found.gradients) == (2, 5)


def test_beside_another_backend_nothing_is_dropped_in_what_is_compared() -> None:
    module = Middle(nn.Dropout(0.5)).train()
    module.first.weight.requires_grad_(False)
    assert compiled(module, "cpu=jax,gpu=torch").plan.verification.gradients == 4  # three parameters, one input


def test_a_stage_with_the_right_outputs_and_wrong_gradients_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    as_module = JaxBackend.as_module

    def broken(self: JaxBackend, stage: Any, device: Any) -> Any:
        module = as_module(self, stage, device)
        module.register_forward_hook(lambda _module, _values, results: tuple(map(louder, results)))
        return module

    def louder(y: Tensor) -> Tensor:
        return y.detach() + 1.01 * (y - y.detach())

    monkeypatch.setattr(JaxBackend, "as_module", broken)
    with pytest.raises(VerificationError, match="parameter"):
        compiled(nn.Linear(WIDTH, WIDTH))


class Made(nn.Module):
    """A product, what a function makes of it, and a product."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.make, self.first, self.last = make, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.make(self.first(x)))


def one_value(y: Tensor) -> Tensor:
    y[y > 0] = 0.5
    return y


def one_row(y: Tensor) -> Tensor:
    y[y[:, 0] > 0] = torch.arange(float(WIDTH))
    return y


def one_addend(y: Tensor) -> Tensor:
    return y.index_put((y > 0,), torch.tensor([2.0]), accumulate=True)


@pytest.mark.parametrize(
    "make", [one_row, *(pytest.param(make, marks=pytest.mark.slow) for make in (one_value, one_addend))]
)
def test_what_a_mask_assigns_leaves_the_other_gradients(make: Callable[[Tensor], Tensor]) -> None:
    assert compiled(Made(make)).plan.verification.gradients == 5  # four parameters, one input


@pytest.mark.parametrize("backend", ["jax", "onnxruntime", "torch"])
@pytest.mark.parametrize("dropout", [nn.Dropout(0.0).train(), nn.Dropout(0.5).eval()], ids=["none", "eval"])
def test_dropout_that_drops_nothing_gives_its_very_input(dropout: nn.Module, backend: str) -> None:
    def changed(y: Tensor) -> Tensor:
        dropout(y).view(-1)[::2].add_(1.0)
        return y

    module = Made(changed).eval()
    heterps_compile.compile(module, (X,), method="greedy", backend=backend)  # which compares


def test_dropout_that_drops_makes_a_tensor_of_its_own() -> None:
    dropout = nn.Dropout(0.5).train()
    module = Made(lambda y: dropout(y).add_(1.0) + y)
    assert compiled(module).plan.verification.gradients == 5


def test_what_no_output_depends_on_is_held_all_the_same() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.a, self.b = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            self.b(self.a(x))
            return self.used(x)

    (stage,) = compiled(Idle()).stages
    held = JaxBackend().as_module(stage, torch.device("cpu"))
    assert {"used.weight", "used.bias", "a.weight", "b.weight", "a.bias", "b.bias"} <= set(held.state_dict())
    assert held.get_parameter("a.weight") is held.get_parameter("b.weight")


class Centred(nn.Module):
    """The sums of what a norm has centred: zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        return y, self.norm(y).sum(-1)


def test_an_output_that_cancels_to_nothing_is_rounding() -> None:
    plan = compiled(Centred()).plan
    assert plan.verification.outputs == 2
    assert any("rounding alone" in note for note in plan.notes)


def test_what_runtimes_choose_among_equal_values_is_named() -> None:
    with pytest.raises(VerificationError, match=r"'topk'.*aten.topk.default"):
        heterps_compile.compile(
            Made(lambda y: y.relu().mul(0).topk(WIDTH)[1].float()), (X,), method="greedy", backend="jax"
        )
