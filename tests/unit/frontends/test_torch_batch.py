"""A module whose example inputs fix the batch is traced with a dynamic one."""

import re

import pytest
import torch
from torch import Tensor, nn

from heterps_compile.api import compile as compile_model
from heterps_compile.errors import InputError, VerificationError
from heterps_compile.frontends.torch_fx import import_torch


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.wide, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        y: Tensor = self.head(torch.relu(self.wide(tokens)))
        return y if scale is None else y * scale


class CentersTheBatch(Tokens):
    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return super().forward(x) - x.mean()


class WritesOne(Tokens):
    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return super().forward(x).reshape(1, 16)


X = torch.randn(1, 3, 8)


@pytest.mark.parametrize("given", [(X,), (X, torch.ones(1)), (torch.randn(2, 3, 8),)])
def test_the_batch_of_a_module_is_opened_and_compared_one_by_one(given: tuple[Tensor, ...]) -> None:
    compiled = compile_model(Tokens().eval(), given, batch=8, method="greedy")
    plan = compiled.plan
    assert (plan.batch, dict(plan.bindings)) == (8, {"batch": 8})
    assert plan.verification is not None
    assert plan.verification.samples == 8
    assert any(f"which the example inputs fix at {len(given[0])}, was opened" in note for note in plan.notes)
    assert compiled.run(torch.randn(5, 3, 8), *given[1:]).shape == (5, 4, 4)


def test_a_module_that_mixes_samples_is_refused() -> None:
    with pytest.raises(VerificationError, match="batch"):
        compile_model(CentersTheBatch().eval(), (X,), batch=8, method="greedy")


def test_a_module_that_writes_its_batch_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        import_torch(WritesOne().eval(), (X,), batch=8)
    assert re.search(r"\b8\b.*\b1\b", str(caught.value))


def test_in_training_mode_samples_are_not_compared_one_by_one() -> None:
    graph = import_torch(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)), (torch.randn(4, 8),), batch=8)
    assert (graph.batch, graph.opened) == (8, None)
    assert graph.source.notes[0].endswith("in training mode samples may mix, and were not compared one by one")


def test_an_exported_program_is_opened_and_compared_one_by_one() -> None:
    compiled = compile_model(torch.export.export(Tokens().eval(), (X,)), batch=8, method="greedy")
    plan = compiled.plan
    assert plan.verification is not None
    assert (plan.batch, dict(plan.bindings), plan.verification.samples) == (8, {"batch": 8}, 8)
    assert any("which the exported program fixes at 1, was opened" in note for note in plan.notes)
    assert compiled.run(torch.randn(5, 3, 8)).shape == (5, 4, 4)


def test_an_exported_program_that_mixes_samples_is_refused() -> None:
    with pytest.raises(InputError, match=r"'mean'.*aten.mean.*brings.*axes"):
        import_torch(torch.export.export(CentersTheBatch().eval(), (X,)), (), batch=8)
