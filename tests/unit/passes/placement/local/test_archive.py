"""The archive of good plans."""

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.problem import Placement
from heterps_compile.passes.placement.local.archive import Archive

# two layers on (cpu at 1, gpu at 3): each layer is cheapest where it takes 1 s
PROBLEM = plain_problem([[1.0, 9.0], [9.0, 1.0]], [1.0, 3.0])


def test_the_best_of_all_plans_is_kept_whatever_their_order() -> None:
    archive = Archive(PROBLEM)
    archive.add_placements([Placement((0, 1))])
    archive.add_placements([Placement((0, 0)), Placement((1, 1))])
    assert archive.best.placement() == Placement((0, 1))
    assert archive.evaluations == 3


def test_what_is_added_comes_back_the_best_first() -> None:
    types = np.array([[0, 0], [0, 1], [1, 0]])
    begins = np.array([[True, False], [True, True], [True, True]])
    found = Archive(PROBLEM).add(types, begins)
    assert [plan.placement().types for plan in found] == [(0, 1), (0, 0), (1, 0)]
    assert [plan.value for plan in found] == sorted(plan.value for plan in found)


def test_a_cut_between_layers_of_one_type_is_part_of_a_plan() -> None:
    archive = Archive(PROBLEM)
    archive.add_placements([Placement((0, 0), (1,))])
    assert archive.best.begins.tolist() == [True, True]
    assert archive.best.placement() == Placement((0, 0), (1,))


def test_a_niche_has_the_best_plan_of_its_throughput() -> None:
    # on one unit each: the cpu takes 2 s for both layers, the gpu 6 s, one layer on each 3 s
    problem = plain_problem([[1.0, 3.0], [1.0, 3.0]], [1.0, 2.0], max_units=np.array([1, 1]))
    archive = Archive(problem)
    archive.add_placements([Placement((1, 1)), Placement((0, 0)), Placement((0, 1))])
    assert [plan.placement().types for plan in archive.niches(9)] == [(0, 0), (0, 1), (1, 1)]
    assert len(archive.niches(2)) == 2


def test_of_infeasible_plans_the_nearest_to_feasible_is_the_best() -> None:
    # at 1 s a batch a cpu layer needs 4 units, a gpu layer 5; there are 3 of each
    problem = plain_problem([[4.0, 5.0]], [1.0, 1.0], max_units=np.array([3, 3]), min_throughput=3600.0)
    archive = Archive(problem)
    archive.add_placements([Placement((1,)), Placement((0,))])
    assert archive.best.value == np.inf
    assert archive.best.violation == pytest.approx(1 / 3)
    assert archive.best.placement().types == (0,)


def test_the_archive_does_not_grow_without_end_and_keeps_its_best() -> None:
    rng = np.random.default_rng(0)
    problem = plain_problem(rng.uniform(1, 9, (40, 3)).tolist(), [1.0, 1.0, 1.0])
    archive = Archive(problem)
    values = []
    for _ in range(60):
        found = archive.add(rng.integers(0, 3, (8, 40)), rng.random((8, 40)) < 0.5)
        values.append(found[0].value)
    assert archive.evaluations == 480
    assert archive.best.value == min(values)
    assert len(archive.niches(1000)) <= 128
