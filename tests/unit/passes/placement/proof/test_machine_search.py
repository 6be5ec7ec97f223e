"""Whole machines in the exact search: plans in sight, and its values and bounds against all placements."""

import math
from dataclasses import replace

import numpy as np
import pytest
from small_problems import on_machines, plain_problem, rented_whole, small_problem

from heterps_compile.cost.evaluate import detail, evaluate
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.best import Best
from heterps_compile.passes.placement.enumeration import every_placement
from heterps_compile.passes.placement.proof.effort import EFFORT
from heterps_compile.passes.placement.proof.exact import Exact

TWELVE = plain_problem([[1.0]] * 12, [2.0], min_throughput=3600 / 1.4, max_units=np.array([64]))


@pytest.mark.parametrize(
    ("objective", "together", "units", "idle", "price"),
    [("cost", 1, 9, 0, 18.0), ("price", 8, 9, 7, 32.0), ("cost", 8, 16, 0, 32.0)],
)
def test_the_plan_of_the_documentation(objective: str, together: int, units: int, idle: int, price: float) -> None:
    problem = replace(TWELVE, objective=objective, rented_together=np.array([together]))
    found = Exact()(problem)
    stages = detail(problem, found.placement)
    assert (sum(stage.replicas for stage in stages.stages), stages.idle_price_per_hour) == (units, 2.0 * idle)
    assert stages.price_per_hour == price
    assert found.gap == 0


def test_a_type_of_larger_machines_is_not_taken_for_a_few_units() -> None:
    problem = plain_problem([[1.0, 1.0]] * 3, [2.0, 1.0], min_throughput=3600.0, objective="price")
    assert set(Exact()(problem).placement.types) == {1}
    whole = replace(problem, rented_together=np.array([1, 8]), max_units=np.array([99, 96]))
    found = Exact()(whole)
    assert (set(found.placement.types), found.value, found.gap) == ({0}, 6.0, 0)


def drawn(seed: int, objective: str) -> Problem:
    problem = small_problem(seed, layers=1 + seed % 4, types=1 + seed % 3, units=8)
    budget = math.inf
    if objective == "price" and not problem.min_throughput:
        problem = replace(problem, min_throughput=0.2 * problem.batch)
    if objective in ("throughput", "latency"):
        budget = (0.2 + seed % 5 / 8) * float(problem.price_per_hour @ problem.max_units)
    if objective == "latency":
        problem = replace(problem, sync_s=np.zeros_like(problem.sync_s), keeps_activations=False)
    return rented_whole(replace(problem, objective=objective, budget_per_hour=budget), seed)


@pytest.mark.parametrize("objective", ["cost", "price", "throughput", "latency"])
def test_no_placement_is_below_the_bound_and_none_is_better_than_the_plan(objective: str) -> None:
    for seed in range(5):
        problem = drawn(seed, objective)
        best = min(evaluate(problem, types, cuts).values.min() for types, cuts in every_placement(problem))
        if math.isinf(best):
            with pytest.raises(InfeasibleError):
                Exact()(problem)
            continue
        found = Exact()(problem)
        assert found.bound <= best * (1 + 1e-9)
        assert found.value == pytest.approx(best)
        hasty = Exact(replace(EFFORT, most_machine_nodes=1))(problem)  # the root alone: a bound all the same
        assert hasty.bound <= best * (1 + 1e-9) <= hasty.value * (1 + 2e-9)


def test_searches_side_by_side_share_the_plan_of_whole_machines() -> None:
    found = Best()(replace(TWELVE, objective="price", rented_together=np.array([8])))
    assert (found.value, found.bound) == (32.0, 32.0)


def test_a_budget_that_units_would_keep_and_machines_do_not_is_named() -> None:
    problem = replace(TWELVE, objective="throughput", budget_per_hour=20.0)
    assert Exact()(problem).placement == Placement((0,) * 12)
    with pytest.raises(InfeasibleError, match=r"20.00"):
        Exact()(replace(problem, rented_together=np.array([8])))


def inside_one_machine(problem: Problem, seed: int) -> Problem:
    """Return the problem with stages of some types talking inside of a machine, faster than through its card."""
    rng = np.random.default_rng(seed)
    per_byte = np.repeat(problem.seconds_per_byte[:, None], problem.type_count, axis=1)
    latency_s = np.repeat(problem.latency_s[:, None], problem.type_count, axis=1)
    own = np.arange(problem.type_count)
    per_byte[own, own] *= rng.choice([1.0, 0.1, 0.01], len(own))
    latency_s[own, own] *= rng.choice([1.0, 0.1], len(own))
    return replace(
        problem,
        seconds_per_byte=per_byte.min(axis=1),
        latency_s=latency_s.min(axis=1),
        link_seconds_per_byte=per_byte,
        link_latency_s=latency_s,
    )


@pytest.mark.parametrize("objective", ["cost", "throughput", "latency"])
def test_plans_and_bounds_hold_where_stages_talk_inside_of_a_machine(objective: str) -> None:
    for seed in range(14):
        apart = replace(small_problem(seed, layers=2 + seed % 4, types=1 + seed % 3), objective=objective)
        if objective == "latency":
            apart = replace(apart, sync_s=np.zeros_like(apart.sync_s), keeps_activations=False)
        problem = inside_one_machine(on_machines(apart, seed) if seed % 2 else apart, seed)
        best = min(evaluate(problem, types, cuts).values.min() for types, cuts in every_placement(problem))
        outside = min(evaluate(apart, types, cuts).values.min() for types, cuts in every_placement(apart))
        assert seed % 2 or best <= outside  # the inside of a machine makes no plan worse
        if math.isinf(best):
            with pytest.raises(InfeasibleError):
                Exact()(problem)
            continue
        found = Exact()(problem)
        assert found.bound <= best * (1 + 1e-9)
        assert found.value == pytest.approx(best)
