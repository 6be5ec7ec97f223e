"""Stages of jax train as the model does: verification compares their gradients with PyTorch's."""

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
    with pytest.raises(VerificationError, match=r"the gradient of parameter '.*' of the staged model differs"):
        compiled(nn.Linear(WIDTH, WIDTH))
