"""The optimum of a small problem, by brute force, and what the exact search must make of it."""

import pytest
from small_problems import plain_value

from heterps_compile.cost.problem import Problem, SearchResult
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.brute import Brute
from heterps_compile.passes.placement.exact import Exact
from heterps_compile.passes.placement.method import PlacementMethod

ROUNDING = 1e-8


def solve(method: PlacementMethod, problem: Problem) -> SearchResult | None:
    try:
        return method(problem)
    except InfeasibleError:
        return None


def assert_same_optimum(problem: Problem) -> None:
    best, exact = solve(Brute(), problem), solve(Exact(), problem)
    assert (exact is None) == (best is None)
    if exact is not None and best is not None:
        assert exact.value == pytest.approx(best.value, rel=ROUNDING)
        assert exact.value == pytest.approx(plain_value(problem, exact.placement), rel=ROUNDING)
        assert exact.bound == exact.value
