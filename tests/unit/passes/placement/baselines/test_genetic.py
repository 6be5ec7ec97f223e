"""Genetic search and Bayesian search on problems whose answer is in sight."""

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.problem import Placement
from heterps_compile.passes.placement.baselines.bayes import Bayes
from heterps_compile.passes.placement.baselines.genetic import Genetic
from heterps_compile.passes.placement.method import PlacementMethod

PROBLEM = plain_problem([[1.0, 9.0], [9.0, 1.0], [9.0, 1.0], [1.0, 9.0]], [1.0, 1.0])
BOTH = pytest.mark.parametrize("method", [Genetic(), Bayes(trials=40)], ids=["genetic", "bayes"])


@BOTH
def test_every_layer_goes_where_it_is_cheapest(method: PlacementMethod) -> None:
    found = method(PROBLEM, seed=1)
    assert found.placement == Placement((0, 1, 1, 0))
    assert found.value == evaluate_one(PROBLEM, found.placement)


@BOTH
def test_the_seed_decides(method: PlacementMethod) -> None:
    first, again = (method(PROBLEM, seed=4) for _ in range(2))
    assert (first.placement, first.evaluations) == (again.placement, again.evaluations)


@pytest.mark.slow  # more of the same kind on larger problems
@BOTH
def test_stages_keep_their_number_and_their_places(method: PlacementMethod) -> None:
    uncuttable = np.array([False, True, False, False, False])
    problem = plain_problem([[1.0, 9.0], [9.0, 1.0], [9.0, 1.0], [1.0, 9.0]], [1.0, 1.0], uncuttable=uncuttable)
    assert 1 not in method(problem).placement.starts()
    three = plain_problem([[1.0, 9.0]] * 4, [1.0, 1.0], min_stages=3)
    assert len(method(three).placement.starts()) >= 3


@BOTH
def test_without_time_the_warm_start_comes_back_and_why_is_told(method: PlacementMethod) -> None:
    best = Placement((0, 1, 1, 0))
    found = method(PROBLEM, time_limit_s=-1.0, warm_start=best)
    assert found.placement == best
    assert found.notes == ("the time limit ended the search",)


def test_patience_ends_the_genetic_search() -> None:
    assert Genetic(patience=3)(PROBLEM).evaluations < Genetic(patience=30)(PROBLEM).evaluations


def test_bayes_counts_its_trials_and_the_simple_plans() -> None:
    assert Bayes(trials=7)(PROBLEM).evaluations == 7 + 3


def test_of_three_that_meet_the_fittest_has_the_children() -> None:
    types, begins, fitness = np.array([[0, 0], [1, 1], [1, 1], [1, 1]]), np.ones((4, 2), bool), np.arange(4.0)
    children, _ = Genetic(mutations=0.0)._children(types, begins, fitness, 2, np.random.default_rng(0))
    assert np.mean(children == 0) == pytest.approx(1 - (3 / 4) ** 3, abs=0.1)
