"""What a model keeps from call to call: two calls in a row agree, what is kept afterwards too, and backwards run."""

import copy
from typing import Any

import pytest
import torch
from kept_models import KEEPING, WIDTH, Keeps, counted
from torch import Tensor, nn

import heterps_compile
from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.errors import VerificationError
from heterps_compile.frontends.torch_fx import import_torch


def compiled(module: nn.Module, **options: Any) -> heterps_compile.CompiledModel:
    options = {"method": "greedy", "mode": "training", "backend": "torch"} | options
    return heterps_compile.compile(module, (torch.randn(6, WIDTH),), **options)


def change(method: Any, *args: Any) -> None:
    """Call a method; a hook that gives something back would change a stage's values."""
    method(*args)


QUICK = ("a running average", "an element put", "a new tensor", "spectral norm")  # the others change buffers as they do


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in KEEPING]
)
def test_stages_keep_what_the_model_keeps_and_train_through_it(name: str) -> None:
    module = KEEPING[name]().train()
    alone, before = copy.deepcopy(module), copy.deepcopy(module.state_dict())
    staged = compiled(module)
    assert (staged.plan.verification.calls, staged.plan.verification.max_rel) == (2, 0.0)
    assert staged.plan.verification.gradients >= 4
    torch.testing.assert_close(dict(module.state_dict()), dict(before), rtol=0, atol=0)  # verification leaves no trace
    for seed in range(3):
        x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(seed))
        ours, theirs = staged.run(x), alone(x)
        assert torch.equal(ours, theirs)
        ours.sum().backward()
        theirs.sum().backward()
    own = dict(module.named_parameters())
    for parameter_name, parameter in alone.named_parameters():
        assert torch.equal(own[parameter_name].grad, parameter.grad), parameter_name


def test_no_buffer_is_copied_onto_itself() -> None:
    graph = import_torch(Keeps(counted, torch.zeros(())), (torch.randn(2, WIDTH),))
    assert [node.op for node in graph.nodes if "copy_" in node.op] == []


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_stage_that_forgets_is_found(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build = TorchBackend.build

    def forgetting(self: TorchBackend, graph: Any, partition: Any) -> Any:
        stages = build(self, graph, partition)
        for stage in stages:
            stage.register_forward_pre_hook(lambda *_: change(graph.source.tensors["k"].zero_))
        return stages

    monkeypatch.setattr(TorchBackend, "build", forgetting)
    with pytest.raises(VerificationError, match=r"call 2\b"):
        compiled(Keeps(counted, torch.zeros(())), mode=mode)


def test_what_is_kept_is_compared_even_if_no_output_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(keeps: Keeps, h: Tensor) -> Tensor:
        keeps.k += 1
        return h

    build = TorchBackend.build

    def counting_double(self: TorchBackend, graph: Any, partition: Any) -> Any:
        stages = build(self, graph, partition)
        stages[0].register_forward_hook(lambda *_: change(graph.source.tensors["k"].add_, 1))
        return stages

    monkeypatch.setattr(TorchBackend, "build", counting_double)
    with pytest.raises(VerificationError, match=r"'k'.*\b2\b"):
        compiled(Keeps(seen, torch.zeros(())), mode="inference")


def test_an_attribute_that_is_no_buffer_is_named() -> None:
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.layer(x) * self.calls

    with pytest.raises(VerificationError, match=r"'calls'.*buffer.*register_buffer"):
        compiled(Calls(), mode="inference")


def test_a_model_that_keeps_nothing_is_called_once() -> None:
    assert compiled(nn.Linear(WIDTH, WIDTH), mode="inference").plan.verification.calls == 1
