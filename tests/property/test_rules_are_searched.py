"""Placements, replicas and rules together: values are those of the formulas, and the best is that of brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum import assert_same_optimum, solve
from ruled_problems import ruled
from small_problems import (
    linked,
    on_machines,
    plain_value,
    rented_whole,
    small_problem,
    small_problems_for,
    with_shared_storage,
)

from heterps_compile.cost.evaluate import evaluate, to_placement
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Problem
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.proof.exact import Exact

SEEDS = st.integers(0, 2**32 - 1)
ROUNDING = 1e-8
TRAINED = [name for name, objective in OBJECTIVES.items() if objective.in_training]


def drawn(problem: Problem, seed: int, chance: float = 0.25, *, rents: bool = True) -> Problem:
    """Give a problem rules, and at random machines, links, storage, units that are rented together."""
    rng = np.random.default_rng([seed, 9])
    for add in (linked, on_machines, with_shared_storage, rented_whole):
        if rng.random() < chance and (add is not rented_whole or rents):
            problem = add(problem, seed)
    return ruled(problem, seed)


@pytest.mark.parametrize("objective", TRAINED)
@settings(max_examples=30, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_a_placement_is_worth_what_the_formulas_say(objective: str, data: st.DataObject, seed: int) -> None:
    problem = drawn(data.draw(small_problems_for(objective, units=9)), seed)
    rng = np.random.default_rng(seed)
    types = rng.integers(0, problem.type_count, (4, problem.layer_count))
    cuts = rng.random(types.shape) < 0.3
    cuts[:, 0] = False
    found = evaluate(problem, types, cuts).values
    for row, own, value in zip(types, cuts, found, strict=True):
        assert value == pytest.approx(plain_value(problem, to_placement(row, own)), rel=1e-9)


@pytest.mark.parametrize("objective", TRAINED)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_the_best_plan_over_placements_replicas_and_rules_is_found_and_proven(
    objective: str, data: st.DataObject, seed: int
) -> None:
    problem = ruled(data.draw(small_problems_for(objective, max_layers=5, units=5)), seed)
    assert_same_optimum(problem)


@pytest.mark.slow  # more of the same kind on larger problems
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_the_best_plan_is_found_where_units_share_machines(seed: int) -> None:
    assert_same_optimum(ruled(on_machines(small_problem(seed, layers=5, types=2, units=9), seed), seed))


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_no_bound_is_above_the_optimum_whatever_the_pool(seed: int) -> None:
    problem = drawn(small_problem(seed, layers=5, types=3, units=5), seed, 0.5, rents=False)
    best, found = solve(Brute(), problem), solve(Exact(), problem)
    assert (best is None) == (found is None)
    if best is not None and found is not None:
        assert found.bound <= best.value * (1 + ROUNDING)
        assert found.value >= best.value * (1 - ROUNDING)
