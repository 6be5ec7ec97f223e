"""Interchangeable layers are dealt to the stages evenly, whatever plan of that worth the search came upon."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.evaluate import detail, evaluate_one
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.passes.placement.deal_alike import deal_alike


def tables(count: int, *, min_throughput: float = 1.0, **changes: Any) -> Problem:
    """So many equal embeddings feed a product that one GPU does in 4 s a batch, and one more product follows."""
    return plain_problem(
        [[1.0, 0.5]] * count + [[90.0, 3.0], [30.0, 1.0]],
        [0.04, 2.4],
        batch=8,
        **{
            "edge_producer": np.arange(count + 1),
            "edge_bytes": np.ones(count + 1),
            "edge_readers": np.array([count] * count + [count + 1]),
            "edge_starts": np.arange(count + 2),
            "seconds_per_byte": np.array([1e-3, 1e-3]),
            "compute_parallel": np.array([0.95, 0.95]),
            "max_units": np.array([100, 8]),
            "min_throughput": min_throughput,
        }
        | changes,
    )


def shares(placement: Placement) -> list[int]:
    return [end - begin for begin, end in pairwise((*placement.starts(), len(placement.types)))]


def staged(counts: list[int], types: list[int]) -> Placement:
    numbers = [stage for stage, count in enumerate(counts) for _ in range(count)]
    return Placement.of_stages(tuple(types[stage] for stage in numbers), numbers)


def dealt(problem: Problem, placement: Placement) -> Placement:
    value = evaluate_one(problem, placement)
    found = deal_alike(problem, SearchResult(placement, value, value, "drawn", 0, 1, 0.0))
    assert found.value == evaluate_one(problem, found.placement) == pytest.approx(value, rel=1e-11)
    assert found.bound <= found.value
    return found.placement


def test_stages_of_one_type_get_even_shares_the_larger_first():
    assert shares(dealt(tables(10), staged([2, 4, 4, 2], [0, 0, 0, 1]))) == [4, 3, 3, 2]
    assert shares(dealt(tables(10), staged([4, 4, 2, 2], [0, 0, 0, 1]))) == [4, 3, 3, 2]


def test_a_stage_of_other_layers_takes_of_them_what_makes_its_time_the_shortest():
    # the last product takes 6 s; with three embeddings the product before it takes 4.5 s, with two 4 s, as four do
    times = np.array([[1.0, 0.5]] * 6 + [[90.0, 3.0], [90.0, 6.0]])
    problem = tables(6, compute_s=times, max_units=np.array([1, 2]))
    assert shares(dealt(problem, staged([3, 4, 1], [0, 1, 1]))) == [4, 3, 1]


def test_a_plan_that_is_not_the_best_becomes_no_other_one():
    problem, worse = tables(6, min_throughput=0.5), staged([3, 5], [0, 1])
    assert evaluate_one(problem, staged([4, 4], [0, 1])) < evaluate_one(problem, worse)
    assert dealt(problem, worse) == worse


def test_a_cut_stays_where_another_place_is_worth_less():
    problem = tables(8, min_throughput=2.0)
    best = staged([4, 4, 2], [0, 0, 1])
    assert evaluate_one(problem, staged([5, 3, 2], [0, 0, 1])) > evaluate_one(problem, best)
    assert dealt(problem, best) == best


def test_layers_that_differ_stay_where_they_are():
    times = [[1.0 + i / 100, 0.5] for i in range(6)] + [[90.0, 3.0], [30.0, 1.0]]
    problem = tables(6, compute_s=np.array(times))
    placement = staged([1, 4, 3], [0, 0, 1])
    assert dealt(problem, placement) == placement


def worth_as_much(problem: Problem, placement: Placement, chance: random.Random) -> Placement:
    """Draw another placement of the same worth: slide a cut or swap two stages, and again."""
    worth = detail(problem, placement)
    for _ in range(40):
        counts, types = shares(placement), [placement.types[i] for i in placement.starts()]
        one = chance.randrange(len(counts) - 2)
        if chance.random() < 0.3:
            counts[one], counts[one + 1] = counts[one + 1], counts[one]
        elif counts[one] > 1:
            counts[one], counts[one + 1] = counts[one] - 1, counts[one + 1] + 1
        tried = staged(counts, types)
        found = detail(problem, tried)
        if (found.value, found.price_per_hour) == pytest.approx((worth.value, worth.price_per_hour), rel=1e-12):
            placement = tried
    return placement


@pytest.mark.parametrize(("count", "stages"), [(10, 5), (17, 4), (29, 4)])
def test_whatever_plan_of_one_worth_is_found_the_same_is_kept(count, stages):
    problem = tables(count)
    even = [count // (stages - 1)] * (stages - 2)
    first = staged([*even, count - sum(even), 2], [0] * (stages - 1) + [1])
    kept, seen = dealt(problem, first), set()
    for seed in range(4):
        other = worth_as_much(problem, first, random.Random(seed))  # noqa: S311 - no secret
        seen.add(other)
        assert dealt(problem, other) == kept, shares(other)
    assert len(seen) > 1
