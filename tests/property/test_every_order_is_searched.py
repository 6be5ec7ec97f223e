"""Plans of all orders of layers: the search over down-sets ends where brute force over every order does."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum import ROUNDING
from small_problems import linked, on_machines, small_problem, with_shared_storage

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.layer_orders import LayerOrders, reordered
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.orders.forest_bound import forest_bound
from heterps_compile.passes.placement.orders.order_search import ORDER_EFFORT, search_orders


def drawn(seed: int, layers: int, types: int, objective: str = "cost") -> tuple[Problem, LayerOrders]:
    """Draw a problem and its orders: some values, some more waits, some layers that stay together, some ties."""
    problem = small_problem(seed, layers=layers, types=types, units=4)
    rng = np.random.default_rng(seed + 1)
    values = [(p, sorted(rng.choice(np.arange(p + 1, layers), rng.integers(1, 3)))) for p in range(layers - 1)]
    values = [(p, sorted({int(r) for r in readers})) for p, readers in values if rng.random() < 0.8]
    waits = [(int(p), int(r)) for p, r in rng.integers(0, layers, (layers // 2, 2)) if p < r]
    before = [
        {p for p, readers in values if layer in readers} | {p for p, r in waits if r == layer}
        for layer in range(layers)
    ]
    together = tuple((p, *readers) for p, readers in values if rng.random() < 0.1)
    shared = tuple(sorted({int(i) for i in rng.integers(0, layers, 3)}))
    ties = ((shared, float(rng.integers(1, 20))),) if len(shared) > 1 and rng.random() < 0.5 else ()
    orders = LayerOrders(tuple(tuple(sorted(own)) for own in before), together, ties)
    bytes_ = np.round(rng.lognormal(2.0, 1.5, len(values))) * (rng.random(len(values)) < 0.9)
    problem = replace(
        problem,
        edge_producer=np.array([p for p, _ in values], np.int64),
        edge_bytes=bytes_,
        edge_readers=np.array([r for _, readers in values for r in readers], np.int64),
        edge_starts=np.cumsum([0, *(len(readers) for _, readers in values)]),
        objective=objective,
    )
    if objective == "latency":
        problem = replace(problem, sync_s=np.zeros_like(problem.sync_s), keeps_activations=False)
    if objective == "price" and not problem.min_throughput:
        problem = replace(problem, min_throughput=0.2 * problem.batch)
    if objective in ("throughput", "latency") and rng.random() < 0.5:
        problem = replace(
            problem, budget_per_hour=float(rng.uniform(0.1, 1) * problem.price_per_hour @ problem.max_units)
        )
    return reordered(problem, orders, range(layers)), orders


def best_of_all(problem: Problem, orders: LayerOrders) -> float:
    """Return the least value of any plan in any order."""
    best = np.inf
    for order in permutations(range(problem.layer_count)):
        place = {layer: at for at, layer in enumerate(order)}
        if all(place[b] < place[layer] for layer, before in enumerate(orders.before) for b in before):
            try:
                best = min(best, Brute()(reordered(problem, orders, order)).value)
            except InfeasibleError:
                continue
    return best


def assert_searched(problem: Problem, orders: LayerOrders) -> None:
    best = best_of_all(problem, orders)
    found = search_orders(problem, orders, (), Deadline.after(None))
    assert found.bound <= best * (1 + ROUNDING)
    if problem.link_seconds_per_byte is None:
        assert found.value == pytest.approx(best, rel=ROUNDING)
        assert found.bound == pytest.approx(best, rel=1e-3)
    if found.placement is not None:
        moved = reordered(problem, orders, found.order or range(problem.layer_count))
        own = detail(replace(moved, link_seconds_per_byte=None, link_latency_s=None), found.placement)
        assert own.value == pytest.approx(found.value, rel=ROUNDING)


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=4)
@given(st.integers(0, 2**31), st.integers(2, 4), st.integers(1, 3))
def test_it_ends_where_brute_force_over_all_orders_does(objective: str, seed: int, layers: int, types: int) -> None:
    problem, orders = drawn(seed, layers, types, objective)
    if seed % 4 == 1:
        problem = linked(problem, seed)
    if seed % 4 == 2:
        problem = with_shared_storage(problem, seed)
    if seed % 4 == 3 and objective != "latency":  # which is of inference
        problem = on_machines(problem, seed)
    assert_searched(problem, orders)


@pytest.mark.slow  # brute force over all orders of six layers, 20 s
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(2))
def test_with_more_layers_too(objective: str, seed: int) -> None:
    assert_searched(*drawn(seed, 6, 3, objective))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(3))
def test_where_there_are_too_many_down_sets_the_bound_holds_and_no_plan_is_lost(objective: str, seed: int) -> None:
    problem, orders = drawn(seed, 5, 2, objective)
    best, few = best_of_all(problem, orders), replace(ORDER_EFFORT, most_down_sets=3)
    found = search_orders(problem, orders, (), Deadline.after(None), few)
    assert found.bound <= best * (1 + ROUNDING)
    assert found.value >= best * (1 - ROUNDING)
    assert np.isfinite(found.value) == np.isfinite(best)  # so few layers that a sample has all that matters
    assert search_orders(problem, orders, (), Deadline.after(None), few) == found


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=5)
@given(st.integers(0, 2**31), st.integers(2, 4), st.integers(1, 3))
def test_the_bound_of_a_forest_is_below_every_plan(objective: str, seed: int, layers: int, types: int) -> None:
    problem, orders = drawn(seed, layers, types, objective)
    if objective != "latency":  # which is of inference
        problem = replace(problem, sync_s=(1 + seed % 5) * problem.sync_s)
        problem = on_machines(problem, seed) if seed % 2 else problem
    assert forest_bound(problem) <= best_of_all(problem, orders) * (1 + ROUNDING)
