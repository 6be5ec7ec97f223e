"""How far stages reach, and the cheapest paths over the furthest segments, with the answers in sight."""

from dataclasses import replace

import numpy as np
from small_problems import plain_problem

from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.compiled_loops import compiled
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof import longest_segments
from heterps_compile.passes.placement.proof.interval_bound import IntervalBound
from heterps_compile.passes.placement.proof.longest_segments import LongestSegments, ReplicaRanges

SIX = plain_problem([[1.0]] * 6, [1.0])  # a second a layer, all of it divided by replicas


def entries(*least_to_most: tuple[int, int]) -> ReplicaRanges:
    """Return entries of type 0."""
    least, most = np.array(least_to_most).T
    return ReplicaRanges(np.zeros_like(least), least, most)


def ends(problem: Problem, units: int, batch_s: float) -> list[int]:
    return LongestSegments(Chain(problem)).ends(entries((units, units)), batch_s)[0].tolist()


def test_a_stage_reaches_as_many_layers_as_there_are_seconds() -> None:
    assert ends(SIX, 1, 2.0) == [2, 3, 4, 5, 6, 6]


def test_two_replicas_reach_twice_as_far_where_they_divide_everything() -> None:
    assert ends(SIX, 2, 2.0) == [4, 5, 6, 6, 6, 6]


def test_what_replicas_cannot_divide_shortens_the_second_stretch() -> None:
    halves = replace(SIX, compute_parallel=np.array([0.5]))  # two take 3/4 of the time of one
    assert ends(halves, 2, 3.0) == [4, 5, 6, 6, 6, 6]


def test_no_stage_reaches_over_a_layer_that_its_type_may_not_run() -> None:
    allowed = np.array([[True], [True], [False], [True], [True], [True]])
    assert ends(replace(SIX, allowed=allowed), 1, 9.0) == [2, 2, 2, 6, 6, 6]


def test_an_end_that_sends_too_much_is_stepped_back_from() -> None:
    sends = plain_problem([[1.0]] * 4, [1.0], edge_bytes=np.array([0.0, 0.0, 9.0]), seconds_per_byte=np.array([1.0]))
    assert ends(sends, 1, 3.0) == [2, 4, 4, 3]  # 9 s over position 3 do not fit into 3 s


def test_two_replicas_that_must_synchronise_reach_no_less_than_one_alone() -> None:
    synchronises = replace(SIX, sync_s=np.full((6, 1), 2.8))  # 1.4 s a layer for two, 1 s for one
    assert ends(synchronises, 2, 3.0) == [2, 3, 4, 5, 6, 6]
    one_and_two = LongestSegments(Chain(synchronises)).ends(entries((1, 1), (2, 2)), 3.0)
    assert one_and_two.tolist() == 2 * [[3, 4, 5, 6, 6, 6]]


def test_several_counts_together_synchronise_as_the_least_and_divide_as_the_most() -> None:
    synchronises = replace(SIX, sync_s=np.full((6, 1), 1.2))  # 0.6 s a layer for two, 0.8 for three, 0.9 for four
    own = LongestSegments(Chain(synchronises))
    assert own.ends(entries((2, 4)), 1.3)[0].tolist() == ends(synchronises, 2, 1.3) == [2, 3, 4, 5, 6, 6]
    assert own.ends(entries((3, 4)), 1.3)[0].tolist() == ends(synchronises, 3, 1.3) == [1, 2, 3, 4, 5, 6]


def test_a_time_a_little_shorter_begins_from_the_ends_before() -> None:
    chain, all_entries = Chain(SIX), entries((1, 1), (2, 2), (3, 3))
    own = LongestSegments(chain)
    own.ends(entries((1, 1), (3, 3)), 2.05)
    assert own.ends(all_entries, 2.0).tolist() == LongestSegments(chain).ends(all_entries, 2.0).tolist()


def prices(*of_entries: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(of_entries)


def table(*of_entries: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    return np.array(of_entries, np.int32)


def path(
    ends: np.ndarray[tuple[int, int], np.dtype[np.int32]], of_entries: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> list[tuple[int, int]]:
    """Return the entries and ends of the steps of the cheapest path."""
    to_go = compiled(longest_segments.to_go)(ends, of_entries)
    chosen, stops = compiled(longest_segments.cheapest)(ends, of_entries, to_go, 1e-12)
    return list(zip(chosen.tolist(), stops.tolist(), strict=True))


def test_the_cheapest_path_takes_the_dear_entry_where_it_saves_a_stage() -> None:
    short_and_far = table([1, 2, 3, 4], [3, 3, 4, 4])
    assert compiled(longest_segments.to_go)(short_and_far, prices(1.0, 2.5)).tolist() == [3.5, 3, 2, 1, 0]
    assert path(short_and_far, prices(1.0, 2.5)) == [(1, 3), (0, 4)]


def test_within_a_window_an_earlier_end_may_be_the_better_one() -> None:
    own = table([2, 4, 3, 4], [4, 4, 4, 4])
    assert compiled(longest_segments.to_go)(own, prices(1.0, 9.0)).tolist() == [
        2,
        1,
        2,
        1,
        0,
    ]  # from 2 no further than 3
    assert path(own, prices(1.0, 9.0)) == [(0, 1), (0, 4)]


def test_without_a_path_the_price_is_infinite() -> None:
    assert np.isinf(compiled(longest_segments.to_go)(table([1, 1, 3]), prices(1.0))[0])


def test_one_comes_to_a_position_for_what_one_comes_behind_it() -> None:
    own = table([2, 2, 4, 4], [3, 4, 4, 4])
    assert compiled(longest_segments.from_start)(own, prices(1.0, 1.5)).tolist() == [0, 1, 1, 1.5, 2]  # 0 - 2 - 4


def test_one_bound_closes_all_times_at_which_as_many_units_are_too_dear() -> None:
    interval = IntervalBound(Chain(SIX), Deadline.after(None))
    assert interval.least_price(1.9, 2.0, lambda: 5.5) == 3  # three units for 2 s cost 6; three for 1.9 s still 5.7


def test_the_bound_gives_the_plan_that_it_speaks_of_and_its_segments() -> None:
    found: list[Placement] = []
    interval = IntervalBound(Chain(SIX), Deadline.after(None), found.append)
    assert interval.least_price(2.0, 2.1, lambda: 6.5) == 3  # they cost 6.3 for 2.1 s, and 6.0 for 2 s
    assert found == [Placement((0,) * 6, (2, 4))]
    segments = interval.segments(2.0, 2.1, 6.5, 100)
    assert segments is not None
    assert {(0, 2), (2, 4), (4, 6)} <= set(zip(segments.first.tolist(), segments.end.tolist(), strict=True))
    assert interval.segments(2.0, 2.1, 6.5, 2) is None


def numbers(of: ReplicaRanges) -> list[tuple[int, int]]:
    return list(zip(of.least.tolist(), of.most.tolist(), strict=True))


def test_numbers_of_replicas_that_a_path_too_cheap_uses_as_one_become_entries_of_their_own() -> None:
    interval = IntervalBound(Chain(replace(SIX, max_units=np.array([40]))), Deadline.after(None))
    every = interval.entries(0.5, np.inf)
    assert numbers(every)[8] == (9, 11)
    assert interval._learned(entries((1, 1), (9, 11)))
    parted = numbers(every.singles(interval._are_exact(every)))
    assert parted == [*numbers(every)[:8], (9, 9), (10, 10), (11, 11), *numbers(every)[9:]]
    assert numbers(interval.entries(0.5, np.inf))[:11] == parted[:11]
    assert not interval._learned(entries((9, 9), (500, 2000)))  # too many to be told apart


def test_replicas_are_ruled_out_by_what_the_layer_that_divides_best_loses() -> None:
    fractions = np.array([[1.0], *[[0.5]] * 5])  # two replicas of the first layer lose nothing, of the others 0.67 s
    problem = replace(SIX, layer_compute_parallel=fractions, max_units=np.array([4]))
    assert numbers(IntervalBound(Chain(problem), Deadline.after(None)).entries(1.0, 6.5)) == [
        (k, k) for k in (1, 2, 3, 4)
    ]
    halves = replace(problem, layer_compute_parallel=np.full((6, 1), 0.5))
    assert numbers(IntervalBound(Chain(halves), Deadline.after(None)).entries(1.0, 6.5)) == [(1, 1)]


def test_of_large_numbers_of_replicas_only_those_a_path_uses_become_entries_of_their_own() -> None:
    interval = IntervalBound(Chain(SIX), Deadline.after(None))
    assert interval._learned(entries((500, 502)))
    every = entries((400, 499), (500, 501), (502, 502), (503, 600))
    assert numbers(every.singles(interval._are_exact(every))) == [
        (400, 499),
        (500, 500),
        (501, 501),
        (502, 502),
        (503, 600),
    ]
