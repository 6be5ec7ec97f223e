"""A model that is exported again, with other names and its nodes in another order, has the same plan."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from permuted import permuted_onnx
from torch import Tensor, nn

import heterps_compile
from heterps_compile.plan.plan import Plan
from heterps_compile.plan_diff.compare_plans import diff

BATCH, ROWS, WIDTH = 4096, 1000, 16


def planned(model: object, inputs: tuple[Tensor, ...] = (), **more: Any) -> Plan:
    asked: dict[str, Any] = {"method": "exact", "verify": False, "min_throughput": 1e6, "min_stages": 4} | more
    return heterps_compile.compile(model, inputs, pins={"embedding": "cpu-core"}, **asked).plan


def stages_of(plan: Plan) -> list[tuple[str, int, int]]:
    return [(stage.device, stage.replicas, len(stage.layers)) for stage in plan.stages]


def assert_unchanged(old: Plan, new: Plan) -> None:
    assert stages_of(new) == stages_of(old)
    assert diff(old, new).is_empty


def tables_model(names: Sequence[str], listed: Sequence[int], joined: str) -> onnx.ModelProto:
    """Build one embedding for each name, listed in an order, read side by side or summed by two products."""
    rng, weights = np.random.default_rng(0), []

    def weight(name: str, *shape: int) -> str:
        weights.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
        return name

    gathers = [
        helper.make_node("Gather", [weight(f"{name}_w", ROWS, WIDTH), f"{name}_ids"], [f"{name}_e"], name)
        for name in names
    ]
    rows = [f"{name}_e" for name in names]
    if joined == "side by side":
        join, width = helper.make_node("Concat", rows, ["all"], "join", axis=1), WIDTH * len(names)
    else:
        join, width = helper.make_node("Sum", rows, ["all"], "join"), WIDTH
    nodes = [
        *(gathers[i] for i in listed),
        join,
        helper.make_node("MatMul", ["all", weight("w1", width, 1024)], ["h"], "fc1"),
        helper.make_node("Relu", ["h"], ["r"], "act"),
        helper.make_node("MatMul", ["r", weight("w2", 1024, 1)], ["y"], "fc2"),
    ]
    ids = [helper.make_tensor_value_info(f"{name}_ids", TensorProto.INT64, ["N"]) for name in names]
    graph = helper.make_graph(
        nodes, "ctr", ids, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("joined", ["side by side", "summed"])
@pytest.mark.parametrize("count", [10, *(pytest.param(count, marks=pytest.mark.slow) for count in (17, 30))])
def test_equal_tables_of_an_onnx_model_stay_where_they_are(count, joined):
    names = [f"emb_{i}" for i in range(count)]
    first = tables_model(names, range(count), joined)
    plan = planned(first, batch=BATCH)
    assert len(plan.stages) > 3
    chance = random.Random(count)  # noqa: S311 - no secret
    for seed in range(1 if count == 30 else 2):
        others, order = [f"slot_{i}" for i in range(count)], list(range(count))
        chance.shuffle(others)
        chance.shuffle(order)
        shuffled = chance.sample(names, count)  # the old names, at other tables
        for again in (
            permuted_onnx(first, seed),
            tables_model(others, order, joined),
            tables_model(shuffled, order, joined),
        ):
            assert_unchanged(plan, planned(again, batch=BATCH))


class Tables(nn.Module):
    """Equal tables, made, named and called in any order."""

    def __init__(self, names: Sequence[str], order: Sequence[int]) -> None:
        super().__init__()
        self.names, self.order = names, order
        for i in order:
            self.add_module(names[i], nn.Embedding(ROWS, WIDTH))
        self.mlp = nn.Sequential(nn.Linear(len(names) * WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def forward(self, ids: Tensor) -> Tensor:
        """Return what ids [batch, tables] mean."""
        rows = {i: self.get_submodule(self.names[i])(ids[:, i]) for i in self.order}
        scores: Tensor = self.mlp(torch.cat([rows[i] for i in range(len(rows))], 1))
        return scores


def torch_plan(names: Sequence[str], order: Sequence[int], *, traced: bool = False) -> Plan:
    model = Tables(names, order).eval()
    return planned(torch.fx.symbolic_trace(model) if traced else model, (torch.randint(0, ROWS, (BATCH, len(names))),))


@pytest.mark.parametrize("count", [10, pytest.param(30, marks=pytest.mark.slow)])
def test_equal_tables_of_a_torch_model_stay_where_they_are(count):
    chance = random.Random(count)  # noqa: S311 - no secret
    names, order = [f"emb_{i}" for i in range(count)], list(range(count))
    for traced in (False, True) if count > 10 else (True,):
        plan = torch_plan(names, order, traced=traced)
        assert len(plan.stages) > 3
        others = [f"slot_{i}" for i in range(count)]
        for again in (names, chance.sample(names, count), chance.sample(others, count)):
            assert_unchanged(plan, torch_plan(again, chance.sample(order, count), traced=traced))
