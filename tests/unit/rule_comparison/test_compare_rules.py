"""The command ``sync``: every rule on one plan, with the answer of the planner beside it."""

import json
from dataclasses import replace
from functools import cache
from io import StringIO

import pytest
from agreeing import GRADIENT_BYTES, agreeing, graph, pool

from heterps_compile.cluster.devices import Cluster
from heterps_compile.console import make_console
from heterps_compile.errors import InfeasibleError, InputError, StalePlanError, UnknownNameError
from heterps_compile.plan.plan import Plan
from heterps_compile.review.check import check_plan
from heterps_compile.review.explain import explain_layer
from heterps_compile.review.explain_plan import find_layer, layer_document
from heterps_compile.review.explain_words import explanation_document
from heterps_compile.review.judge import judge
from heterps_compile.review.pose import PosedAgain, pose_again
from heterps_compile.review.today import plan_today
from heterps_compile.rule_comparison import RuleComparison, compare_rules
from heterps_compile.rule_comparison.comparison_words import comparison_document, print_comparison
from heterps_compile.sync_rules.rules import COMPARED, COMPARED_BESIDES

PAIRS_BYTES = 4 * 8 * round(0.01 * GRADIENT_BYTES / 4)


def again(plan: Plan, cluster: Cluster | None = None) -> PosedAgain:
    """Pose a plan again; its model is read already, with its dimensions."""
    return pose_again(graph(), replace(plan, bindings={}), cluster=cluster or pool())


@cache
def posed(sync: str = "all-reduce") -> PosedAgain:
    return again(agreeing(synchronisation=sync))


@cache
def compared() -> RuleComparison:
    return compare_rules(posed())


def test_every_rule_has_a_row_and_all_reduce_is_the_plan_itself():
    rows, plan = compared().rows, posed().plan
    assert len(rows) == len(COMPARED) + len(COMPARED_BESIDES)
    assert (rows[0].rule, rows[0].step_s) == ("all-reduce", plan.schedule.step_s)
    assert rows[0].price_per_hour == pytest.approx(plan.price_per_hour)
    assert rows[0].price_per_million_samples == pytest.approx(plan.value)
    assert rows[0].sent_bytes == (2 * 3 * GRADIENT_BYTES,)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=() if number in (1, 4, 5) else pytest.mark.slow)
        for number in range(1, len(COMPARED) + len(COMPARED_BESIDES))
    ],
)
def test_a_row_is_what_the_planner_makes_of_the_rule(number):
    row, floor = compared().rows[number], posed().plan.request.min_throughput
    assert row.samples_per_s * row.step_s == pytest.approx(4096)
    if row.rule == "servers":
        assert row.step_s - sum(row.handling_s) == pytest.approx(
            compared().rows[0].step_s - sum(compared().rows[0].handling_s)
        )
        assert row.price_per_hour > posed().plan.price_per_hour
    elif row.samples_per_s < floor:
        with pytest.raises(InfeasibleError, match="500,000 samples/s"):
            agreeing(synchronisation=row.rule)
    else:
        planned = agreeing(synchronisation=row.rule)
        assert planned.value <= row.price_per_million_samples * (1 + 1e-9)  # with replicas that suit the rule
        own = compare_rules(again(planned)).rows
        [same] = [each for each in own if each.rule == row.rule]
        assert (same.step_s, same.price_per_hour) == pytest.approx((planned.schedule.step_s, planned.price_per_hour))


def test_the_planned_step_with_a_rule_is_that_of_its_row():
    made = agreeing(synchronisation="topk(density=0.01)")
    [row] = [row for row in compared().rows if row.rule == "topk(density=0.01)"]
    assert (row.step_s, row.rule_bytes) == (made.schedule.step_s, (GRADIENT_BYTES + PAIRS_BYTES,))
    assert made.stages[0].sync is not None
    assert row.sent_bytes == (4 * made.stages[0].sync.step_bytes,)


def test_factors_are_counted_by_the_shapes_of_the_weights():
    [row] = [row for row in compared().rows if row.rule == "powersgd"]
    factors_bytes = 2 * 4 * 2 * (1024 + 1024)  # of rank 2, of both products
    assert row.sent_bytes == (2 * 3 * factors_bytes,)
    assert row.rule_bytes == (factors_bytes + 2 * GRADIENT_BYTES,)


def test_the_shortest_is_that_of_auto_with_any():
    assert compared().shortest.rule == "shadow(every=5)"


def test_the_table_says_what_is_planned_and_what_it_leaves_out():
    stream = StringIO()
    print_comparison(make_console(stream, 130), compared())
    said = stream.getvalue()
    assert "shortest" in said
    assert "planned" in said
    assert "stage 0: 4 x gpu in 4 machines, 8 MiB of gradients, 8 MiB of weights" in said
    assert "what a rule makes of the loss is not predicted" in said


def test_the_document_has_every_number():
    document = json.loads(comparison_document(compared()))
    assert [row["rule"] for row in document["rules"]] == [row.rule for row in compared().rows]
    assert {row["class"] for row in document["rules"]} == {"exact", "bounded", "any"}
    assert document["stages"][0]["gradient_bytes"] == GRADIENT_BYTES
    assert (document["shortest"], document["planned"]) == ("shadow(every=5)", None)


def test_rules_of_ones_own_stand_beside_all_reduce():
    found = compare_rules(posed(), ["topk(density=0.001)", "all-reduce"])
    assert [row.rule for row in found.rows] == ["all-reduce", "topk(density=0.001)"]
    with pytest.raises(UnknownNameError, match="'adasum'"):
        compare_rules(posed(), ["adasm"])


def test_a_plan_for_inference_and_a_stale_one_are_refused():
    idle = again(agreeing(mode="inference", min_throughput=1e5))
    with pytest.raises(InputError, match="--mode"):
        compare_rules(idle)
    elsewhere = again(posed().plan, pool(1e9))
    with pytest.raises(StalePlanError):
        compare_rules(elsewhere)
    slow = compare_rules(elsewhere, allow_stale=True)
    assert slow.rows[0].step_s > compared().rows[0].step_s


def test_servers_that_the_pool_lacks_are_a_fault_of_their_row_alone():
    bare = replace(pool(), parameter_server=None)
    found = compare_rules(again(posed().plan, bare), allow_stale=True)
    faults = {row.rule: row.fault for row in found.rows if row.fault}
    assert list(faults) == ["servers"]
    assert "has no parameter servers" in faults["servers"]


# ---- what reviews a plan knows its rules


def test_a_plan_with_rules_holds_and_is_worth_today_what_its_file_says():
    at = posed("topk(density=0.01)")
    fault, value = judge(at)
    assert (fault, value) == ("", pytest.approx(at.plan.value))
    assert check_plan(at).passes
    today = plan_today(at).plan
    assert (today.stages, today.schedule.step_s) == (at.plan.stages, at.plan.schedule.step_s)
    assert today.value == pytest.approx(at.plan.value)


def test_explain_says_why_the_stage_has_its_rule_and_what_all_reduce_would_take():
    at = posed("topk(density=0.01)")
    found = explain_layer(at, "fc1")
    assert found.agreement.startswith("stage 0 by topk(density=0.01) (bounded): ")
    assert "; all-reduce 12 MiB, " in found.agreement
    assert "asked for, with --sync topk(density=0.01)" in found.agreement
    assert json.loads(explanation_document(found))["agreement"] == found.agreement
    assert explain_layer(posed(), "fc1").agreement == ""
    alone = json.loads(layer_document(find_layer(at.plan, "fc1")))
    assert alone["agreement"]["rule"] == "topk(density=0.01)"
    assert alone["agreement"]["held_bytes"] == GRADIENT_BYTES + PAIRS_BYTES


def test_explain_says_that_the_planner_chose():
    at = again(agreeing(synchronisation="auto", allow="bounded"))
    assert "no rule that --allow bounded allows makes a shorter step" in explain_layer(at, "fc1").agreement
