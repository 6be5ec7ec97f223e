"""Parallel fractions of layers: what holds where a type has one fraction holds where its layers have their own."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum import ROUNDING, assert_same_optimum, solve
from small_problems import drawn_fractions, linked, on_machines, small_problems_for, with_shared_storage

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.orders.forest_bound import forest_bound
from heterps_compile.passes.placement.proof.trivial_bounds import trivial_bound

SEEDS = st.integers(0, 2**32 - 1)


def with_fractions(problem: Problem, seed: int) -> Problem:
    """Return the problem with fractions of its layers, among storage, machines or links of pairs of types."""
    compute, data = drawn_fractions(seed, problem.layer_count, problem.type_count)
    problem = replace(problem, layer_compute_parallel=compute, layer_data_parallel=data)
    if seed % 4 == 1:
        return with_shared_storage(problem, seed)
    if seed % 4 == 2 and problem.objective != "latency":
        return on_machines(problem, seed)
    return linked(problem, seed) if seed % 4 == 3 else problem


@pytest.mark.parametrize("objective", list(OBJECTIVES))
@settings(max_examples=12, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_the_optimum_is_found_and_proven_for_every_objective(objective: str, data: st.DataObject, seed: int) -> None:
    problem = data.draw(small_problems_for(objective, max_layers=5))
    assert_same_optimum(with_fractions(problem, seed))


@pytest.mark.parametrize("objective", list(OBJECTIVES))
@settings(max_examples=20, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_bounds_that_cost_nothing_are_below_the_optimum(objective: str, data: st.DataObject, seed: int) -> None:
    problem = with_fractions(data.draw(small_problems_for(objective, max_layers=4)), seed)
    best = solve(Brute(), problem)
    if best is not None:
        assert trivial_bound(problem) <= best.value * (1 + ROUNDING)
        assert forest_bound(problem) <= best.value * (1 + ROUNDING)


@pytest.mark.parametrize("objective", list(OBJECTIVES))
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_fractions_of_layers_that_are_their_types_change_nothing(objective: str, data: st.DataObject) -> None:
    problem = data.draw(small_problems_for(objective, max_layers=4))
    plain = replace(problem, layer_compute_parallel=None, layer_data_parallel=None)
    shape = plain.compute_s.shape
    told = replace(
        plain,
        layer_compute_parallel=np.broadcast_to(plain.compute_parallel, shape).copy(),
        layer_data_parallel=np.broadcast_to(plain.data_parallel, shape).copy(),
    )
    try:
        assert Brute()(told).value == pytest.approx(Brute()(plain).value, rel=ROUNDING)
    except InfeasibleError:
        assert solve(Brute(), plain) is None
        assert solve(Brute(), told) is None
