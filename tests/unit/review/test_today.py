"""A plan's decisions with the estimates of today."""

from dataclasses import replace

import pytest
from reviewed import CPU, GPU, MODEL, POOL, REQUEST, graph, plan

from heterps_compile.errors import StalePlanError
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.plan import Plan
from heterps_compile.plan_diff.compare_plans import diff
from heterps_compile.plan_diff.decisions import decisions
from heterps_compile.review.pose import pose_again
from heterps_compile.review.today import plan_today

TRAINING = replace(REQUEST, mode="training", min_throughput=1_000.0)
DEARER = replace(POOL, device_types=(CPU, replace(GPU, price_per_hour=3 * GPU.price_per_hour)))


def today(committed: Plan, text: str = MODEL, **options) -> Plan:
    allow_stale = options.pop("allow_stale", False)
    return plan_today(pose_again(graph(text), committed, **({"cluster": POOL} | options)), allow_stale=allow_stale).plan


@pytest.mark.parametrize("request_", [REQUEST, TRAINING, replace(REQUEST, min_stages=3)])
def test_a_plan_of_this_very_model_and_pool_is_the_same_today(request_):
    committed = from_json(to_json(plan(request_)), "plan.json")
    now = today(committed)
    assert diff(committed, now).is_empty
    assert now.bound == committed.bound
    assert [stage.memory for stage in now.stages] == [stage.memory for stage in committed.stages]
    assert to_json(replace(now, schedule=committed.schedule, notes=committed.notes)) == to_json(committed)


def test_a_pool_with_other_prices_is_refused_and_may_be_allowed():
    committed = plan()
    with pytest.raises(StalePlanError, match=r"the hash of cluster differs.*--allow-stale"):
        today(committed, cluster=DEARER)
    now = today(committed, cluster=DEARER, allow_stale=True)
    assert decisions(now).stages == decisions(committed).stages
    assert now.price_per_hour == pytest.approx(committed.price_per_hour + 2 * committed.stages[1].price_per_hour)
    assert now.bound == 0.0
    assert now.hashes["cluster"] != committed.hashes["cluster"]


def test_estimates_that_were_edited_by_hand_are_those_of_the_cost_model_again():
    committed = plan()
    flattered = replace(committed, stages=tuple(replace(s, compute_s=s.compute_s / 2) for s in committed.stages))
    assert [s.compute_s for s in today(flattered).stages] == [s.compute_s for s in committed.stages]


def test_a_model_with_other_names_is_stale_and_its_layers_go_by_todays_names():
    renamed = MODEL.replace("fc2", "second")
    committed = plan()
    with pytest.raises(StalePlanError, match="the hash of model differs"):
        today(committed, renamed)
    assert "second" in today(committed, renamed, allow_stale=True).stages[1].layers


def test_the_operations_of_every_layer_are_counted():
    assert plan_today(pose_again(graph(), plan(), cluster=POOL)).operations == {"emb": 1, "fc1": 2, "fc2": 1, "head": 1}


def test_a_limit_that_the_plan_breaks_today_is_a_note():
    committed = replace(plan(), request=replace(REQUEST, min_throughput=1e9))
    notes = today(committed, allow_stale=True).notes
    assert any(note.startswith("the plan does not hold any more: the plan reaches ") for note in notes)


def test_a_layer_that_the_model_lost_is_an_error_allowed_or_not():
    text = MODEL.replace("    gemm fc2 : b w2 -> c 64x4096 flops=2147483648\n", "").replace(": c", ": b")
    with pytest.raises(StalePlanError, match=r"the plan does not fit: the model changed: 1 layer of the plan is gone"):
        today(plan(), text, allow_stale=True)
