"""How far stages reach, and the cheapest paths over the furthest segments, with the answers in sight."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.problem import Placement
from heterps_compile.passes.placement.chain import Chain
from heterps_compile.passes.placement.march import Entry, March, TimeRange, _mirrored
from heterps_compile.passes.placement.paths import Deadline
from heterps_compile.passes.placement.reach import Reach
from heterps_compile.passes.placement.reach_paths import ReachPaths

SIX = plain_problem([[1.0]] * 6, [1.0])  # a second a layer, all of it divided by replicas


def test_a_stage_reaches_as_many_layers_as_there_are_seconds() -> None:
    assert Reach(Chain(SIX)).ends(0, 1, 2.0).tolist() == [2, 3, 4, 5, 6, 6]


def test_two_replicas_reach_twice_as_far_where_they_divide_everything() -> None:
    assert Reach(Chain(SIX)).ends(0, 2, 2.0).tolist() == [4, 5, 6, 6, 6, 6]


def test_what_replicas_cannot_divide_shortens_the_second_stretch() -> None:
    halves = replace(SIX, compute_parallel=np.array([0.5]))  # two take 3/4 of the time of one
    assert Reach(Chain(halves)).ends(0, 2, 3.0).tolist() == [4, 5, 6, 6, 6, 6]


def test_no_stage_reaches_over_a_layer_that_its_type_may_not_run() -> None:
    allowed = np.array([[True], [True], [False], [True], [True], [True]])
    assert Reach(Chain(replace(SIX, allowed=allowed))).ends(0, 1, 9.0).tolist() == [2, 2, 2, 6, 6, 6]


def test_an_end_that_sends_too_much_is_stepped_back_from() -> None:
    sends = plain_problem([[1.0]] * 4, [1.0], edge_bytes=np.array([0.0, 0.0, 9.0]), seconds_per_byte=np.array([1.0]))
    reach = Reach(Chain(sends))
    assert reach.ends(0, 1, 3.0).tolist() == [2, 4, 4, 3]  # 9 s over position 3 do not fit into 3 s


def test_the_cheapest_path_takes_the_dear_entry_where_it_saves_a_stage() -> None:
    short, far = np.array([1, 2, 3, 4]), np.array([3, 3, 4, 4])
    paths = ReachPaths([short, far], np.array([1.0, 2.5]))
    assert paths.to_go.tolist() == [3.5, 3, 2, 1, 0]
    assert paths.path() == [(0, 3, 1), (3, 4, 0)]


def test_within_a_window_an_earlier_end_may_be_the_better_one() -> None:
    paths = ReachPaths([np.array([2, 4, 3, 4]), np.array([4, 4, 4, 4])], np.array([1.0, 9.0]))
    assert paths.to_go.tolist() == [2, 1, 2, 1, 0]  # from 2 the first entry gets no further than 3
    assert paths.path() == [(0, 1, 0), (1, 4, 0)]


def test_without_a_path_the_price_is_infinite() -> None:
    assert np.isinf(ReachPaths([np.array([1, 1, 3])], np.array([1.0])).to_go[0])


def test_mirrored_ends_tell_where_the_stages_that_come_so_far_begin() -> None:
    ends = np.array([2, 2, 4, 4])  # 2 is reached from 0 on, 4 from 2 on; seen from the end: 0 -> 2, 2 -> 4
    assert _mirrored(ends).tolist() == [2, 2, 4, 4]
    assert _mirrored(np.array([1, 3, 4, 4])).tolist() == [2, 3, 3, 4]


def test_one_bound_closes_all_times_at_which_as_many_units_are_too_dear() -> None:
    chain = Chain(SIX)
    march = March(chain, [TimeRange(0.0, 2.0, 1.9)], Deadline.after(None))
    march.step(lambda: 5.5, lambda _: None)  # three units for 2 s cost 6; three for 1.9 s still 5.7
    assert march.open == []


def test_the_march_comes_upon_the_plan_that_its_bound_speaks_of() -> None:
    found: list[Placement] = []
    march = March(Chain(SIX), [TimeRange(0.0, 2.1, 2.0)], Deadline.after(None))
    march.step(lambda: 6.5, found.append)  # three units cost 6.3 for 2.1 s, and 6.0 for 2 s
    assert found == [Placement((0,) * 6, (2, 4))]
    (range_, segments), *_ = march.left  # a short range below 2.1 s, with the segments of such plans
    assert range_.bound == pytest.approx(range_.fast_s * 3)
    assert segments is not None
    assert {(0, 2), (2, 4), (4, 6)} <= set(zip(segments.first.tolist(), segments.end.tolist(), strict=True))


@pytest.mark.parametrize(("entry", "halves"), [(Entry(0, 4, 7), ["4-5", "6-7"]), (Entry(0, 4, 5), ["4-4", "5-5"])])
def test_numbers_of_replicas_are_parted_in_the_middle(entry: Entry, halves: list[str]) -> None:
    assert [f"{half.least}-{half.most}" for half in entry.halves()] == halves


def test_numbers_of_replicas_that_a_path_too_cheap_uses_as_one_become_entries_of_their_own() -> None:
    march = March(Chain(replace(SIX, max_units=np.array([40]))), [], Deadline.after(None))
    entries = march._entries(0.5, np.inf)
    wide = next(entry for entry in entries if entry.least == 9)
    assert wide.most == 11
    assert march._learned([Entry(0, 1, 1), wide])
    assert march._parted(entries) == (*entries[:8], Entry(0, 9, 9), Entry(0, 10, 10), Entry(0, 11, 11), *entries[9:])
    assert march._entries(0.5, np.inf)[:11] == march._parted(entries)[:11]
    assert not march._learned([Entry(0, 9, 9), Entry(0, 500, 600)])
