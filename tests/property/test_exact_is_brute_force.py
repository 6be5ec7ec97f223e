"""The exact search finds what brute force finds, and no bound of it is ever above that, however early it stops."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from optimum import ROUNDING, StepsDeadline, assert_same_optimum, solve
from small_problems import on_machines, small_problems

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.problem import Problem
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.baselines.fixed import CpuOnly
from heterps_compile.passes.placement.baselines.greedy import Greedy
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.method import PlacementMethod
from heterps_compile.passes.placement.proof.certificate import certify
from heterps_compile.passes.placement.proof.effort import Effort, RangeEffort
from heterps_compile.passes.placement.proof.time_search import CostSearch


@settings(max_examples=60, deadline=None)
@given(small_problems(max_layers=6))
def test_exact_finds_the_optimum_and_proves_it(problem: Problem) -> None:
    assert_same_optimum(problem)


@settings(max_examples=60, deadline=None)
@given(small_problems(max_layers=6, units=2))
def test_exact_finds_the_optimum_where_stages_compete_for_units(problem: Problem) -> None:
    assert_same_optimum(problem)


@settings(max_examples=30, deadline=None)
@given(small_problems(max_layers=6, units=9), st.integers(0, 2**32 - 1))
def test_exact_finds_the_optimum_where_units_share_machines(problem: Problem, machines: int) -> None:
    assert_same_optimum(on_machines(problem, machines))


@settings(max_examples=30, deadline=None)
@given(small_problems(max_layers=8, units=4))
def test_exact_finds_the_optimum_of_eight_layers(problem: Problem) -> None:
    assert_same_optimum(problem)


@pytest.mark.slow  # more of the same kind on larger problems
@settings(max_examples=100, deadline=None)
@given(problem=small_problems(max_layers=6, units=3))
@pytest.mark.parametrize("most_listed", [0, 20])
def test_the_optimum_does_not_depend_on_how_segments_are_kept(most_listed: int, problem: Problem) -> None:
    effort = Effort(ranges=RangeEffort(most_listed=most_listed))
    search = CostSearch(Chain(problem), Deadline.after(5), effort=effort)
    search.run()
    best = solve(Brute(), problem)
    if best is not None:
        assert search.bound <= best.value * (1 + ROUNDING)


@settings(max_examples=60, deadline=None)
@given(small_problems(max_layers=6, units=4), st.integers(0, 25))
def test_wherever_the_search_stops_its_bound_is_below_the_optimum(problem: Problem, checks: int) -> None:
    best = solve(Brute(), problem)
    assume(best is not None)
    assert best is not None
    search = CostSearch(Chain(problem), StepsDeadline(checks))
    search.run()
    assert search.bound <= best.value * (1 + ROUNDING)
    assert search.best >= best.value * (1 - ROUNDING)


@settings(max_examples=40, deadline=None)
@given(small_problems(max_layers=6), st.sampled_from([Greedy(), CpuOnly()]), st.sampled_from([0.0, None]))
def test_a_certificate_is_below_the_optimum(problem: Problem, method: PlacementMethod, limit_s: float | None) -> None:
    best, found = solve(Brute(), problem), solve(method, problem)
    assume(best is not None and found is not None)
    assert best is not None
    assert found is not None
    certified = certify(problem, found, limit_s)
    assert certified.value <= found.value
    assert certified.value == evaluate_one(problem, certified.placement)
    assert certified.bound <= best.value * (1 + ROUNDING)
    if limit_s is None:
        assert certified.bound == pytest.approx(best.value, rel=ROUNDING)
        assert certified.value == pytest.approx(best.value, rel=ROUNDING)
