"""What a finished draft's plan says besides its numbers."""

from dataclasses import replace
from typing import Any

import light_models
import pytest
import torch
from torch import Tensor, nn
from wording import names

import heterps_compile
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.plan_notes import NOT_TRAINED
from heterps_compile.review.update import compile_as_planned


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


def plan_of(model: nn.Module, **options: Any) -> Plan:
    return heterps_compile.compile(
        model, (torch.randn(4, 8),), method="exact", min_stages=3, max_stages=3, verify=False, **options
    ).plan


def notes(model: nn.Module) -> list[str]:
    plan = plan_of(model)
    assert len(plan.stages) == 3
    return [note for note in plan.notes if "skip" in note]


def test_a_plan_says_which_values_skip_a_stage_and_that_they_are_sent_directly():
    assert notes(Skip()) == ["values that skip stages are sent directly, not passed on: 1 from stage 0 to stage 2"]


def test_a_plan_without_skips_says_nothing_of_them():
    assert notes(Chain()) == []


def test_a_plan_says_that_replicas_cannot_share_a_batch_that_the_model_fixes():
    asked = {"mode": "training", "reading": "steady-state", "min_throughput": 200_000}
    with pytest.raises(InfeasibleError, match=r"\b4\b"):
        plan_of(Chain(), mode="training", min_throughput=200_000)
    plan = plan_of(Chain(), **asked)
    most = max(stage.replicas for stage in plan.stages)
    assert most > 1
    shared = f"with {most} of them a step takes {most} batches (run --batch {4 * most} --micro-batches {most})"
    assert [note for note in plan.notes if shared in note]
    free = plan_of(Chain(), **asked, dynamic_shapes=({0: torch.export.Dim("n")},))
    assert not [note for note in free.notes if "cannot share" in note or "refuses a replica" in note]
    wide = plan_of(Chain(), **{**asked, "min_throughput": 1_000_000}, dynamic_shapes=({0: torch.export.Dim("n")},))
    assert max(stage.replicas for stage in wide.stages) > 4
    assert [note for note in wide.notes if "and a batch 4 samples: a training run refuses a replica" in note]


def test_a_training_of_an_onnx_model_is_planned_for_a_backend_that_trains():
    def planned(mode: str, backend: str | None) -> Plan:
        model = light_models.path("squeezenet")
        return heterps_compile.compile(model, mode=mode, backend=backend, method="greedy", verify=False).plan

    assert [planned("inference", None).backend, planned("training", None).backend] == ["onnxruntime", "torch"]
    assert any(names(note, "torch", "--backend", "onnxruntime") for note in planned("training", None).notes)
    mixed = planned("training", "cpu=onnxruntime,v100=onnxruntime")
    assert [note for note in mixed.notes if names(note, "onnxruntime", NOT_TRAINED)]
    with pytest.raises(InputError, match=r"'onnxruntime'.*torch or jax.*--backend torch"):
        planned("training", "onnxruntime")


def test_an_older_plan_of_a_training_keeps_its_backend_where_it_is_updated():
    model = light_models.path("squeezenet")
    plan = heterps_compile.compile(model, method="greedy").plan
    committed = replace(plan, request=replace(plan.request, mode="training"))
    found = compile_as_planned(model, committed).plan
    assert (found.backend, found.request.mode) == ("onnxruntime", "training")
    assert [note for note in found.notes if names(note, "onnxruntime", NOT_TRAINED)]
