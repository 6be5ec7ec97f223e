"""What a finished draft's plan says besides its numbers."""

import torch
from torch import Tensor, nn

import heterps_compile


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first = self.layers[0](x)
        return self.layers[2](self.layers[1](first).relu()) + first


class Chain(Skip):
    def forward(self, x: Tensor) -> Tensor:
        return self.layers[2](self.layers[1](self.layers[0](x)))


def notes(model: nn.Module) -> list[str]:
    plan = heterps_compile.compile(
        model, (torch.randn(4, 8),), method="exact", min_stages=3, max_stages=3, verify=False
    ).plan
    assert len(plan.stages) == 3
    return [note for note in plan.notes if "skip" in note]


def test_a_plan_says_which_values_skip_a_stage_and_that_they_are_sent_directly():
    assert notes(Skip()) == ["values that skip stages are sent directly, not passed on: 1 from stage 0 to stage 2"]


def test_a_plan_without_skips_says_nothing_of_them():
    assert notes(Chain()) == []
