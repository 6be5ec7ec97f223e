"""The optimum of a small problem, by brute force, and what the exact search must make of it."""

import pytest
from small_problems import plain_value

from heterps_compile.cost.problem import Problem, SearchResult
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import Deadline, TimeUpError
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.method import PlacementMethod
from heterps_compile.passes.placement.proof.effort import EFFORT, Effort
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.passes.placement.proof.time_search import CostSearch
from heterps_compile.passes.placement.simple_plans import seed_placements

ROUNDING = 1e-8


def solve(method: PlacementMethod, problem: Problem) -> SearchResult | None:
    try:
        return method(problem)
    except InfeasibleError:
        return None


def assert_same_optimum(problem: Problem, effort: Effort = EFFORT) -> None:
    best, exact = solve(Brute(), problem), solve(Exact(effort), problem)
    assert (exact is None) == (best is None)
    if exact is not None and best is not None:
        assert exact.value == pytest.approx(best.value, rel=ROUNDING)
        assert exact.value == pytest.approx(plain_value(problem, exact.placement), rel=ROUNDING)
        assert exact.bound == exact.value


def assert_found_without_interval_bounds(problem: Problem, effort: Effort) -> None:
    """Search with an effort, and again without interval bounds: both must end the same."""
    found = CostSearch(Chain(problem), Deadline.after(None), effort=effort)
    found.run()
    without = effort.without("interval bounds")
    plain = CostSearch(Chain(problem), Deadline.after(None), effort=without)
    plain.run()
    assert found.best == pytest.approx(plain.best, rel=ROUNDING)
    assert found.bound == pytest.approx(plain.bound, rel=ROUNDING)


class StepsDeadline(Deadline):
    """A deadline that comes after a number of checks instead of a time."""

    def __init__(self, checks: int) -> None:
        super().__init__(float("inf"))
        object.__setattr__(self, "left", iter(range(checks)))

    def check(self) -> None:
        if next(self.left, None) is None:  # type: ignore[attr-defined] # set above, past the frozen parent
            raise TimeUpError


def assert_bound_below_optimum(problem: Problem, checks: int, effort: Effort) -> None:
    """Stop the search after so many looks at the clock: what it has proven by then must hold."""
    best = solve(Brute(), problem)
    if best is None:
        return
    search = CostSearch(Chain(problem), StepsDeadline(checks), seed_placements(problem, None), effort=effort)
    search.run()
    assert search.bound <= best.value * (1 + ROUNDING)
