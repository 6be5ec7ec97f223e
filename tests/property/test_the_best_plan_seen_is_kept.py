"""The plan of a run is the best that any part of it evaluated, and the certificate is about that plan."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from drafts import DRAFT, posing
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import small_problems, small_problems_for
from small_workloads import workloads

from heterps_compile.cost import evaluate as evaluator
from heterps_compile.cost.evaluate import Evaluation, evaluate_one
from heterps_compile.cost.finders import finder
from heterps_compile.cost.problem import Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.max_load import split as splits
from heterps_compile.passes.max_load.solve import solve_max_load
from heterps_compile.passes.place_layers import PlaceLayers
from heterps_compile.passes.placement.baselines import bayes, brute, fixed, genetic, greedy
from heterps_compile.passes.placement.learned import reinforce, rl
from heterps_compile.passes.placement.local import archive
from heterps_compile.passes.placement.local.annealing import Annealing
from heterps_compile.passes.placement.methods import find_method
from heterps_compile.passes.placement.proof import exact, prove, time_search
from heterps_compile.plan.planned_stage import PlannedStage

ROUNDING = 1e-9
SHORT = {
    "genetic": genetic.Genetic(patience=3),
    "bayes": bayes.Bayes(trials=9),
    "rl": rl.Rl(rounds=2, samples=8, annealing=Annealing(changes=1_000, patience=1)),
}
QUICK = ("greedy", "genetic", "bayes", "cpu-only", "gpu-only", "heuristic", "exact", "brute")
SEARCHES = (
    archive, bayes, brute, exact, fixed, genetic, greedy, prove, reinforce, time_search
)  # fmt: skip


@contextmanager
def values_seen(posed: Problem) -> Iterator[list[float]]:
    """Collect every value of this problem that a search asks the evaluator for."""
    seen: list[float] = []

    def noting(problem: Problem, *arrays: object) -> Evaluation:
        found = evaluator.evaluate(problem, *arrays)  # type: ignore[arg-type] # handed on
        if problem is posed:  # not a part of it that a rule or a floor leaves
            seen.extend(found.values[np.isfinite(found.values)].tolist())
        return found

    with pytest.MonkeyPatch.context() as patch:
        for module in SEARCHES:
            if hasattr(module, "evaluate"):
                patch.setattr(module, "evaluate", noting)
        yield seen


def check(problem: Problem, method: str, baselines: tuple[str, ...], proof_s: float) -> None:
    half = problem.layer_count // 2
    groups = [names for names in (problem.layer_names[:half], problem.layer_names[half:]) if names]
    last = problem.type_names[-1]
    old = tuple(PlannedStage(i, last if i else problem.type_names[0], names) for i, names in enumerate(groups))
    request = replace(DRAFT.request, method=method)
    draft = replace(posing(problem), request=request, warm_start=old, baselines=baselines)
    with values_seen(problem) as seen, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "heterps_compile.passes.place_layers.find_method", lambda name: SHORT.get(name) or find_method(name)
        )
        # the problem's own memory is what counts here; what a schedule holds is test_within_memory.py's
        patch.setattr(
            "heterps_compile.passes.place_layers.place_within_memory",
            lambda place, posed, limit_s: place(posed, limit_s),
        )
        try:
            placed = PlaceLayers(method, proof_s)(draft)
        except InfeasibleError:
            assert not seen or proof_s == 0
            return
    found = placed.search
    assert found.value == pytest.approx(evaluate_one(problem, found.placement), rel=ROUNDING)
    told = [row.value for row in placed.tried]
    assert found.value <= min([*seen, *told], default=math.inf) * (1 + 2 * ROUNDING)
    assert found.bound <= found.value
    if found.value < placed.tried[0].value * (1 - 2 * ROUNDING):
        assert found.found_by in {"proof", "warm start", *baselines}
        assert f"found by {finder(found.found_by)}" in " ".join(found.notes) or "found no" in " ".join(found.notes)


@pytest.mark.parametrize("method", QUICK)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(data=st.data())
def test_nothing_that_was_evaluated_is_better_than_the_plan(method: str, data: st.DataObject) -> None:
    problem = data.draw(st.one_of(small_problems(6), small_problems_for("throughput"), small_problems_for("latency")))
    baselines = data.draw(st.sampled_from([(), ("greedy", "heuristic", "cpu-only")]))
    check(problem, method, baselines, data.draw(st.sampled_from([0.0, 20.0])))


@pytest.mark.slow  # trains a policy
@settings(max_examples=3, deadline=None, derandomize=True)
@given(problem=small_problems(6))
def test_nothing_that_a_policy_drew_is_better_than_the_plan(problem: Problem) -> None:
    check(problem, "rl", (), 20.0)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(workload=workloads())
def test_no_valid_split_that_was_offered_is_better_than_the_split(workload):
    offered: list[float] = []
    best_of = solve_max_load.__globals__["Best"]

    class Noting(best_of):
        def offer(self, assignment):
            if next(splits.faults(self.workload, assignment), None) is None:
                offered.append(max(splits.evaluate_split(self.workload, assignment)))
            super().offer(assignment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(solve_max_load.__globals__, "Best", Noting)
        try:
            found = solve_max_load(workload)
        except InfeasibleError:
            assert not offered
            return
    assert found.value_ms <= min(offered) * (1 + ROUNDING)
    assert found.bound_ms <= found.value_ms
