"""Why a layer stands where it does, and why there is no plan at all."""

import json
from dataclasses import replace
from functools import cache
from io import StringIO
from typing import Any

import pytest
from reviewed import CPU, GPU, MODEL, POOL, REQUEST, graph, plan

from heterps_compile.console import make_console
from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.problem import Placement
from heterps_compile.errors import InputError, StalePlanError, UnknownNameError
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.request import Request
from heterps_compile.review.explain import Explanation, explain_layer
from heterps_compile.review.explain_words import explanation_document, print_explanation
from heterps_compile.review.infeasible import why_infeasible
from heterps_compile.review.pose import pose_again

PLAN = plan()


def explain(layer: str, committed: Plan = PLAN, text: str = MODEL, **options) -> Explanation:
    allow_stale = options.pop("allow_stale", False)
    given: dict[str, Any] = {"cluster": POOL} | options
    posed = pose_again(graph(text), committed, **given)
    return explain_layer(posed, layer, allow_stale=allow_stale)


@cache
def told(layer: str) -> Explanation:
    return explain(layer)


def test_every_type_has_its_cost_and_the_value_of_the_plan_with_the_layer_there():
    found = told("fc2")
    problem = pose_again(graph(), PLAN, cluster=POOL).problem
    values = [evaluate_one(problem, Placement((0, 1, type_, 1))) for type_ in range(2)]
    assert [choice.value for choice in found.choices] == values
    assert [choice.compute_s for choice in found.choices] == list(problem.compute_s[2])
    assert [(c.device, c.is_chosen) for c in found.choices] == [("cpu", False), ("gpu", True)]
    assert found.value == values[1] == pytest.approx(PLAN.value)
    assert (found.stage, found.device, found.kind) == (1, "gpu", "gemm")


def test_the_reason_is_what_moving_it_alone_would_do():
    found = told("fc2")
    problem = pose_again(graph(), PLAN, cluster=POOL).problem
    worse, later = (
        found.choices[0].value / PLAN.value - 1,
        evaluate_one(problem, Placement((0, 0, 1, 1))) / PLAN.value - 1,
    )
    assert found.reason == (
        f"alone on 'cpu', the next best, it would make the plan {100 * worse:,.0f} % worse; of the other moves the "
        f"best, stage 1 begins 1 layer later, would make it {100 * later:.0f} % worse"
    )


def test_a_pinned_layer_is_said_to_be_held():
    found = told("emb")
    assert found.choices[1].fault == "a pin, a forbidden pair, or what the type supports, keeps the layer from it"
    assert "the layer may stand on 'cpu' alone (pins, forbidden pairs, what types support)" in found.binding
    assert found.reason.startswith(
        "'cpu' is the only type it can stand on while all other layers stay where they are; of "
    )


def test_the_slowest_stage_is_said_to_set_the_throughput():
    found = {name: " ".join(told(name).binding) for name in ("emb", "fc2")}
    assert [("it sets the throughput" in told) for told in found.values()].count(True) == 1


def test_limits_that_bind_are_named():
    few = replace(POOL, device_types=(CPU, replace(GPU, max_units=1)))
    tight = plan(replace(REQUEST, max_stages=2), few)
    binding = explain("fc2", tight, cluster=few).binding
    assert "the pool has 1 unit of 'gpu', and all are in use" in binding
    assert "the number of stages binds: at most 2 are allowed" in binding


def test_a_move_that_makes_no_plan_says_why():
    found = explain("fc2", plan(replace(REQUEST, max_stages=2)))
    assert found.choices[0].fault.startswith("it makes 4 stages, and at least 1, at most 2 are asked for")


def test_a_layer_goes_by_its_name_in_the_plan_too():
    assert explain("fc2", text=MODEL.replace("fc2", "dense"), allow_stale=True).layer == "dense"


def test_an_unknown_layer_is_told_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'fc22'.*'fc2'"):
        explain("fc22")


def test_a_plan_of_another_model_is_refused():
    with pytest.raises(StalePlanError, match="'more'"):
        explain("fc2", text=MODEL.replace("gemm head : c", "gemm more : c w2 -> d 64x4096\n gemm head : d"))


def test_it_prints_a_table_and_sentences(golden):
    stream = StringIO()
    print_explanation(make_console(stream, 120), told("fc2"))
    golden("report/explain.txt", stream.getvalue())


def test_the_document_has_no_infinities():
    document = json.loads(explanation_document(told("emb")))
    assert document["choices"][1]["value"] is None
    assert document["objective"]["unit"] == "USD per million samples"


def test_a_request_that_no_plan_meets_is_explained_with_what_would_help():
    found = why_infeasible(graph(), cluster=POOL, min_throughput=1e12)
    assert not found.is_feasible
    assert found.blocking.startswith("a throughput of 1,000,000,000,000 samples/s cannot be reached: layer ")
    assert found.to_text().splitlines()[1].startswith("- the best reachable throughput is ")
    assert json.loads(found.to_json())["is_feasible"] is False


def test_a_request_that_a_plan_meets_says_what_that_reaches():
    found = why_infeasible(graph(), cluster=POOL, min_throughput=100.0)
    assert found.is_feasible
    assert found.to_text().startswith("A plan exists: ")
    assert found.to_text().endswith(", in the steady state\n")


def test_a_training_is_held_to_its_step():
    found = why_infeasible(graph(), cluster=POOL, mode="training", min_throughput=100.0)
    assert found.to_text().endswith(", one batch alone\n")
    steady = why_infeasible(graph(), cluster=POOL, mode="training", reading="steady-state", min_throughput=66_000.0)
    missed = why_infeasible(graph(), cluster=POOL, mode="training", min_throughput=66_000.0)
    assert (steady.is_feasible, missed.is_feasible, missed.is_proven) == (True, False, False)
    assert "with one batch alone" in missed.blocking


def test_a_request_that_makes_no_sense_is_an_error():
    with pytest.raises(InputError, match=r"\b2\b.*\b1\b"):
        why_infeasible(graph(), cluster=POOL, min_stages=2, max_stages=1)


def test_a_move_whose_steps_miss_the_floor_says_what_the_quickest_makes():
    half = replace(GPU, name="half", memory_bytes_per_s=4.5e11, peak_flops={"float32": 7e12}, max_units=1)
    pool = replace(POOL, device_types=(replace(GPU, max_units=1), half))
    request = Request(mode="training", objective="price", min_throughput=15_000.0, method="exact", max_stages=1)
    found = explain("fc2", plan(request, pool), cluster=pool)
    faults = [choice.fault for choice in found.choices] + [move.outcome.fault for move in found.moves]
    missed = [fault for fault in faults if fault.startswith("its quickest step makes ")]
    assert missed
    assert all(fault.endswith("floor is 15,000 samples/s with one batch alone") for fault in missed)
