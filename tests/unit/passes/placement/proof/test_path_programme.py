"""Cheapest paths within limits on units."""

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.path_programme import CoupledPath, Coupling, coupled_path

# two layers; on type 0 a layer costs 1 and takes 2 units, on type 1 it costs 3 and takes 1 unit
CHAIN = Chain(plain_problem([[1.0, 1.0], [1.0, 1.0]], [1.0, 3.0]))
SEGMENTS = CHAIN.all_segments()
LENGTHS = SEGMENTS.end - SEGMENTS.first
COST = np.where(SEGMENTS.type == 0, 1.0, 3.0) * LENGTHS
UNITS = np.where(SEGMENTS.type == 0, 2.0, 1.0) * LENGTHS


def solve(
    *limits: float, least: int = 1, most: int = 9, cost: np.ndarray = COST, budget: float = np.inf
) -> CoupledPath:
    coupling = Coupling(2, np.array(limits), least, most, np.ones(2), budget)
    return coupled_path(SEGMENTS, cost, UNITS * 1.0, coupling, Deadline.after(60.0))


@pytest.mark.parametrize(
    ("limits", "cost", "types"), [((9, 9), 2.0, {0}), ((3, 9), 4.0, {0, 1}), ((1, 9), 6.0, {1}), ((9, 0), 2.0, {0})]
)
def test_the_limits_decide_which_types_a_path_uses(limits: tuple[float, ...], cost: float, types: set[int]) -> None:
    found = solve(*limits)
    assert found.chosen is not None
    assert found.is_optimal
    assert COST[found.chosen].sum() == cost
    assert found.bound == pytest.approx(cost)
    assert set(SEGMENTS.type[found.chosen]) == types


def test_the_budget_decides_which_types_a_path_uses() -> None:
    found = solve(9, 9, budget=3.0)  # 4 units on type 0 alone, 2 on type 1
    assert found.chosen is not None
    assert COST[found.chosen].sum() == 4.0


def test_a_path_is_given_in_order_and_has_the_stages_asked_for() -> None:
    found = solve(9, 9, least=2)
    assert found.chosen is not None
    assert SEGMENTS.first[found.chosen].tolist() == [0, 1]
    assert SEGMENTS.end[found.chosen].tolist() == [1, 2]


@pytest.mark.parametrize("found", [solve(1, 1), solve(9, 9, least=3), solve(9, 9, cost=np.full(len(SEGMENTS), np.inf))])
def test_what_no_path_meets_is_proven_so(found: CoupledPath) -> None:
    assert found.bound == np.inf
    assert found.chosen is None
    assert found.is_optimal
