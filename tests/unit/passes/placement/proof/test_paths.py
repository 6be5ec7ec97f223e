"""Cheapest paths over segments, with the answers in sight."""

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.problem import Problem
from heterps_compile.passes.deadline import Deadline, TimeUpError
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.paths import ListedSegments, SegmentPrices, StageCounts, cheapest_path

# layers 1 and 3 are cheap on type 0, layer 2 on type 1; a batch takes 9 s, so that one unit is enough anywhere
PROBLEM = plain_problem([[1.0, 4.0], [4.0, 1.0], [1.0, 4.0]], [1.0, 1.0])


def graph(problem: Problem = PROBLEM, slow_s: float = 9.0, fast_s: float = 0.0) -> ListedSegments:
    chain = Chain(problem)
    prices = SegmentPrices(problem, slow_s, fast_s, np.zeros(2))
    return ListedSegments(chain.all_segments(), prices, chain.length, Deadline.after(None))


def test_the_cheapest_path_changes_type_where_that_is_free() -> None:
    listed, counts = graph(), StageCounts.at_least(1)
    to_go = listed.to_go(counts)
    assert to_go[:, 0].tolist() == [3, 2, 1, 0]
    assert cheapest_path(listed, counts, to_go).type.tolist() == [0, 1, 0]


def test_a_unit_costs_as_long_as_a_batch_takes() -> None:
    assert graph(fast_s=9.0).to_go(StageCounts.at_least(1))[0, 0] == 9  # one stage, one unit, 9 s


def test_two_stages_at_most_cost_more_than_three() -> None:
    assert graph().to_go(StageCounts.between(1, 2))[0, 0] == 6


def test_segments_on_dear_paths_are_dropped() -> None:
    listed, counts = graph(), StageCounts.at_least(1)
    kept = listed.keep_below(counts, listed.to_go(counts), 3.5, 99)
    assert kept is not None
    assert list(zip(kept.first, kept.end, kept.type, strict=True)) == [(0, 1, 0), (1, 2, 1), (2, 3, 0)]
    assert listed.keep_below(counts, listed.to_go(counts), 3.5, 2) is None


def test_no_time_left_is_an_exception() -> None:
    with pytest.raises(TimeUpError):
        Deadline.after(-1.0).check()
