"""Furthest segments bound all segments, and bounds over ranges of times lose no better plan."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from optimum import assert_bound_below_optimum, assert_found_without_interval_bounds, assert_same_optimum
from small_problems import on_machines, small_problem, small_problems

from heterps_compile.cost.problem import Problem
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.effort import Effort, IntervalEffort
from heterps_compile.passes.placement.proof.interval_bound import IntervalBound
from heterps_compile.passes.placement.proof.longest_segments import LongestSegments, ReplicaRanges
from heterps_compile.passes.placement.proof.paths import ListedSegments, SegmentPrices, StageCounts
from heterps_compile.passes.placement.proof.trivial_bounds import longest_s

ROUNDING = 1e-8


def entries_up_to(type_: int, units: int) -> ReplicaRanges:
    counts = np.arange(1, units + 1)
    return ReplicaRanges(np.full(units, type_), counts, counts)


# the shortest chains too, with lists of segments and without any
BOUNDED = Effort(interval=IntervalEffort(least_positions=1, least_skipping=1))
UNLISTED = Effort(interval=IntervalEffort(least_positions=1, least_skipping=1, most_listed=-1, point=1e-3))


@pytest.mark.slow  # more of the same kind on larger problems
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slow=st.floats(0.02, 1.0), units=st.sampled_from([1, 2, 3, 7]))
@example(seed=8, slow=0.25, units=2)  # where synchronising takes long, one replica reaches further than two
@example(seed=154, slow=0.25, units=2)
def test_no_segment_ends_behind_the_furthest(seed: int, slow: float, units: int) -> None:
    problem = small_problem(seed, layers=17, types=3, units=40)
    chain = Chain(problem)
    reach, segments = LongestSegments(chain), chain.all_segments()
    slow_s = longest_s(problem) * slow * slow
    fits = segments.keep(segments.demand.units(slow_s) <= units)
    for type_ in range(3):
        of_type = fits.keep(fits.type == type_)
        assert np.all(of_type.end <= reach.ends(entries_up_to(type_, units), slow_s)[-1][of_type.first])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slow=st.floats(0.02, 1.0), units=st.sampled_from([1, 2, 3, 7]))
def test_where_values_pass_to_the_next_layer_alone_the_furthest_segment_fits(
    seed: int, slow: float, units: int
) -> None:
    problem = small_problem(seed, layers=17, types=3, units=40, structure=False, memory=False)
    chain = Chain(problem)
    segments, slow_s = chain.all_segments(), longest_s(problem) * slow * slow
    fits = segments.keep(segments.demand.units(slow_s * (1 + ROUNDING)) <= units)
    found = set(zip(fits.first.tolist(), fits.end.tolist(), fits.type.tolist(), strict=True))
    for type_ in range(3):
        for first, end in enumerate(LongestSegments(chain).ends(entries_up_to(type_, units), slow_s)[-1].tolist()):
            assert end == first or (first, end, type_) in found


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slow=st.floats(0.02, 1.0), ratio=st.sampled_from([0.95, 0.99, 1.0, 1.2]))
def test_ends_are_the_same_from_the_ends_of_another_time_and_from_none(seed: int, slow: float, ratio: float) -> None:
    chain = Chain(small_problem(seed, layers=30, types=2, units=40))
    marched = LongestSegments(chain)
    for power in range(3):
        slow_s = longest_s(chain.problem) * slow * slow * ratio**power
        every = ReplicaRanges(np.array([0, 0, 0, 1]), np.array([1, 2, 4, 2]), np.array([1, 3, 4, 2]))
        assert marched.ends(every, slow_s).tolist() == LongestSegments(chain).ends(every, slow_s).tolist()


def cheapest_units(chain: Chain, slow_s: float) -> float:
    """Return the least price per hour of the units of a plan that takes no longer, over all segments."""
    problem = chain.problem
    prices = SegmentPrices.at(problem, slow_s)
    listed = ListedSegments(chain.all_segments(), prices, chain.length, Deadline.after(None))
    return float(listed.to_go(StageCounts.at_least(1))[0, 0]) / slow_s


def bound(own: IntervalBound, entries: ReplicaRanges, slow_s: float) -> float:
    """Return the interval bound on the same."""
    return float(own.longest.to_go(own.longest.ends(entries, slow_s), own.prices(entries))[0])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slow=st.floats(0.05, 1.0), layers=st.integers(1, 24))
def test_where_values_pass_to_the_next_layer_alone_the_bound_is_the_price_of_a_plan(
    seed: int, slow: float, layers: int
) -> None:
    chain = Chain(small_problem(seed, layers=layers, types=3, units=15, structure=False, memory=False))
    own, slow_s = IntervalBound(chain, Deadline.after(None)), longest_s(chain.problem) * slow * slow
    own._exact_units[:] = 15
    entries = own.entries(slow_s, np.inf)  # each number of replicas is an entry of its own
    ends = own.longest.ends(entries, slow_s)
    to_go, cheapest = own.longest.to_go(ends, own.prices(entries)), cheapest_units(chain, slow_s)
    assert to_go[0] <= cheapest * (1 + ROUNDING)
    assert to_go[0] >= cheapest_units(chain, slow_s * (1 + ROUNDING)) * (1 - ROUNDING)
    if np.isfinite(cheapest):
        steps = list(
            zip(*(column.tolist() for column in own.longest.path(ends, own.prices(entries), to_go)), strict=True)
        )
        assert own.prices(entries)[[e for _, _, e in steps]].sum() == pytest.approx(to_go[0])
        assert [first for first, _, _ in steps] == [0, *(end for _, end, _ in steps[:-1])]
        assert all(end <= ends[e][first] for first, end, e in steps)
        assert steps[-1][1] == layers
        for first, end, e in steps:  # every step fits into the time
            segment = chain.segments_at(np.array([first]), np.array([end]), entries.type[[e]])
            assert segment.demand.units(slow_s * (1 + ROUNDING)) <= entries.most[e]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slow=st.floats(0.05, 1.0), ratio=st.sampled_from([0.85, 0.9999, 1.0]))
@example(seed=510521158, slow=0.125, ratio=0.85)
def test_no_plan_has_cheaper_units_than_the_paths_over_furthest_segments(seed: int, slow: float, ratio: float) -> None:
    chain = Chain(small_problem(seed, layers=14, types=3, units=60))
    slow_s = longest_s(chain.problem) * slow * slow
    cheapest, own = cheapest_units(chain, slow_s), IntervalBound(chain, Deadline.after(None))
    # all numbers of replicas, and those that may matter to a plan below a ceiling, as the cheapest one is
    for ceiling in (np.inf, 1.001 * cheapest * slow_s):
        assert bound(own, own.entries(slow_s * ratio, ceiling), slow_s) <= cheapest * (1 + ROUNDING)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slow=st.floats(0.05, 1.0), structure=st.booleans())
def test_units_that_share_machines_make_no_plan_cheaper_than_the_bound(seed: int, slow: float, structure: bool) -> None:
    problem = on_machines(small_problem(seed, layers=14, types=3, units=60, structure=structure), seed)
    chain = Chain(problem)
    slow_s = longest_s(problem) * slow * slow
    cheapest, own = cheapest_units(chain, slow_s), IntervalBound(chain, Deadline.after(None))
    for ceiling in (np.inf, 1.001 * cheapest * slow_s):
        assert bound(own, own.entries(slow_s, ceiling), slow_s) <= cheapest * (1 + ROUNDING)
    own._exact_units[:] = 60  # each number of replicas is an entry of its own
    assert bound(own, own.entries(slow_s, np.inf), slow_s) <= cheapest * (1 + ROUNDING)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slow=st.floats(0.05, 1.0), spare=st.sampled_from([1.0001, 1.01, 1.1]))
def test_entries_that_are_left_out_are_on_no_plan_below_the_ceiling(seed: int, slow: float, spare: float) -> None:
    chain = Chain(small_problem(seed, layers=14, types=3, units=60))
    slow_s = longest_s(chain.problem) * slow * slow
    fast_s, own = 0.9 * slow_s, IntervalBound(chain, Deadline.after(None))
    plans = {time_s: cheapest_units(chain, time_s) for time_s in np.linspace(slow_s, fast_s, 5).tolist()}
    ceiling = spare * min(time_s * price for time_s, price in plans.items())
    if np.isinf(ceiling):
        return
    entries = own.entries(fast_s, ceiling)
    for time_s, price in plans.items():
        if time_s * price < ceiling:
            assert bound(own, entries, time_s) <= price * (1 + ROUNDING)


@settings(max_examples=40, deadline=None)
@given(
    problem=small_problems(max_layers=6) | small_problems(max_layers=5, units=3),
    effort=st.sampled_from([BOUNDED, UNLISTED]),
)
def test_interval_bounds_leave_the_optimum(problem: Problem, effort: Effort) -> None:
    assert_same_optimum(problem, effort)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), structure=st.booleans())
def test_interval_bounds_find_what_the_search_finds_without_them(seed: int, structure: bool) -> None:
    problem = small_problem(seed, layers=14, types=3, units=60, structure=structure, memory=False)
    assert_found_without_interval_bounds(problem, BOUNDED)


@settings(max_examples=40, deadline=None)
@given(problem=small_problems(max_layers=6, units=8), checks=st.integers(0, 40))
def test_wherever_the_search_stops_its_bound_is_below_the_optimum(problem: Problem, checks: int) -> None:
    assert_bound_below_optimum(problem, checks, BOUNDED)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_listed_segments_hold_every_plan_below_the_ceiling(seed: int) -> None:
    problem = small_problem(seed, layers=10, types=3, units=60)
    chain = Chain(problem)
    every, slow_s = chain.all_segments(), longest_s(problem) / 4
    fast_s = 0.97 * slow_s
    counts = StageCounts.at_least(1)
    prices = SegmentPrices.at(problem, slow_s)
    graph = ListedSegments(every, prices, chain.length, Deadline.after(None))
    to_go = graph.to_go(counts)
    if np.isinf(to_go[0, 0]):
        return
    ceiling = 1.05 * float(to_go[0, 0])
    needed = graph.keep_below(counts, to_go, ceiling / fast_s * slow_s, 10**9)
    own = IntervalBound(chain, Deadline.after(None))
    listed = own.segments(fast_s, slow_s, ceiling, 10**9)
    assert needed is not None
    assert listed is not None
    keys = [set(zip(s.first.tolist(), s.end.tolist(), s.type.tolist(), strict=True)) for s in (needed, listed)]
    assert keys[0] <= keys[1]
