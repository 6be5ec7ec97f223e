"""Cuts and moves, prices on fixed terms, and the polish, on plans whose answer is in sight."""

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.problem import Problem
from heterps_compile.cost.synthetic import Recipe, synthetic_problem
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.local.polish import Polish
from heterps_compile.passes.placement.local.segment_table import segment_table
from heterps_compile.passes.placement.local.stage_list import Move, StageList, apart, apply
from heterps_compile.passes.placement.local.stage_prices import WORK_WEIGHT, StagePrices, Terms


def one_stage(problem: Problem, type_: int = 0) -> StageList:
    return StageList(np.array([0, problem.layer_count]), np.array([type_]))


def polished(problem: Problem, batch_s: float, start: StageList | None = None) -> str:
    prices = StagePrices(segment_table(problem))
    cut = Polish(prices).descend(start or one_stage(problem), Terms(batch_s))
    letters = [problem.type_names[t][0] * int(n) for t, n in zip(cut.types, np.diff(cut.bounds), strict=True)]
    return "|".join(letters)


# cuts ----------------------------------------------------------------------------------------------------------


def test_a_move_puts_stages_in_the_place_of_others_and_tells_which_are_new() -> None:
    cut = StageList(np.array([0, 2, 5, 9]), np.array([0, 1, 2]))
    moved, came_from = apply(cut, [Move(1.0, 0, 2, [3], [2, 0])])
    assert moved.bounds.tolist() == [0, 3, 5, 9]
    assert moved.types.tolist() == [2, 0, 2]
    assert came_from.tolist() == [-1, -1, 2]


def test_moves_are_made_together_whatever_their_order() -> None:
    cut = StageList(np.array([0, 2, 4, 6]), np.array([0, 1, 2]))
    moved, came_from = apply(cut, [Move(1.0, 0, 1, [1], [0, 2]), Move(2.0, 2, 3, [], [1])])
    assert moved.bounds.tolist() == [0, 1, 2, 4, 6]
    assert moved.types.tolist() == [0, 2, 1, 1]
    assert came_from.tolist() == [-1, -1, 1, -1]


def test_of_moves_that_overlap_the_first_is_chosen() -> None:
    moves = [Move(3.0, 1, 3, [], [0]), Move(2.0, 2, 4, [], [0]), Move(1.0, 3, 4, [], [0])]
    assert apart(moves) == [moves[0], moves[2]]


# prices --------------------------------------------------------------------------------------------------------


def test_the_price_of_a_plan_is_what_its_units_cost() -> None:
    # at 2 s a batch: 4 s on the cpu take 2 units at 1, 9 s on the gpu 5 units at 3
    problem = plain_problem([[4.0, 9.0], [4.0, 9.0]], [1.0, 3.0])
    prices = StagePrices(segment_table(problem))
    cut = StageList(np.array([0, 1, 2]), np.array([0, 1]))
    work = 1 * 4 / 2 + 3 * 9 / 2
    assert prices.total(cut, Terms(2.0)) == pytest.approx(2 * 1 + 5 * 3 + WORK_WEIGHT * work)
    assert prices.total(cut, Terms(2.0, work_weight=1.0)) == pytest.approx(17 + work)
    assert prices.totals(cut, Terms(np.array([[2.0], [9.0]]), 0.0, 0.0)).tolist() == [17, 4]


def test_units_beyond_a_limit_and_stages_beyond_their_number_are_dear() -> None:
    problem = plain_problem([[4.0], [4.0]], [1.0], max_units=np.array([3]), max_stages=1)
    prices = StagePrices(segment_table(problem))
    within, paid_excess = prices.paid(one_stage(problem), Terms(4.0, work_weight=0.0))
    assert (within.tolist(), paid_excess.tolist()) == ([2], [0])
    _, excess = prices.paid(StageList(np.array([0, 1, 2]), np.array([0, 0])), Terms(2.0))
    assert excess.tolist() == [2]  # 4 units of 3, 2 stages of 1


def test_the_load_of_a_unit_beyond_the_time_is_dear() -> None:
    problem = plain_problem([[4.0], [2.0]], [1.0], objective="max-load")
    prices = StagePrices(segment_table(problem))
    assert prices.total(one_stage(problem), Terms(6.0)) == pytest.approx(WORK_WEIGHT)
    assert prices.total(one_stage(problem), Terms(4.0)) == pytest.approx(0.5 * prices.excess_price, rel=1e-3)


def test_seconds_have_a_price_where_latency_counts() -> None:
    problem = plain_problem([[4.0, 1.0]], [1.0, 9.0], objective="latency")
    prices = StagePrices(segment_table(problem))
    dearer = [prices.total(one_stage(problem, t), Terms(np.inf, 1.0)) for t in (0, 1)]
    faster = [prices.total(one_stage(problem, t), Terms(np.inf, 99.0)) for t in (0, 1)]
    assert dearer == [5, 10]
    assert faster == [1 + 4 * 99, 9 + 99]


# the polish ----------------------------------------------------------------------------------------------------


def test_a_layer_moves_to_where_it_is_cheapest() -> None:
    assert polished(plain_problem([[1.0, 9.0], [9.0, 1.0]], [1.0, 1.0]), 1.0) == "c|g"


def test_a_run_is_carved_out_of_a_stage() -> None:
    problem = plain_problem([[1.0, 9.0], [1.0, 9.0], [9.0, 1.0], [1.0, 9.0], [1.0, 9.0]], [1.0, 1.0])
    assert polished(problem, 1.0) == "cc|g|cc"


def test_a_run_whose_serial_part_blocks_is_divided() -> None:
    problem = plain_problem([[1.0]] * 3, [1.0], compute_parallel=np.zeros(1))
    assert polished(problem, 1.0) == "c|c|c"
    assert polished(problem, 3.0) == "ccc"


def test_stages_are_merged_where_a_unit_holds_them_all() -> None:
    problem = plain_problem([[1.0]] * 3, [1.0])
    assert polished(problem, 3.0, StageList(np.array([0, 1, 2, 3]), np.zeros(3, np.int64))) == "ccc"


def test_limits_on_units_push_a_stage_to_another_type() -> None:
    problem = plain_problem([[4.0, 4.0], [4.0, 4.0]], [1.0, 1.5], max_units=np.array([5, 9]))
    assert polished(problem, 1.0) in ("c|g", "g|c")


def test_the_number_of_stages_is_kept_within_its_bounds() -> None:
    chain = [[1.0, 9.0], [9.0, 1.0]] * 3
    assert polished(plain_problem(chain, [1.0, 1.0]), 1.0) == "c|g|c|g|c|g"
    assert polished(plain_problem(chain, [1.0, 1.0], max_stages=2), 1.0).count("|") <= 1
    assert polished(plain_problem([[1.0]] * 4, [1.0], min_stages=3), 4.0).count("|") == 2


@pytest.mark.parametrize("seed", range(4))
def test_a_polished_plan_is_never_dearer_and_polishing_it_again_changes_nothing(seed: int) -> None:
    problem = synthetic_problem(Recipe(seed=seed, layers=24, types=4, limited=seed % 2 == 1))
    prices, terms = StagePrices(segment_table(problem)), Terms(problem.batch / problem.min_throughput)
    polish, count = Polish(prices), len(prices.table.positions) - 1
    start = StageList(np.array([0, count // 2, count]), np.array([0, 1]))
    once = polish.descend(start, terms)
    assert prices.total(once, terms) < prices.total(start, terms)
    assert prices.total(polish.descend(once, terms), terms) == pytest.approx(prices.total(once, terms), rel=1e-6)


def test_without_time_the_plan_stays_as_it_is() -> None:
    problem = plain_problem([[1.0, 9.0], [9.0, 1.0]], [1.0, 1.0])
    start = one_stage(problem)
    polish = Polish(StagePrices(segment_table(problem)), Deadline.after(-1.0))
    assert polish.descend(start, Terms(1.0)) is start
