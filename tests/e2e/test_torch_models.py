"""PyTorch models end to end: the stages give what the model itself returns, in memory and loaded from their folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch_models import REAL

import heterps_compile
from heterps_compile.examples import EXAMPLES
from heterps_compile.frontends.results import Mapped


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(found, Mapped):  # what a folder gives in place of a library's class
        assert list(found) == list(expected)
    else:
        assert type(found) is type(expected)
    ours, theirs = (torch.utils._pytree.tree_leaves(tree) for tree in (found, expected))
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_a_transformer_in_three_stages_is_the_transformer(name: str, tmp_path: Path) -> None:
    model, args, inputs = REAL[name]()
    compiled = heterps_compile.compile(model.eval(), args, example_kwargs=inputs, min_stages=3, method="exact")
    assert len(compiled.stages) >= 3
    with torch.no_grad():
        expected = model(*args, **inputs)
        staged = compiled.run(*args, **inputs)
        assert type(staged) is type(expected)
        assert_same(staged, expected)
        compiled.save(tmp_path / "out")
        assert_same(heterps_compile.load(tmp_path / "out").run(*args, **inputs), expected)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_papers_models_compile_and_run(name: str, tmp_path: Path) -> None:
    model, inputs = EXAMPLES[name]()
    compiled = heterps_compile.compile(model, inputs, min_stages=2, method="exact")
    with torch.no_grad():
        expected = model(*inputs)
        assert_same(compiled.run(*inputs), expected)
        compiled.save(tmp_path / "out")
        assert_same(heterps_compile.load(tmp_path / "out").run(*inputs), expected)


class Skip(nn.Module):
    """A skip over two stages, tied weights, two inputs and two outputs, and BatchNorm buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 16)
        self.third = nn.Linear(16, 16)
        self.third.weight = self.first.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = self.norm(self.first(x))
        second = torch.relu(self.second(first)) + y
        third = self.third(second)
        return third + first, second


def test_a_traced_module_keeps_its_names_ties_and_buffers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Skip().eval()
    model.norm.running_mean.uniform_()  # type: ignore[union-attr]  # a BatchNorm1d that tracks has one
    inputs = (torch.randn(8, 16), torch.randn(8, 16))
    compiled = heterps_compile.compile(fx.symbolic_trace(model), inputs, min_stages=3, method="exact")

    assert len(compiled.stages) >= 3
    assert {name for stage in compiled.stages for name in stage.state_dict()} >= set(dict(model.named_parameters()))
    expected = model(*inputs)
    assert_same(compiled.run(*inputs), expected)
    compiled.save(tmp_path / "out")
    assert_same(heterps_compile.load(tmp_path / "out").run(*inputs), expected)


def test_an_exported_program_brings_its_own_inputs() -> None:
    torch.manual_seed(0)
    model, inputs = Skip().eval(), (torch.randn(8, 16), torch.randn(8, 16))
    program = torch.export.export(model, inputs)
    compiled = heterps_compile.compile(program, min_stages=2, method="exact")
    assert_same(compiled.run(*inputs), model(*inputs))


def test_training_mode_leaves_the_users_model_as_it_was() -> None:
    torch.manual_seed(0)
    model, inputs = Skip().train(), (torch.randn(8, 16), torch.randn(8, 16))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    compiled = heterps_compile.compile(model, inputs, mode="training", min_stages=2, method="exact")
    assert compiled.plan.verification is not None
    assert model.training
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
