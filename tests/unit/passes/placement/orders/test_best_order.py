"""The order of layers as a decision: which is taken, what is proven, and what stays as it is."""

from dataclasses import replace

import numpy as np
import pytest
from permuted import permuted_graph, tower_model
from small_problems import plain_problem

from heterps_compile.api import compile as compile_model
from heterps_compile.api import read_model
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_orders import LayerOrders, reordered
from heterps_compile.examples import EXAMPLES
from heterps_compile.ir.graph import Graph
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.drafts import Draft, Placed
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.placement.lattice import Lattice
from heterps_compile.passes.placement.orders.atoms import Atoms, atoms_of
from heterps_compile.passes.placement.orders.best_order import best_order
from heterps_compile.passes.placement.orders.order_search import ORDER_EFFORT, search_orders
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.plan.request import Request
from heterps_compile.review.pose import pose_again

POOL = load_cluster("heterps-paper")
FREE = LayerOrders(((), (), (), ()))

# two layers for each type, in turn: four stages in this order, two in another
TURNS = replace(
    plain_problem([[1.0, 9.0], [9.0, 1.0], [1.0, 9.0], [9.0, 1.0]], [1.0, 1.0]),
    edge_producer=np.zeros(0, np.int64),
    edge_bytes=np.zeros(0),
    edge_readers=np.zeros(0, np.int64),
    edge_starts=np.zeros(1, np.int64),
    max_stages=2,
)


def placed(graph: Graph, **request: object) -> Placed:
    return run_to(Draft(graph=graph, cluster=POOL, request=Request(method="exact", **request)), Placed)  # type: ignore[arg-type]


def graph_of(name: str) -> Graph:
    if name == "towers":
        return read_model(tower_model(3), (), None, batch=64, shapes={}, dynamic_shapes=None)
    model, inputs = EXAMPLES[name]()
    return read_model(model, inputs, None, batch=None, shapes={}, dynamic_shapes=None)


def test_layers_of_one_type_share_a_stage_where_another_order_lets_them():
    own = Exact()(TURNS)
    found = best_order(TURNS, FREE, "exact", own, 10.0)
    assert found.result is not None
    assert sorted(found.order[:2]) in ([0, 2], [1, 3])
    assert found.result.value < own.value
    assert found.result.bound == found.result.bound_of_all_orders == found.result.value
    assert found.result.notes[-1].startswith("the plan was found by the search over orders of the layers and is ")


def test_a_chain_is_proven_for_all_orders_by_the_search_of_its_own():
    chain = LayerOrders(((), (0,), (1,), (2,)))
    own = Exact()(TURNS)
    found = best_order(TURNS, chain, "exact", own, 10.0)
    assert found.order == ()
    assert found.result == replace(own, bound_of_all_orders=own.bound)


def test_an_order_that_is_no_better_is_not_taken():
    alike = replace(TURNS, compute_s=np.ones((4, 2)), max_stages=10**9)
    assert best_order(alike, FREE, "exact", Exact()(alike), 10.0).order == ()


def test_without_time_the_plan_stays_and_the_bound_holds():
    own = Exact()(TURNS)
    found = best_order(TURNS, FREE, "exact", own, 0.0)
    assert found.result is not None
    assert (found.order, found.result.placement, found.result.bound) == ((), own.placement, own.bound)
    assert found.result.bound_of_all_orders <= best_order(TURNS, FREE, "exact", own, 10.0).result.value  # type: ignore[union-attr]


def test_where_down_sets_are_too_many_the_bound_of_all_orders_is_another():
    own, few = Exact()(TURNS), replace(ORDER_EFFORT, most_down_sets=3)
    found = best_order(TURNS, FREE, "exact", own, 10.0, effort=few)
    assert found.result is not None
    assert found.result.value < own.value
    assert found.result.bound == found.result.value > found.result.bound_of_all_orders - 1e-12


def test_no_order_has_a_plan_where_none_has():
    alone = replace(TURNS, max_stages=1, allowed=np.array([[True, False], [False, True]] * 2))
    assert best_order(alone, FREE, "exact", None, 10.0).is_impossible
    more = replace(TURNS, min_stages=5, max_stages=9)
    assert best_order(more, FREE, "exact", None, 10.0).is_impossible


def is_chain(atoms: Atoms) -> bool:
    return all(atom in before for atom, before in enumerate(atoms.before[1:]))


def test_interchangeable_layers_need_one_order_alone():
    alike = replace(TURNS, compute_s=np.ones((4, 2)))
    assert is_chain(atoms_of(alike, FREE))
    tied = replace(FREE, ties=(((0, 1), 3.0),))
    assert not is_chain(atoms_of(reordered(alike, tied, range(4)), tied))


def test_layers_around_what_is_no_tensor_are_one_atom():
    orders = LayerOrders(((), (0,), (1,), ()), together=((0, 2),))
    assert atoms_of(reordered(TURNS, orders, range(4)), orders).members == ((0, 1, 2), (3,))


def test_a_lattice_has_a_segment_for_every_pair_of_nested_down_sets_and_every_type():
    problem = replace(TURNS, max_stages=10**9)
    lattice = Lattice(problem, FREE, [[i] for i in range(4)], range(16))
    assert lattice.pair_count == 3**4 - 2**4
    assert len(lattice.all_segments()) == lattice.segment_count == 2 * lattice.pair_count


def test_nce_in_four_stages_costs_what_it_costs_in_the_best_order():
    graph = graph_of("nce")
    found = placed(graph, min_stages=4).search
    assert found.found_by == "orders"
    assert found.bound_of_all_orders == found.value
    assert "83.6 % cheaper" in found.notes[-1]


@pytest.mark.parametrize("name", ["towers", "nce", "matchnet"])
def test_the_order_of_the_file_changes_no_plan_and_no_bound(name: str):
    graph = graph_of(name)
    one, other = (placed(read, min_stages=4).search for read in (graph, permuted_graph(graph, 3).graph))
    assert (other.placement, other.value, other.bound) == (one.placement, one.value, one.bound)
    assert other.bound_of_all_orders == one.bound_of_all_orders


def test_a_plan_in_another_order_is_found_again_explained_in_it_and_begun_from():
    model, inputs = EXAMPLES["nce"]()
    plan = compile_model(model, inputs, method="exact", min_stages=4, verify=False).plan
    assert plan.found_by == "orders"
    posed = pose_again(model, plan, inputs)
    assert posed.misfit == ""
    assert posed.placement is not None
    assert posed.problem.layer_names == tuple(name for stage in plan.stages for name in stage.layers)
    begun = run_to(replace(posed.draft, warm_start=plan.stages), Placed)
    assert begun.search.found_by == "warm start"
    assert begun.search.placement == posed.placement
    again = run_to(replace(posed.draft), Placed)
    assert again.search.value == pytest.approx(plan.value)
    assert again.problem.layer_names == posed.problem.layer_names


def test_the_search_stops_in_time():
    assert search_orders(TURNS, FREE, (), Deadline.after(0.0)).placement is None
