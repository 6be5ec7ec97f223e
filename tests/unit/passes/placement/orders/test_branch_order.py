"""The order of whole branches: which it is, and what a step gains by it."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.api import read_model
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_orders import LayerOrders
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.drafts import Draft, Placed, Posed, in_order
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.place_layers import steps_of
from heterps_compile.passes.placement.orders.branch_order import branch_order
from heterps_compile.passes.placement.steps.minimise_step import search_steps
from heterps_compile.plan.request import Request

sys.path.insert(0, str(Path(__file__).parents[5] / "tools"))

from bench_orders import towers


def test_whole_branches_stand_one_after_another_those_with_the_least_gradients_first() -> None:
    # branches 0 2, 1 4 and 3; 5 reads all of them
    orders = LayerOrders(((), (), (0,), (), (1,), (2, 3, 4)))
    problem = replace(plain_problem([[1.0]] * 6, [1.0]), sync_s=np.array([[5.0], [1.0], [0.0], [2.0], [0.5], [0.0]]))
    assert branch_order(problem, orders) == (1, 4, 3, 0, 2, 5)


def test_a_layer_that_branches_share_comes_before_all_of_them() -> None:
    orders = LayerOrders(((), (0,), (0,), (1, 2)))
    problem = replace(plain_problem([[1.0]] * 4, [1.0]), sync_s=np.array([[8.0], [2.0], [1.0], [0.0]]))
    assert branch_order(problem, orders) == (0, 2, 1, 3)


@pytest.mark.slow  # searches two orders of 12 towers
def test_a_step_takes_the_order_of_branches_where_it_is_shorter() -> None:
    graph = read_model(towers(12), (), None, batch=4096, shapes={}, dynamic_shapes=None)
    request = Request(mode="training", objective="throughput")
    posed = run_to(Draft(graph=graph, cluster=load_cluster("cloud-mix"), request=request), Posed)
    own = search_steps(steps_of(in_order(posed, posed.layers.own_order)), [], NO_DEADLINE, closing=None).plan
    found = run_to(posed, Placed).search.step
    assert own is not None
    assert found is not None
    assert found.step_s < 0.99 * own.step.step_s
