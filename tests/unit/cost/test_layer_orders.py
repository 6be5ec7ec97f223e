"""The orders of layers: which there are, and the problem in another of them."""

from dataclasses import fields

import numpy as np
import pytest
from drafts import DRAFT
from permuted import tower_model
from ruled_problems import ruled
from small_problems import small_problem

from heterps_compile.api import read_model
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_orders import BY_LAYER, BY_ORDER, LayerOrders, orders_of, reordered
from heterps_compile.cost.pose import pose_problem
from heterps_compile.cost.problem import Problem
from heterps_compile.errors import GraphError
from heterps_compile.passes.drafts import Draft, Posed, in_order
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.request import Request
from heterps_compile.schedule.load import with_least_activations

SHAPED_BY_NO_LAYER = {
    "type_names", "type_kinds", "batch", "compute_parallel", "data_parallel", "seconds_per_byte", "latency_s",
    "price_per_hour", "max_units", "memory_bytes", "keeps_activations", "min_throughput", "min_stages", "max_stages",
    "objective", "budget_per_hour", "link_seconds_per_byte", "link_latency_s", "ring_seconds_per_byte", "currency",
    "machines", "server_price_per_hour", "least_servers",
    "rented_together",
}  # fmt: skip


def towers(mode: str = "training") -> Posed:
    graph = read_model(tower_model(3), (), None, batch=64, shapes={}, dynamic_shapes=None)
    return run_to(Draft(graph=graph, cluster=load_cluster("heterps-paper"), request=Request(mode=mode)), Posed)


def another_order(orders: LayerOrders, seed: int) -> list[int]:
    chance, order = np.random.default_rng(seed), []
    while len(order) < len(orders.before):
        ready = [i for i, before in enumerate(orders.before) if i not in order and set(before) <= set(order)]
        order.append(int(chance.choice(ready)))
    return order


def test_every_field_of_a_problem_is_of_layers_of_their_order_or_of_neither():
    assert {field.name for field in fields(Problem)} == {*BY_LAYER, *BY_ORDER, *SHAPED_BY_NO_LAYER, "rules"}


def test_the_tables_of_rules_go_with_their_layers():
    problem = ruled(small_problem(7, layers=6, structure=False), 7)
    order = (3, 0, 5, 1, 4, 2)
    moved = reordered(problem, LayerOrders(((),) * 6), order)
    assert moved.rules is not None
    assert problem.rules is not None
    for one, other in zip(moved.rules, problem.rules, strict=True):
        assert [one.of_layer(place) for place in range(6)] == [other.of_layer(layer) for layer in order]


@pytest.mark.parametrize("seed", range(4))
def test_a_problem_in_another_order_is_the_one_that_is_posed_in_that_order(seed):
    draft = towers()
    orders = orders_of(draft.layers, optimizer="adam")
    order = another_order(orders, seed)
    moved = in_order(draft, order)
    posed = pose_problem(moved.layers, moved.costs, moved.times, draft.request)
    posed = with_least_activations(posed, is_divisible=draft.graph.batch_symbol is not None)
    for field in fields(Problem):
        assert np.array_equal(getattr(moved.problem, field.name), getattr(posed, field.name)), field.name
    back = in_order(moved, moved.layers.own_order)
    assert back.layers == draft.layers
    assert np.array_equal(back.problem.compute_s, draft.problem.compute_s)
    assert back.times.sources == draft.times.sources


def test_layers_that_wait_for_their_neighbour_have_one_order():
    chain = LayerOrders(((), (0,), (0, 1)))
    assert chain.is_fixed
    assert not LayerOrders(((), (0,), (0,))).is_fixed


def test_what_is_no_tensor_cannot_be_cut_in_any_order():
    orders = LayerOrders(((), (), (0,), (1,)), together=((0, 2),))
    assert orders.uncuttable((0, 1, 2, 3)).tolist() == [False, True, True, False, False]
    assert orders.uncuttable((0, 2, 1, 3)).tolist() == [False, True, False, False, False]


def test_ties_are_between_neighbours_among_the_layers_that_share():
    problem = towers("inference").problem
    orders = LayerOrders(((),) * problem.layer_count, ties=(((0, 2, 4), 5.0),))
    order = [4, *(i for i in range(problem.layer_count) if i != 4)]
    moved = reordered(problem, orders, order)
    assert list(zip(moved.tied_first, moved.tied_second, moved.tied_bytes, strict=True)) == [(0, 1, 5.0), (1, 3, 5.0)]


def test_an_order_that_runs_backward_is_refused():
    with pytest.raises(GraphError):
        towers().layers.reordered([2, 1, 0, *range(3, len(towers().layers.layers))][::-1])


def test_stages_that_run_in_another_order_than_the_layers_give_theirs():
    layers = DRAFT.layers
    assert layers.order_of([0] * len(layers.layers)) == tuple(range(len(layers.layers)))
    with pytest.raises(GraphError):
        layers.order_of([1] + [0] * (len(layers.layers) - 1))
