"""Plans of PyTorch models, which the command line does not read, are checked and explained through Python."""

import torch
from torch import nn
from torch.export import Dim

import heterps_compile
from heterps_compile.review.check import check_plan
from heterps_compile.review.explain import explain_layer
from heterps_compile.review.pose import pose_again


class Tower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 16)
        self.first = nn.Linear(16, width)
        self.last = nn.Linear(width, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(self.table(ids))))


IDS = torch.arange(8)
OPEN = {"ids": {0: Dim("B", min=2, max=512)}}


def test_a_plan_of_a_dynamic_model_holds_until_the_model_changes():
    plan = heterps_compile.compile(Tower(32), (IDS,), dynamic_shapes=OPEN, method="exact", verify=False).plan
    checked = check_plan(pose_again(Tower(32), plan, (IDS,), dynamic_shapes=OPEN))
    assert (checked.passes, checked.stale, checked.changes.is_empty) == (True, ("weights",), True)
    assert check_plan(pose_again(Tower(48), plan, (IDS,), dynamic_shapes=OPEN)).changes.altered != ()


def test_a_layer_of_it_is_explained():
    model = Tower(32)
    plan = heterps_compile.compile(model, (IDS,), method="exact", verify=False).plan
    found = explain_layer(pose_again(model, plan, (IDS,)), plan.stages[0].layers[0])
    assert found.device == plan.stages[0].device
    assert [choice.device for choice in found.choices] == ["cpu-core", "v100"]
