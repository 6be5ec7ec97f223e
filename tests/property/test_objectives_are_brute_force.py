"""For every objective the exact search finds what brute force finds, and proves it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum import ROUNDING, assert_same_optimum, solve
from small_problems import small_problems_for

from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.baselines.greedy import Greedy
from heterps_compile.passes.placement.proof.certificate import certify
from heterps_compile.passes.placement.proof.effort import Effort, RangeEffort
from heterps_compile.passes.placement.proof.exact import Exact

OBJECTIVES = ["price", "throughput", "latency", "max-load"]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("units", [2, 6])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_exact_finds_the_optimum_and_proves_it(objective: str, units: int, data: st.DataObject) -> None:
    problem = data.draw(small_problems_for(objective, max_layers=5, units=units))
    assert_same_optimum(problem)


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=15, deadline=None)
@given(data=st.data(), most=st.sampled_from([0, 20]))
def test_a_bound_without_programmes_is_below_the_optimum(objective: str, data: st.DataObject, most: int) -> None:
    problem = data.draw(small_problems_for(objective, max_layers=5, units=2))
    effort = Effort(ranges=RangeEffort(most_listed=most, most_columns=0))
    best, found = solve(Brute(), problem), solve(Exact(effort), problem)
    if best is not None and found is not None:
        assert found.bound <= best.value * (1 + ROUNDING)
        assert found.value >= best.value * (1 - ROUNDING)


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_certificate_is_below_the_optimum(objective: str, data: st.DataObject) -> None:
    problem = data.draw(small_problems_for(objective, max_layers=5))
    best, found = solve(Brute(), problem), solve(Greedy(), problem)
    if best is not None and found is not None:
        certified = certify(problem, found)
        assert certified.value == pytest.approx(best.value, rel=ROUNDING)
        assert (certified.placement == found.placement) == (certified.found_by == "")
        assert certified.bound == pytest.approx(best.value, rel=ROUNDING)
        assert certified.bound <= best.value * (1 + ROUNDING)
