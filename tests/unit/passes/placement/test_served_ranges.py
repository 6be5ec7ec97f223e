"""Searches of problems with tables on servers: held against every placement with every number of servers."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import plain_served_value, small_problem, with_servers

from heterps_compile.cost.evaluate import evaluate, evaluate_one, to_placement
from heterps_compile.cost.layer_orders import LayerOrders
from heterps_compile.cost.problem import Problem, SearchResult
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.place_layers import run_method
from heterps_compile.passes.placement.enumeration import every_placement
from heterps_compile.passes.placement.methods import find_method
from heterps_compile.passes.placement.orders.order_search import search_orders
from heterps_compile.passes.placement.proof.prove import prove

OBJECTIVES = ("cost", "price", "throughput", "latency", "max-load")


def served_problem(seed: int, objective: str, layers: int = 3) -> Problem:
    problem = small_problem(seed, layers=layers, types=2, units=4, structure=seed % 3 > 0)
    if objective == "price" and not problem.min_throughput:
        problem = replace(problem, min_throughput=0.1 * problem.batch)
    if objective == "latency":
        problem = replace(problem, sync_s=np.zeros_like(problem.sync_s), keeps_activations=False)
    budget = 2.0 + seed % 20 if objective in ("throughput", "latency") and seed % 2 else np.inf
    return with_servers(replace(problem, objective=objective, budget_per_hour=budget), seed)


def best_of_all(problem: Problem) -> float:
    """Return the value of the best placement, by hand."""
    types, cuts = next(every_placement(problem))
    values = evaluate(problem, types, cuts).values
    row = int(np.argmin(values))
    by_hand = plain_served_value(problem, to_placement(types[row], cuts[row]))
    assert values[row] == pytest.approx(by_hand, rel=1e-7)
    return by_hand


@pytest.mark.parametrize(
    ("objective", "seeds"),
    [*((objective, range(5)) for objective in OBJECTIVES)]
    + [pytest.param(objective, range(5, 30), marks=pytest.mark.slow) for objective in OBJECTIVES],
)
def test_the_exact_search_finds_and_proves_the_best_plan_with_servers(objective, seeds):
    feasible = 0
    for seed in seeds:
        problem = served_problem(seed, objective)
        best, proof = best_of_all(problem), prove(problem, NO_DEADLINE)
        assert proof.bound <= best * (1 + 1e-9), seed
        if np.isfinite(best):
            assert proof.placement is not None
            assert proof.best == pytest.approx(best, rel=1e-7), seed
            assert proof.bound == pytest.approx(best, rel=1e-7), seed
            assert evaluate_one(problem, proof.placement) == pytest.approx(best, rel=1e-7)
            feasible += 1
        else:
            assert proof.placement is None
            assert np.isinf(proof.bound)
    assert feasible >= len(seeds) / 5


@pytest.mark.parametrize("method", ["best", "exact", "greedy", "brute"])
def test_methods_place_layers_beside_servers_and_no_bound_is_above_the_best(method):
    feasible = 0
    for seed in range(4):
        problem = served_problem(seed, "cost")
        best, found = best_of_all(problem), run_method(find_method(method), problem)
        if isinstance(found, SearchResult):
            assert len(found.placement.types) == problem.layer_count
            assert found.value == pytest.approx(evaluate_one(problem, found.placement))
            assert found.value >= best * (1 - 1e-9)
            assert found.bound <= best * (1 + 1e-9)
            feasible += 1
        else:
            assert isinstance(found, InfeasibleError)
    assert feasible > 1


def test_orders_of_layers_are_searched_beside_servers():
    for seed in range(5):
        problem = replace(served_problem(3 * seed, "cost", layers=4), edge_readers=np.array([3, 3, 3]))
        orders = LayerOrders(((), (), (), (0, 1, 2)))
        own, found = best_of_all(problem), search_orders(problem, orders, [], NO_DEADLINE)
        assert found.value <= own * (1 + 1e-9)
        if found.placement is not None:
            assert len(found.placement.types) == problem.layer_count
            assert sorted(found.order or range(4)) == [0, 1, 2, 3]
            assert found.bound == pytest.approx(found.value, rel=1e-7)
