"""Of the plans of one price per hour the fastest is taken."""

from dataclasses import replace

import numpy as np
from small_problems import letters, plain_problem

from heterps_compile.cost.evaluate import detail, evaluate, to_arrays
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.passes.placement.enumeration import every_placement
from heterps_compile.passes.placement.proof.fastest_at_price import LATE, fastest_at_price

# a cpu and a gpu meet the floor wherever the cut is; the stages are the most even after three layers
TIED = plain_problem(
    [[1.0, 0.25]] * 6, [1.0, 3.0], min_throughput=600.0, objective="price", min_stages=2, max_units=np.array([1, 1])
)


def found(problem: Problem, placement: Placement) -> SearchResult:
    value = detail(problem, placement).value
    return SearchResult(placement, value, value, "exact", 0, 1, 0.0, found_by="polish")


def test_a_cut_moves_to_where_the_slower_stage_is_the_fastest() -> None:
    begin = found(TIED, Placement((0, 1, 1, 1, 1, 1)))
    assert begin.value == 4.0
    result = fastest_at_price(TIED, found(TIED, Placement((0, 0, 0, 0, 0, 1))), 60.0)
    assert (letters(TIED, result.placement), result.value, result.found_by) in (
        ("c|ggggg", 4.0, "proof"),
        ("ggggg|c", 4.0, "proof"),
    )
    assert result.notes == ()
    throughputs = [
        evaluate(TIED, types, cuts).throughput[evaluate(TIED, types, cuts).values <= 4.0]
        for types, cuts in every_placement(TIED)
    ]
    assert detail(TIED, result.placement).throughput == max(np.concatenate(throughputs))


def test_a_plan_that_is_the_fastest_stays_and_one_without_time_says_so() -> None:
    best = found(TIED, Placement((0, 1, 1, 1, 1, 1)))
    assert fastest_at_price(TIED, best, 60.0).found_by == "polish"
    late = fastest_at_price(TIED, found(TIED, Placement((0, 0, 0, 0, 0, 1))), 0.0)
    assert (late.placement.types, late.notes) == ((0, 0, 0, 0, 0, 1), (LATE,))
    assert evaluate(replace(TIED, min_stages=1), *to_arrays([late.placement])).values[0] == 4.0
