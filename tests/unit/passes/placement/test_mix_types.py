"""Units of several device types in stages: plans in sight, and bounds against all stages and all units."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from ruled_problems import ruled
from small_problems import linked, on_machines, plain_problem, rented_whole, small_problem

from heterps_compile.cost.mixed_units import MixedPlacement, worth_of
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.passes.placement.mix_types import mix_types
from heterps_compile.passes.placement.proof.exact import Exact

ONE_LAYER = plain_problem([[4.0, 2.0]], [1.0, 3.0], max_units=np.array([2, 1]))


def test_units_of_two_types_together_reach_what_none_reaches_alone() -> None:
    floor = replace(ONE_LAYER, objective="price", min_throughput=3600.0)
    with pytest.raises(InfeasibleError):
        Exact()(floor)
    found = mix_types(floor, None)
    assert found.plans[0] == (MixedPlacement((0,), ((2, 1),)), 5.0)
    assert found.bound <= 5.0
    assert mix_types(replace(floor, min_throughput=3700.0), None).plans == ()


def test_all_units_of_a_pool_train_one_layer() -> None:
    found = mix_types(replace(ONE_LAYER, objective="throughput"), Placement((0,)))
    assert found.value == pytest.approx(1.0)
    assert found.bound == pytest.approx(1.0, rel=1e-3)
    assert Exact()(replace(ONE_LAYER, objective="throughput")).value == 2.0


def test_stages_that_are_equally_slow_both_get_units() -> None:
    """Units for one of them alone make no batch quicker."""
    problem = plain_problem([[4.0, 4.0]] * 2, [1.0, 1.0], max_units=np.array([2, 2]), min_stages=2)
    found = mix_types(replace(problem, objective="throughput"), Placement((0, 0), (1,)))
    assert found.value == pytest.approx(2.0)


def test_the_cheapest_type_alone_is_the_cheapest_where_limits_do_not_bind() -> None:
    found = mix_types(replace(ONE_LAYER, max_units=np.array([12, 12])), None)
    assert found.plans[0][0].mixed_stages == 0
    assert found.bound <= found.value


def test_an_objective_that_they_do_not_help_is_refused() -> None:
    with pytest.raises(InputError, match="'latency'"):
        mix_types(replace(ONE_LAYER, objective="latency"), None)


def every_mixed_plan(problem: Problem) -> float:
    """Return the least value over all stages and all units."""
    layers, most = problem.layer_count, problem.max_units
    of_a_stage = [units for units in itertools.product(*(range(int(count) + 1) for count in most)) if any(units)]
    best = math.inf
    for cuts in itertools.chain.from_iterable(
        itertools.combinations(range(1, layers), count) for count in range(layers)
    ):
        for units in itertools.product(of_a_stage, repeat=1 + len(cuts)):
            if np.all(np.sum(units, axis=0) <= most):
                best = min(best, worth_of(problem, MixedPlacement((0, *cuts), units)).value)
    return best


def drawn(seed: int, objective: str, units: int) -> Problem:
    problem = small_problem(seed, layers=1 + seed % 2, types=2, units=units)
    budget = math.inf
    if objective == "price" and not problem.min_throughput:
        problem = replace(problem, min_throughput=0.2 * problem.batch)
    if objective == "throughput" and seed % 2:
        budget = 0.6 * float(problem.price_per_hour @ problem.max_units)
    problem = replace(problem, objective=objective, budget_per_hour=budget)
    problem = rented_whole(problem, seed) if seed % 3 == 1 else problem
    problem = linked(problem, seed) if seed % 3 == 2 else problem
    return on_machines(problem, seed) if seed % 4 == 3 else problem


@pytest.mark.parametrize("objective", ["cost", "price", "throughput"])
@pytest.mark.parametrize(("seeds", "units"), [(4, 2), pytest.param(24, 3, marks=pytest.mark.slow)])
def test_no_plan_is_below_the_bound_and_the_one_found_is_near_the_best(objective: str, seeds: int, units: int) -> None:
    for seed in range(seeds):
        problem = drawn(seed, objective, units)
        best = every_mixed_plan(problem)
        try:
            start = Exact()(problem).placement
        except InfeasibleError:
            start = None
        found = mix_types(problem, start)
        assert found.bound <= best * (1 + 1e-6), seed
        assert found.value <= best * 1.01 or math.isinf(best), seed  # the same but for the all-reduce of two types
        assert found.value >= best * (1 - 1e-6), seed


@pytest.mark.parametrize("objective", ["cost", "price", "throughput"])
@pytest.mark.parametrize(("seeds", "units"), [(6, 2), pytest.param(24, 3, marks=pytest.mark.slow)])
def test_bounds_hold_with_rules_too(objective: str, seeds: int, units: int) -> None:
    for seed in range(seeds):
        problem = ruled(drawn(seed, objective, units), seed)
        best = every_mixed_plan(problem)
        found = mix_types(problem, None, 0.3)  # what a rule holds may leave a gap
        assert found.bound <= best * (1 + 1e-6), seed
        assert found.value >= best * (1 - 1e-6), seed


def test_a_search_without_time_says_what_it_knows() -> None:
    """A time limit that other searches have used up is no fault."""
    found = mix_types(replace(ONE_LAYER, objective="throughput"), None, 0.0)
    assert found.bound <= 1.0
    assert "time limit of 0 s" in found.notes[0]
    assert mix_types(replace(ONE_LAYER, objective="throughput"), None).notes == ()
