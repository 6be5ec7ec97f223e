"""The product on one page: read this first, run this first."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import heterps_compile


class Tiny(nn.Module):
    """Two embeddings and a small tower, the least model that wants two kinds of hardware."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(1000, 16)
        self.item = nn.Embedding(500, 16)
        self.tower = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> dict[str, torch.Tensor]:
        logit = self.tower(torch.cat([self.user(user), self.item(item)], dim=-1))
        return {"logit": logit, "click": torch.sigmoid(logit)}


def tiny_torch() -> tuple[Tiny, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return Tiny(), {"user": torch.randint(0, 1000, (8,)), "item": torch.randint(0, 500, (8,))}


def tiny_onnx(path: Path) -> str:
    weights = np.random.default_rng(0).standard_normal
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], "emb"),
        helper.make_node("MatMul", ["rows", "w"], ["hidden"], "fc"),
        helper.make_node("Relu", ["hidden"], ["active"], "act"),
        helper.make_node("MatMul", ["active", "v"], ["logit"], "head"),
    ]
    initializers = [
        numpy_helper.from_array(weights(shape).astype(np.float32), name)
        for name, shape in (("table", (1000, 16)), ("w", (16, 32)), ("v", (32, 1)))
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["N", 1])],
        initializers,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return str(path)


def test_a_torch_model_is_cut_into_stages_that_give_its_own_outputs() -> None:
    model, inputs = tiny_torch()
    compiled = heterps_compile.compile(model, example_kwargs=inputs, min_stages=2)

    assert len(compiled.stages) >= 2
    assert all(isinstance(stage, nn.Module) for stage in compiled.stages)
    held = {name for stage in compiled.stages for name in stage.state_dict()}
    assert held == set(model.state_dict())
    outputs, expected = compiled.run(**inputs), model(**inputs)
    assert list(outputs) == ["logit", "click"]
    torch.testing.assert_close(outputs["click"], expected["click"])


def test_an_onnx_model_is_saved_and_loaded(tmp_path: Path) -> None:
    compiled = heterps_compile.compile(tiny_onnx(tmp_path / "tiny.onnx"), batch=8, min_stages=2)
    compiled.save(tmp_path / "out")
    again = heterps_compile.load(tmp_path / "out")

    ids = np.arange(8)
    assert again.plan.stages == compiled.plan.stages
    np.testing.assert_array_equal(again.run(ids)[0], compiled.run(ids=ids)[0])


def test_the_plan_says_what_it_costs_and_how_far_it_is_from_the_optimum() -> None:
    model, inputs = tiny_torch()
    plan = heterps_compile.compile(model, example_kwargs=inputs, min_throughput=100_000).plan

    assert plan.throughput_samples_per_s >= 100_000
    assert plan.price_per_hour == sum(stage.price_per_hour for stage in plan.stages) > 0
    assert 0 < plan.bound <= plan.value * (1 + 1e-9)
    assert plan.gap == pytest.approx(0, abs=1e-6)
    assert plan.verification is not None
    assert plan.verification.max_rel <= 1e-5


def test_a_floor_nobody_can_reach_is_explained() -> None:
    model, inputs = tiny_torch()
    with pytest.raises(heterps_compile.HeterpsError, match="samples/s"):
        heterps_compile.compile(model, example_kwargs=inputs, min_throughput=1e15)
