"""For every objective the exact search finds what brute force finds, and proves it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import plain_value, small_problems_for

from heterps_compile.cost.problem import Problem, SearchResult
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.brute import Brute
from heterps_compile.passes.placement.certificate import certify
from heterps_compile.passes.placement.exact import Exact
from heterps_compile.passes.placement.greedy import Greedy
from heterps_compile.passes.placement.method import PlacementMethod

ROUNDING = 1e-8
OBJECTIVES = ["throughput", "latency", "max-load"]


def solve(method: PlacementMethod, problem: Problem) -> SearchResult | None:
    try:
        return method(problem)
    except InfeasibleError:
        return None


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("units", [2, 6])
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_exact_finds_the_optimum_and_proves_it(objective: str, units: int, data: st.DataObject) -> None:
    problem = data.draw(small_problems_for(objective, max_layers=5, units=units))
    best, exact = solve(Brute(), problem), solve(Exact(), problem)
    assert (exact is None) == (best is None)
    if exact is not None and best is not None:
        assert exact.value == pytest.approx(best.value, rel=ROUNDING)
        assert exact.value == pytest.approx(plain_value(problem, exact.placement), rel=ROUNDING)
        assert exact.bound == exact.value


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_certificate_is_below_the_optimum(objective: str, data: st.DataObject) -> None:
    problem = data.draw(small_problems_for(objective, max_layers=5))
    best, found = solve(Brute(), problem), solve(Greedy(), problem)
    if best is not None and found is not None:
        certified = certify(problem, found)
        assert certified.placement == found.placement
        assert certified.bound == pytest.approx(best.value, rel=ROUNDING)
        assert certified.bound <= best.value * (1 + ROUNDING)
