"""Multipliers reach the linear relaxation of the limits, and a plan is found wherever there is one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum import solve
from scipy.optimize import linprog
from small_problems import small_problem

from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.effort import EFFORT
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.passes.placement.proof.interval_bound import IntervalBound
from heterps_compile.passes.placement.proof.lagrangian import Lagrangian
from heterps_compile.passes.placement.proof.paths import SegmentPrices
from heterps_compile.passes.placement.proof.trivial_bounds import longest_s

NEAR = 1e-3
UNLISTED = replace(EFFORT, ranges=replace(EFFORT.ranges, most_columns=0))
"""No programme looks for a first plan: the search for the fastest one has to find it."""


def relaxed_price(chain: Chain, slow_s: float) -> float:
    """Return the least price per hour of fractions of paths within the limits, by scipy; inf if there are none."""
    problem, segments = chain.problem, chain.all_segments()
    units = SegmentPrices.at(problem, slow_s).units(segments.demand)
    usable = np.flatnonzero(units <= problem.max_units[segments.type])
    first, end, type_, units = segments.first[usable], segments.end[usable], segments.type[usable], units[usable]
    column = np.arange(len(usable))
    flow = np.zeros((chain.length + 1, len(usable)))
    flow[first, column] += 1
    flow[end, column] -= 1
    used = np.zeros((problem.type_count, len(usable)))
    used[type_, column] = units
    begin = (np.arange(chain.length) == 0).astype(float)
    found = linprog(problem.price_per_hour[type_] * units, used, problem.max_units, flow[:-1], begin)
    return float(found.fun) if found.status == 0 else np.inf


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slow=st.floats(0.05, 1.0))
def test_bounds_are_the_linear_relaxation(seed: int, slow: float) -> None:
    problem = small_problem(seed, layers=12, types=3, units=5, structure=False, memory=False)
    problem = replace(problem, objective="cost", min_throughput=0.0)
    chain, slow_s = Chain(problem), longest_s(problem) * slow * slow
    expected = relaxed_price(chain, slow_s)
    own = Lagrangian(chain, Deadline.after(None), lambda _: None)
    found = own.raised(own.solve(None, slow_s, slow_s, own.none), None, lambda: np.inf, 100)
    interval = IntervalBound(chain, Deadline.after(None))
    interval._exact_units[:] = 5  # each number of replicas is an entry
    least = interval.least_price(slow_s, slow_s, lambda: np.inf)
    if np.isinf(expected):
        all_units = float(problem.price_per_hour @ problem.max_units)
        assert found.bound > all_units * slow_s
        assert least > all_units
    else:
        assert found.bound == pytest.approx(expected * slow_s, rel=NEAR)
        assert least == pytest.approx(expected, rel=NEAR)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), objective=st.sampled_from(["cost", "price"]))
def test_a_plan_is_found_wherever_there_is_one(seed: int, objective: str) -> None:
    problem = small_problem(seed, layers=6, types=3, units=3, memory=False)
    problem = replace(problem, objective=objective)
    assert (solve(Exact(UNLISTED), problem) is None) == (solve(Brute(), problem) is None)
