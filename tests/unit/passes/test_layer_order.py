"""The order of layers is the model's: not that of its file, nor of its names; and programs keep their random draws."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache

import light_models
import numpy as np
import onnx
import pytest
import torch
import torch_models
from permuted import permuted_graph, permuted_onnx, tower_model
from sketch import layers_text, sketch
from torch import Tensor, fx, nn

import heterps_compile
from heterps_compile.api import read_model
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_cost import layer_costs
from heterps_compile.cost.layer_times import layer_times
from heterps_compile.cost.pose import pose_problem
from heterps_compile.cost.problem import Problem
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.layers import LayerGraph, verify_layers
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.plan.request import Request
from heterps_compile.plan_diff.compare_plans import diff

POOL = load_cluster("heterps-paper")
PINS = (("embedding", "cpu-core"), ("gemm", "v100"))


def read(model: object, inputs: tuple[object, ...] = (), keywords: dict[str, object] | None = None) -> Graph:
    batch = 64 if isinstance(model, onnx.ModelProto) and model.graph.name == "towers" else None
    return read_model(model, inputs, keywords, batch=batch, shapes={}, dynamic_shapes=None)


def torch_graph(name: str) -> Graph:
    model, inputs, keywords = torch_models.REAL[name]()
    return read(model, inputs, keywords)


class Dropping(nn.Module):
    """Two towers that drop, the second of them first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Draw for b before a."""
        a, b = self.a(x), self.b(x)
        b = self.drop(b)
        return self.drop(a) + torch.nn.functional.dropout(b, 0.25, self.training)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "towers": lambda: read(tower_model()),
    "resnet50": lambda: read(str(light_models.path("resnet50"))),
    "inception_v1": lambda: read(str(light_models.path("inception_v1"))),
    "shufflenet": lambda: read(str(light_models.path("shufflenet"))),
    "ctrdnn": lambda: torch_graph("ctrdnn"),
    "bert": lambda: torch_graph("bert"),
    "gpt2": lambda: torch_graph("gpt2"),
    "dropping": lambda: read(Dropping(), (torch.randn(4, 8),)),
}


@cache
def graph_of(name: str) -> Graph:
    return GRAPHS[name]()


def posed(layers: LayerGraph) -> Problem:
    costs = layer_costs(layers)
    return pose_problem(layers, costs, layer_times(layers, costs, POOL, training=False), Request(min_stages=3))


def assert_same_problem(one: Problem, other: Problem) -> None:
    for field in fields(Problem):
        if field.name != "layer_names":
            a, b = getattr(one, field.name), getattr(other, field.name)
            assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b, field.name


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "bert" else ()) for name in GRAPHS]
)
def test_the_same_graph_has_the_same_layers_in_the_same_order(name):
    layers = group_nodes(graph_of(name))
    parts = [[graph_of(name).nodes[i].name for i in layer.nodes] for layer in layers.layers]
    for seed in range(3):
        permuted = permuted_graph(graph_of(name), seed)
        again = group_nodes(permuted.graph)
        verify_layers(again)
        new_names = [[permuted.graph.nodes[i].name for i in layer.nodes] for layer in again.layers]
        assert [[permuted.old_names[n] for n in names] for names in new_names] == parts
        assert [permuted.old_names[layer.name] for layer in again.layers] == [layer.name for layer in layers.layers]
        assert_same_problem(posed(again), posed(layers))


@pytest.mark.parametrize(
    "model", [tower_model(), onnx.load(light_models.path("squeezenet"))], ids=["towers", "squeezenet"]
)
def test_files_of_one_model_in_two_orders_give_one_plan(model):
    graph = read(model)
    problem = posed(group_nodes(graph))
    found = Exact()(problem)
    for seed in range(2):
        again = posed(group_nodes(read(permuted_onnx(model, seed))))
        assert_same_problem(again, problem)
        other = Exact()(again)
        assert (other.placement, other.value, other.bound) == (found.placement, found.value, found.bound)


def compiled(model: onnx.ModelProto) -> heterps_compile.CompiledModel:
    return heterps_compile.compile(model, batch=64, method="exact", pins=dict(PINS))


def test_towers_are_planned_alike_tower_by_tower_and_level_by_level():
    by_tower, by_level = compiled(tower_model()), compiled(tower_model(by_level=True))
    assert (by_tower.plan.value, by_tower.plan.bound) == (by_level.plan.value, by_level.plan.bound)
    assert [s.layers for s in by_tower.plan.stages] == [s.layers for s in by_level.plan.stages]
    assert [s.device for s in by_tower.plan.stages] == ["cpu-core", "v100"]
    assert diff(by_tower.plan, by_level.plan).is_empty
    warm = heterps_compile.compile(
        tower_model(by_level=True), batch=64, method="exact", pins=dict(PINS), warm_start=by_tower.plan, verify=False
    )
    assert warm.plan.value == by_tower.plan.value


def ordered(text: str) -> str:
    layers = group_nodes(sketch(text))
    verify_layers(layers)
    return layers_text(layers)


def test_embeddings_that_need_nothing_come_first_the_smallest_result_first():
    assert (
        ordered("""
            in users 4
            in items 4
            par u 10x8
            par i 10x2
            par w 8x2
            embedding wide : users u -> a 4x8
            gemm fc : a w -> b 4x2
            embedding narrow : items i -> c 4x2
            gemm product : b c -> y 4x2
            out y
        """)
        == "narrow: narrow | wide: wide | fc: fc | product: product"
    )


def test_an_embedding_behind_a_product_stays_behind_it():
    assert (
        ordered("""
            in x 4x8
            par w 8x8
            par t 10x2
            gemm route : x w -> a 4x8
            embedding rows : a t -> b 4x2
            gemm fc : b w -> y 4x2
            out y
        """)
        == "route: route | rows: rows | fc: fc"
    )


def test_of_two_operands_the_smaller_is_made_first():
    assert (
        ordered("""
            in x 4x8
            par w 8x8
            par v 8x2
            gemm large : x w -> a 4x8
            gemm small : x v -> b 4x2
            matmul both : a b -> y 4x8
            out y
        """)
        == "small: small | large: large | both: both"
    )


def test_of_two_equal_operands_the_longer_branch_is_made_first():
    assert (
        ordered("""
            in x 4x8
            par w 8x8
            gemm short : x w -> s 4x8
            gemm conv1 : x w -> a 4x8
            gemm conv2 : a w -> b 4x8
            elementwise sum : s b -> y 4x8
            out y
        """)
        == "conv1: conv1 | conv2: conv2 | short: short sum"
    )


def test_what_no_output_needs_comes_last():
    assert (
        ordered("""
            in x 4x8
            par w 8x8
            gemm idle : x w -> s 4x8
            gemm fc : x w -> y 4x8
            out y
        """)
        == "fc: fc | idle: idle"
    )


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("traced", [False, True])
def test_stages_draw_random_numbers_in_the_order_of_the_program(stages, traced):
    model = fx.symbolic_trace(Dropping()) if traced else Dropping()
    found = heterps_compile.compile(model, (torch.randn(16, 8),), method="exact", min_stages=stages, mode="training")
    assert found.plan.verification is not None
    assert (len(found.plan.stages), found.plan.verification.max_abs) == (stages, 0.0)


def test_dropout_that_drops_nothing_orders_nothing():
    nodes = read(Dropping().eval(), (torch.randn(4, 8),)).nodes
    assert [node.after for node in nodes if "dropout" in node.op] == [(), (), ()]
    nodes = read(Dropping(), (torch.randn(4, 8),)).nodes
    assert [bool(node.after) for node in nodes if "dropout" in node.op] == [False, True, True]
