"""Placements, replicas and rules together: values are those of the formulas, and the best is that of brute force."""

from dataclasses import replace

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
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.block_cells import Blocks
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.passes.placement.proof.paths import SegmentPrices
from heterps_compile.passes.placement.proof.trivial_bounds import longest_s

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
@settings(max_examples=60, deadline=None)
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


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, slow=st.floats(0.02, 1.0), size=st.sampled_from([1, 2, 5]))
def test_no_segment_is_cheaper_than_its_cell(seed: int, slow: float, size: int) -> None:
    problem = ruled(small_problem(seed, layers=13, types=3, units=40), seed)
    chain = Chain(problem)
    blocks, segments = Blocks(chain, size), chain.all_segments()
    slow_s = longest_s(problem) * slow * slow
    prices = SegmentPrices.at(problem, slow_s)
    cells, demand = blocks.demand(blocks.all_cells())
    bounds, _ = demand.reduced_costs(replace(prices, fast_s=0.7 * slow_s))
    index = {key: i for i, key in enumerate(zip(cells.first, cells.end, cells.type, strict=True))}
    grown = np.diff(chain.cheapest_work(problem.price_per_hour)[np.array([segments.first, segments.end])], axis=0)[0]
    of = [index[key] for key in zip(segments.first // size, segments.end // size, segments.type, strict=True)]
    cost = replace(prices, fast_s=0.7 * slow_s).of(segments.demand, segments.type)
    assert np.all(bounds[of] + grown <= cost * (1 + ROUNDING) + 1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_no_bound_is_above_the_optimum_whatever_the_pool(seed: int) -> None:
    problem = drawn(small_problem(seed, layers=5, types=3, units=5), seed, 0.5, rents=False)
    best, found = solve(Brute(), problem), solve(Exact(), problem)
    assert (best is None) == (found is None)
    if best is not None and found is not None:
        assert found.bound <= best.value * (1 + ROUNDING)
        assert found.value >= best.value * (1 - ROUNDING)
