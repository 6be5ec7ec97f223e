"""Cells of segments cost no more than the segments in them, and a sweep over them loses no better plan."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum import assert_bound_below_optimum, assert_found_without_sweeps, assert_same_optimum
from small_problems import small_problem, small_problems

from heterps_compile.cost.problem import Problem
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.block_cells import Blocks
from heterps_compile.passes.placement.proof.effort import Effort, SweepEffort
from heterps_compile.passes.placement.proof.paths import SegmentPrices
from heterps_compile.passes.placement.proof.trivial_bounds import longest_s

ROUNDING = 1e-8


# sweep the shortest chains too, with few segments left to the search that comes after
SWEPT = [
    Effort(sweep=SweepEffort(least_positions=1, sizes=sizes, top_blocks=1, few=3))
    for sizes in ((4, 2, 1), (3, 1), (1,))
]
SWEPT_LONG = [
    pytest.param(SWEPT[0], id="4-2-1", marks=pytest.mark.slow),
    pytest.param(SWEPT[1], id="3-1", marks=pytest.mark.slow),
    pytest.param(SWEPT[2], id="1"),
]
"""The same, where every example is a long chain."""


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slow=st.floats(0.02, 1.0), ratio=st.sampled_from([0.0, 0.7, 1.0]))
@pytest.mark.parametrize("size", [1, 2, 5])
def test_no_segment_is_cheaper_than_its_cell(size: int, seed: int, slow: float, ratio: float) -> None:
    problem = small_problem(seed, layers=17, types=3, units=40)
    chain = Chain(problem)
    blocks, segments = Blocks(chain, size), chain.all_segments()
    slow_s = longest_s(problem) * slow * slow
    at_slow = SegmentPrices.at(problem, slow_s)
    prices = replace(at_slow, fast_s=ratio * slow_s)
    cells, demand = blocks.demand(blocks.all_cells())
    bounds, slow_bounds = demand.reduced_costs(prices)
    index = {key: i for i, key in enumerate(zip(cells.first, cells.end, cells.type, strict=True))}
    grown = np.diff(chain.cheapest_work(problem.price_per_hour)[np.array([segments.first, segments.end])], axis=0)[0]
    of = [index[key] for key in zip(segments.first // size, segments.end // size, segments.type, strict=True)]
    for exact, bound in ((prices, bounds), (at_slow, slow_bounds)):
        cost = exact.of(segments.demand, segments.type)
        assert np.all(bound >= 0)
        assert np.all(bound[of] + grown <= cost * (1 + ROUNDING) + 1e-9)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_cells_are_parted_into_all_their_parts_in_order(seed: int) -> None:
    chain = Chain(small_problem(seed, layers=21, types=2, structure=False))
    coarse, fine, finest = (Blocks(chain, size) for size in (6, 3, 1))
    for large, small in ((coarse, fine), (fine, finest), (coarse, finest)):
        parts, every = large.parts(large.all_cells(), small), small.all_cells()
        assert parts.first.tolist() == sorted(parts.first.tolist())
        found, expected = (
            sorted(zip(c.first.tolist(), c.end.tolist(), c.type.tolist(), strict=True)) for c in (parts, every)
        )
        assert found == expected


@pytest.mark.parametrize("effort", SWEPT, ids=["4-2-1", "3-1", "1"])
@settings(max_examples=30, deadline=None)
@given(problem=small_problems(max_layers=6) | small_problems(max_layers=5, units=3))
def test_a_sweep_leaves_the_optimum(effort: Effort, problem: Problem) -> None:
    assert_same_optimum(problem, effort)


@pytest.mark.parametrize("effort", SWEPT_LONG)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_sweep_finds_what_the_search_finds_without_it(effort: Effort, seed: int) -> None:
    problem = small_problem(seed, layers=14, types=3, units=60, memory=False)
    assert_found_without_sweeps(problem, effort)


@pytest.mark.parametrize("effort", SWEPT, ids=["4-2-1", "3-1", "1"])
@settings(max_examples=30, deadline=None)
@given(problem=small_problems(max_layers=6, units=8), checks=st.integers(0, 12))
def test_wherever_a_sweep_stops_its_bound_is_below_the_optimum(effort: Effort, problem: Problem, checks: int) -> None:
    assert_bound_below_optimum(problem, checks, effort)
