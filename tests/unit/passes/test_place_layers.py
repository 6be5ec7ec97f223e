"""The pass that runs a method and has its plan certified."""

from dataclasses import replace

import numpy as np
import pytest
from drafts import DRAFT
from small_problems import plain_problem

from heterps_compile.cost.problem import Problem, SearchResult
from heterps_compile.errors import InfeasibleError, UnknownNameError
from heterps_compile.passes.contract import Draft
from heterps_compile.passes.place_layers import PlaceLayers
from heterps_compile.passes.placement.certificate import certify
from heterps_compile.passes.placement.fixed import CpuOnly

PROBLEM = plain_problem([[1.0, 9.0], [9.0, 1.0]], [1.0, 1.0])


def place(problem: Problem, pass_method: str, /, **request: object) -> SearchResult:
    draft = replace(DRAFT, problem=problem, search=None)
    draft = replace(draft, request=replace(draft.request, **request))  # type: ignore[arg-type] # fields by name
    placed: Draft = PlaceLayers(pass_method)(draft)
    assert placed.search is not None
    return placed.search


def test_the_method_of_the_request_runs_where_the_pass_names_none() -> None:
    assert place(PROBLEM, "", method="cpu-only").method == "cpu-only"
    assert place(PROBLEM, "gpu-only", method="cpu-only").method == "gpu-only"


def test_a_plan_that_is_not_best_has_a_gap_and_a_note() -> None:
    found = place(PROBLEM, "cpu-only")
    assert found.placement.types == (0, 0)
    assert found.gap == pytest.approx(1 - 2 / 10)
    assert found.notes == ("the proof came upon a plan 80.00% cheaper; --method exact gives it",)


def test_the_best_plan_has_no_gap() -> None:
    found = place(PROBLEM, "exact")
    assert found.placement.types == (0, 1)
    assert found.gap == 0


def test_without_time_there_is_still_a_bound() -> None:
    found = place(PROBLEM, "cpu-only", time_limit_s=0.0)
    assert 0 < found.bound < found.value


def test_what_nothing_can_meet_is_explained_whatever_the_method() -> None:
    problem = replace(PROBLEM, min_stages=3)
    for method in ("cpu-only", "greedy", "exact"):
        with pytest.raises(InfeasibleError, match="ask for --min-stages 2 or fewer"):
            place(problem, method)


def test_what_only_this_method_cannot_meet_is_told_apart() -> None:
    problem = plain_problem([[9.0, 1.0]], [1.0, 1.0], max_units=np.array([1, 1]), min_throughput=3600.0)
    with pytest.raises(InfeasibleError, match="cpu-only found no feasible placement"):
        place(problem, "cpu-only")
    assert place(problem, "gpu-only").gap == 0


def test_an_unknown_method_is_told_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'exact'"):
        place(PROBLEM, "exakt")


def test_a_certificate_never_weakens_a_bound_or_moves_a_plan() -> None:
    result = CpuOnly()(PROBLEM)
    certified = certify(PROBLEM, replace(result, bound=result.value * 0.15), 0.0)
    assert certified.bound >= result.value * 0.15
    assert certified.placement == result.placement
    proven = replace(result, bound=result.value)
    assert certify(PROBLEM, proven) is proven
