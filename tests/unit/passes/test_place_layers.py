"""The pass that runs a method and has its plan certified."""

from dataclasses import replace

import numpy as np
import pytest
from drafts import DRAFT, posing
from reviewed import MODEL, POOL, REQUEST, graph, plan
from small_problems import plain_problem
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.errors import InfeasibleError, InputError, UnknownNameError
from heterps_compile.passes.drafts import Draft, Placed
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.place_layers import PlaceLayers, warm_stages, warm_start_of
from heterps_compile.passes.placement.baselines.fixed import CpuOnly
from heterps_compile.passes.placement.methods import find_method
from heterps_compile.passes.placement.proof.certificate import certify
from heterps_compile.plan.fingerprint import make_fingerprints
from heterps_compile.plan.placed_stages import placement_of
from heterps_compile.plan.planned_stage import PlannedStage

PROBLEM = plain_problem([[1.0, 9.0], [9.0, 1.0]], [1.0, 1.0])


def place(problem: Problem, pass_method: str, /, **request: object) -> SearchResult:
    draft = posing(problem)
    draft = replace(draft, request=replace(draft.request, **request))  # type: ignore[arg-type] # fields by name
    placed = PlaceLayers(pass_method)(draft)
    return placed.search


def test_the_method_of_the_request_runs_where_the_pass_names_none() -> None:
    assert place(PROBLEM, "", method="cpu-only").method == "cpu-only"
    assert place(PROBLEM, "gpu-only", method="cpu-only").method == "gpu-only"


def test_the_better_plan_of_the_proof_is_the_result_and_the_result_says_so() -> None:
    found = place(PROBLEM, "cpu-only")
    assert (found.placement.types, found.method, found.found_by, found.gap) == ((0, 1), "cpu-only", "proof", 0)
    assert found.notes == (
        "the plan was found by the exact search and is 80 % cheaper than the one that cpu-only found by itself",
    )


def test_the_better_plan_of_another_method_is_the_result() -> None:
    found = PlaceLayers("cpu-only", proof_s=0.0)
    problem = plain_problem([[9.0, 1.0]], [1.0, 1.0])
    placed = found(replace(posing(problem), baselines=("cpu-only", "gpu-only", "heuristic")))
    assert (placed.search.placement.types, placed.search.found_by) == ((1,), "gpu-only")
    assert [(row.method, row.value > placed.search.value) for row in placed.tried] == [
        ("cpu-only", True),
        ("gpu-only", False),
        ("heuristic", False),
    ]


class Forgetful:
    """A method that makes nothing of a warm start."""

    name = "forgetful"

    def __call__(self, problem: Problem, **_: object) -> SearchResult:
        return CpuOnly()(problem)


def test_an_old_plan_is_kept_by_a_method_that_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_compile.passes.place_layers.find_method", lambda _name: Forgetful())
    old = stages(("cpu", ("layer0",)), ("gpu", ("layer1",)))
    draft = replace(posing(PROBLEM), warm_start=old, request=replace(DRAFT.request, time_limit_s=1e-9))
    placed = PlaceLayers("forgetful")(draft)
    assert (placed.search.placement, placed.search.found_by) == (Placement((0, 1)), "warm start")


def test_the_best_plan_has_no_gap() -> None:
    found = place(PROBLEM, "exact")
    assert found.placement.types == (0, 1)
    assert found.gap == 0


def test_without_time_there_is_still_a_bound() -> None:
    found = place(PROBLEM, "cpu-only", time_limit_s=0.0)
    assert 0 < found.bound <= found.value


def test_what_nothing_can_meet_is_explained_whatever_the_method() -> None:
    problem = replace(PROBLEM, min_stages=3)
    for method in ("cpu-only", "greedy", "exact"):
        with pytest.raises(InfeasibleError, match=r"--min-stages 2\b"):
            place(problem, method)


def test_what_only_this_method_cannot_meet_is_told_and_the_proofs_plan_taken() -> None:
    problem = plain_problem([[9.0, 1.0]], [1.0, 1.0], max_units=np.array([1, 1]), min_throughput=3600.0)
    found = place(problem, "cpu-only")
    assert (found.placement.types, found.method, found.found_by, found.gap) == ((1,), "cpu-only", "proof", 0)
    assert "cpu-only found no feasible placement" in " ".join(found.notes)
    assert place(problem, "gpu-only").found_by == ""


def test_an_unknown_method_is_told_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'exact'"):
        place(PROBLEM, "exakt")


def test_a_certificate_never_weakens_a_bound_or_moves_a_plan_that_is_best() -> None:
    result = find_method("greedy")(PROBLEM)
    certified = certify(PROBLEM, replace(result, bound=result.value * 0.15), 0.0)
    assert certified.bound >= result.value * 0.15
    assert (certified.placement, certified.found_by) == (result.placement, "")
    proven = replace(result, bound=result.value)
    assert certify(PROBLEM, proven) is proven


def test_a_proof_that_is_out_of_time_claims_no_more_than_it_has_shown() -> None:
    problem = synthetic_problem(Recipe(seed=3, layers=40, types=4))
    optimum, result = find_method("exact")(problem).value, find_method("gpu-only")(problem)
    certified = certify(problem, replace(result, bound=0.0), 0.0)
    assert certified.bound <= optimum * (1 + 1e-9) < certified.value


def stages(*groups: tuple[str, tuple[str, ...]]) -> tuple[PlannedStage, ...]:
    return tuple(PlannedStage(i, device, layers) for i, (device, layers) in enumerate(groups))


def test_an_old_plan_is_where_the_search_begins() -> None:
    old = stages(("cpu", ("layer0",)), ("gpu", ("layer1",)))
    draft = replace(posing(PROBLEM), warm_start=old)
    placed = PlaceLayers("gpu-only")(draft)
    assert placed.search.placement == Placement((0, 1))


def test_the_cuts_of_an_old_plan_are_kept() -> None:
    three = plain_problem([[1.0], [1.0], [1.0]], [1.0])
    old = stages(("cpu", ("layer0", "layer1")), ("cpu", ("layer2",)))
    assert placement_of(three, warm_start_of(three, old)) == Placement((0, 0, 0), (2,))


def test_equal_layers_are_dealt_evenly_but_an_old_plan_that_is_as_good_stays_as_it_is() -> None:
    edges = {"edge_producer": np.arange(4), "edge_bytes": np.ones(4), "edge_readers": np.full(4, 4)}
    limits = {"edge_starts": np.arange(5), "min_stages": 3, "max_units": np.array([3])}
    equal = plain_problem([[1.0]] * 4 + [[5.0]], [1.0], **edges, **limits)
    names = equal.layer_names
    old = stages(("cpu", names[:1]), ("cpu", names[1:4]), ("cpu", names[4:]))
    draft = posing(equal)
    dealt, kept = (PlaceLayers("exact")(replace(draft, warm_start=start)).search for start in ((), old))
    assert dealt.placement.starts() == (0, 2, 4)
    assert (kept.placement.starts(), kept.found_by, kept.value) == ((0, 1, 4), "warm start", dealt.value)
    worse = stages(("cpu", names[:3]), ("cpu", names[3:4]), ("cpu", names[4:]))
    cut = plain_problem([[1.0]] * 4 + [[2.0]], [1.0], **edges, **limits)
    assert PlaceLayers("exact")(replace(draft, problem=cut, warm_start=worse)).search.placement.starts() == (0, 2, 3)


@pytest.mark.parametrize(
    ("old", "message"),
    [
        (stages(("cpu", ("layer0", "other"))), r"\b1\b.*\b2\b.*'layer1'"),
        (stages(("tpu", ("layer0", "layer1"))), "'tpu'.*'cpu'.*'gpu'"),
    ],
)
def test_a_plan_of_another_model_or_pool_is_no_start(old: tuple[PlannedStage, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        warm_start_of(PROBLEM, old)


def test_layers_of_an_old_plan_are_found_whatever_they_are_called_today() -> None:
    prints = make_fingerprints(DRAFT.layers)
    names = [layer.name for layer in DRAFT.layers.layers]
    old = stages(("cpu", (f"old {names[0]}",)), ("v100", tuple(f"old {name}" for name in names[1:])))
    draft = replace(DRAFT, warm_start=old, warm_fingerprints={f"old {name}": digest for name, digest in prints.items()})
    assert warm_stages(draft) == stages(("cpu", (names[0],)), ("v100", tuple(names[1:])))


def test_a_model_whose_nodes_were_renamed_keeps_its_start() -> None:
    old = plan()
    today = graph(MODEL.replace("fc1 :", "Gemm_1 :").replace("fc2 :", "fc1 :"))
    pool_and_request = {"cluster": POOL, "request": replace(REQUEST, method="cpu-only", pins=(), time_limit_s=1e-9)}
    draft = Draft(graph=today, **pool_and_request, warm_start=old.stages)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"\b1\b.*\b4\b.*'Gemm_1'"):
        run_to(draft, Placed)
    search = run_to(replace(draft, warm_fingerprints=old.fingerprints), Placed).search
    assert (search.placement.types, search.found_by) == ((0, 1, 1, 1), "warm start")
