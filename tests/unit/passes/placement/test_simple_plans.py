"""Where searches begin."""

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.problem import Placement
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.passes.placement.simple_plans import require_feasible, seed_placements


def test_there_is_a_plan_on_every_type_and_one_with_each_layer_where_it_is_cheapest() -> None:
    problem = plain_problem([[1.0, 2.0], [9.0, 2.0]], [1.0, 1.0])
    assert [seed.types for seed in seed_placements(problem, None)] == [(0, 0), (1, 1), (0, 1)]


def test_a_layer_that_may_not_run_on_a_type_goes_elsewhere() -> None:
    problem = plain_problem([[1.0, 2.0], [1.0, np.inf]], [1.0, 1.0])
    assert [seed.types for seed in seed_placements(problem, None)] == [(0, 0), (1, 0), (0, 0)]


def test_layers_that_stay_together_have_one_type() -> None:
    uncuttable = np.array([False, True, False])
    problem = plain_problem([[1.0, 9.0], [9.0, 1.0]], [1.0, 1.0], uncuttable=uncuttable)
    assert [seed.types for seed in seed_placements(problem, None)] == [(0, 0), (1, 1), (0, 0)]


def test_stages_are_cut_evenly_where_more_are_asked_for() -> None:
    problem = plain_problem([[1.0]] * 5, [1.0], min_stages=3)
    assert seed_placements(problem, None)[0].starts() == (0, 1, 4)


def test_the_warm_start_comes_first() -> None:
    problem = plain_problem([[1.0, 2.0], [9.0, 2.0]], [1.0, 1.0])
    warm = Placement((1, 0))
    assert seed_placements(problem, warm)[0] is warm


@pytest.mark.parametrize("types", [(0, 0, 0), (0, 2), (0, -1)])
def test_a_warm_start_of_another_problem_is_refused(types: tuple[int, ...]) -> None:
    problem = plain_problem([[1.0, 2.0], [9.0, 2.0]], [1.0, 1.0])
    with pytest.raises(InputError, match=rf"{len(types)}.*\b2\b.*\b2\b"):
        seed_placements(problem, Placement(types))


def test_what_is_infeasible_is_said_to_be_with_what_it_breaks() -> None:
    problem = plain_problem([[4.0]], [1.0], min_throughput=3600.0, max_units=np.array([3]))
    with pytest.raises(InfeasibleError, match=r"\b1\b"):
        require_feasible(problem, Placement((0,)), "rl")
