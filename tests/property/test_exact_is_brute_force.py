"""The exact search finds what brute force finds, and its bound is never above it."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import plain_value, small_problems

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.problem import Problem, SearchResult
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.brute import Brute
from heterps_compile.passes.placement.certificate import certify
from heterps_compile.passes.placement.exact import Exact
from heterps_compile.passes.placement.interval_search import IntervalSearch, per_million_samples
from heterps_compile.passes.placement.method import PlacementMethod
from heterps_compile.passes.placement.paths import Deadline


def solve(method: PlacementMethod, problem: Problem, time_limit_s: float | None = None) -> SearchResult | None:
    try:
        return method(problem, time_limit_s=time_limit_s)
    except InfeasibleError:
        return None


@settings(max_examples=250, deadline=None)
@given(small_problems(max_layers=6))
def test_exact_finds_the_optimum_and_proves_it(problem: Problem) -> None:
    best, exact = solve(Brute(), problem), solve(Exact(), problem)
    assert (exact is None) == (best is None)
    if exact is not None and best is not None:
        assert exact.value == pytest.approx(best.value, rel=1e-8)
        assert exact.value == pytest.approx(plain_value(problem, exact.placement), rel=1e-9)
        assert exact.bound == exact.value


@settings(max_examples=30, deadline=None)
@given(small_problems(units=3))
def test_exact_finds_the_optimum_of_eight_layers(problem: Problem) -> None:
    best, exact = solve(Brute(), problem), solve(Exact(), problem)
    assert (exact is None) == (best is None)
    if exact is not None and best is not None:
        assert exact.value == pytest.approx(best.value, rel=1e-8)
        assert exact.bound == exact.value
