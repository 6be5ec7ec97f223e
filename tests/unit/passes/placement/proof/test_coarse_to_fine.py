"""Which positions the coarse and the fine searches look at."""

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.problem import Placement
from heterps_compile.cost.synthetic import Recipe, synthetic_problem
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.coarse_to_fine import near, search_all, thinned
from heterps_compile.passes.placement.proof.effort import CoarseEffort, Effort
from heterps_compile.passes.placement.proof.time_search import CostSearch


def test_of_neighbouring_positions_the_one_that_the_fewest_bytes_cross_is_kept() -> None:
    edge_bytes = np.array([9.0, 1.0, 9.0, 9.0, 3.0, 2.0, 9.0])  # value i leaves layer i: position i + 1 crosses it
    chain = Chain(plain_problem([[1.0]] * 8, [1.0], edge_bytes=edge_bytes))
    assert thinned(chain, 4).tolist() == [0, 2, 5, 8]


def test_the_ends_are_always_kept() -> None:
    chain = Chain(plain_problem([[1.0]] * 5, [1.0]))
    assert thinned(chain, 1).tolist() == [0, 5]


def test_near_the_cuts_of_a_plan_all_positions_are_looked_at() -> None:
    chain = Chain(plain_problem([[1.0, 1.0]] * 2000, [1.0, 1.0]))
    found = near(chain, Placement((0,) * 700 + (1,) * 1300), 300)
    assert {698, 699, 700, 701, 702} <= set(found.tolist())
    assert len(found) < 400


@pytest.mark.parametrize("branched", [False, True])
def test_the_coarse_start_saves_work_and_changes_no_answer(branched: bool) -> None:
    problem = synthetic_problem(Recipe(seed=3, layers=60, types=3, branched=branched))
    whole = CostSearch(Chain(problem), Deadline.after(None))
    whole.run()
    effort = Effort(coarse=CoarseEffort(above=10, coarse=8, fine=20))
    found = search_all(problem, Deadline.after(None), effort=effort)
    assert found.best == pytest.approx(whole.best, rel=1e-8)
    assert found.bound == found.best
