"""Kicks keep a plan a plan."""

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.passes.placement.local.climb import cross, divide_run
from heterps_compile.passes.placement.local.segment_table import segment_table
from heterps_compile.passes.placement.local.stage_list import StageList

PLAN = StageList(np.array([0, 3, 7, 10]), np.array([0, 1, 2]))
DRAWN = StageList(np.array([0, 4, 10]), np.array([2, 0]))


@pytest.mark.parametrize("seed", range(20))
def test_a_crossed_plan_is_a_window_of_the_one_in_the_other(seed: int) -> None:
    crossed = cross(PLAN, DRAWN, np.random.default_rng(seed))
    types = crossed.spread()[0]
    theirs = types == DRAWN.spread()[0]
    own = types == PLAN.spread()[0]
    assert np.all(theirs | own)
    assert crossed.bounds[0] == 0
    assert crossed.bounds[-1] == 10
    assert np.all(np.diff(crossed.bounds) > 0)
    assert np.any(~own)  # at no position do the two agree


def test_crossing_with_itself_may_cut_but_moves_no_layer() -> None:
    crossed = cross(PLAN, PLAN, np.random.default_rng(3))
    assert crossed.spread()[0].tolist() == PLAN.spread()[0].tolist()
    assert set(PLAN.bounds) <= set(crossed.bounds)


@pytest.mark.parametrize("seed", range(20))
def test_a_run_is_divided_into_equal_parts_on_its_own_type(seed: int) -> None:
    problem = plain_problem([[1.0, 1.0]] * 12, [1.0, 1.0])
    plan = StageList(np.array([0, 4, 8, 12]), np.array([0, 0, 0]))
    divided, ratio = divide_run(segment_table(problem), plan, np.random.default_rng(seed))
    parts = np.diff(divided.bounds)
    assert len(parts) in (1, 2, 4, 5)
    assert parts.max() - parts.min() <= 1
    assert set(divided.types) == {0}
    assert ratio == 3 / len(parts)
