"""A committed plan against the model and the pool of today."""

from dataclasses import replace

import pytest
from reviewed import CPU, GPU, MODEL, POOL, REQUEST, graph, plan

from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.plan import Plan
from heterps_compile.review.check import DEFAULT_TOLERANCE, CheckResult, check_plan
from heterps_compile.review.check_words import check_document, check_github, check_markdown, check_text, verdict
from heterps_compile.review.pose import pose_again
from heterps_compile.units import format_percent

PLAN = from_json(to_json(plan()), "plan.json")


def check(committed: Plan = PLAN, text: str = MODEL, **options) -> CheckResult:
    tolerance = options.pop("tolerance", DEFAULT_TOLERANCE)
    return check_plan(pose_again(graph(text), committed, **({"cluster": POOL} | options)), tolerance)


def with_replicas(*replicas: int) -> Plan:
    """Return the plan with other replicas; its estimates are left as they are, since a check makes its own."""
    return replace(PLAN, stages=tuple(replace(s, replicas=r) for s, r in zip(PLAN.stages, replicas, strict=True)))


def test_new_names_alone_leave_the_plan_as_good_as_it_was():
    renamed = MODEL
    for name in ("rows", "fc1", "fc2", "head", "w1", "w2", "table"):
        renamed = renamed.replace(name, f"new_{name}")
    checked = check(text=renamed)
    assert (checked.passes, checked.changes.is_empty, checked.stale) == (True, True, ("model",))


def test_a_layer_that_the_plan_does_not_place_fails():
    text = MODEL.replace("gemm head : c", "gemm more : c w2 -> d 64x4096 flops=9\n gemm head : d")
    checked = check(text=text)
    assert not checked.passes
    assert checked.fault == "the model changed: the plan does not place 1 new layer ('more')"
    assert [layer.layer for layer in checked.changes.added] == ["more"]


def test_a_layer_that_is_gone_fails():
    checked = check(text=MODEL.replace("    gemm fc2 : b w2 -> c 64x4096 flops=2147483648\n", "").replace(": c", ": b"))
    assert checked.fault == "the model changed: 1 layer of the plan is gone ('fc2')"


def test_a_better_plan_than_the_tolerance_fails_and_its_gain_is_told():
    checked = check(with_replicas(*(stage.replicas + 3 for stage in PLAN.stages)))
    assert not checked.passes
    assert checked.gain > 0.1
    assert "% cheaper exists" in verdict(checked)
    assert check(checked.committed, tolerance=0.99).passes


@pytest.mark.parametrize(("objective", "number"), [("cost", "cost"), ("throughput", "throughput")])
def test_the_verdict_and_the_table_tell_one_gain(objective, number):
    """Both compare the plan at today's prices with the one found, whatever its file says of other prices."""
    budget = 9 * PLAN.price_per_hour if objective == "throughput" else None
    asked = replace(REQUEST, objective=objective, min_throughput=0.0, budget_per_hour=budget)
    dearer = replace(POOL, device_types=(CPU, replace(GPU, price_per_hour=3.0)))
    plan = replace(with_replicas(*(stage.replicas + 1 for stage in PLAN.stages)), request=asked)
    checked = check(plan, cluster=dearer)
    (change,) = (each.percent for each in checked.changes.numbers if each.name == number)
    assert not checked.passes
    assert abs(change) == pytest.approx(100 * checked.gain)
    assert f"is {format_percent(abs(change))} {'cheaper' if number == 'cost' else 'faster'} exists" in verdict(checked)


def test_a_plan_that_cannot_be_priced_stands_with_the_estimates_of_its_file():
    checked = check(text=MODEL.replace("    gemm fc2 : b w2 -> c 64x4096 flops=2147483648\n", "").replace(": c", ": b"))
    assert "From the plan with the estimates in its file to the one found now:\n" in check_text(checked)
    (price,) = (each.old for each in checked.changes.numbers if each.name == "price")
    assert price == PLAN.price_per_hour


def test_a_plan_below_its_floor_fails():
    slow = replace(PLAN, request=replace(REQUEST, min_throughput=PLAN.throughput_samples_per_s * 1.5))
    assert "in the steady state today, and the floor is" in check(slow).fault


def test_a_plan_above_its_budget_fails():
    asked = replace(REQUEST, objective="throughput", min_throughput=0.0, budget_per_hour=0.7 * PLAN.price_per_hour)
    assert "and the budget is" in check(replace(PLAN, request=asked)).fault


def test_a_limit_on_units_that_the_plan_breaks_fails():
    many = with_replicas(101, *(stage.replicas for stage in PLAN.stages[1:]))
    assert check(many).fault == "the plan uses 101 units of 'cpu', and the pool has 100"


def test_a_device_that_left_the_pool_fails():
    pool = replace(POOL, device_types=(CPU, replace(GPU, name="a100")))
    assert check(cluster=pool).fault == "the pool changed: the plan uses 'gpu', and the pool has 'cpu', 'a100'"


def test_a_model_that_outgrew_the_memory_fails():
    pool = replace(POOL, device_types=(replace(CPU, memory_bytes=2.0**20), GPU))
    with pytest.raises(InfeasibleError, match="'cpu'"):
        check(cluster=pool)


def test_other_prices_are_a_note_while_the_plan_is_still_the_best():
    dearer = replace(POOL, device_types=(replace(CPU, price_per_hour=0.05), replace(GPU, price_per_hour=3.0)))
    checked = check(cluster=dearer)
    assert (checked.passes, checked.stale, checked.is_worth_writing) == (True, ("cluster",), True)
    text = check_text(checked)
    assert "note: since the plan was made, the pool changed (by hash)\n" in text
    assert "note: the plan's value is " in text


def test_a_search_that_ends_above_the_plan_begins_from_it():
    hasty = replace(REQUEST, method="cpu-only", min_throughput=0.0, pins=(), time_limit_s=1e-9)
    checked = check(replace(PLAN, request=hasty))
    assert (checked.passes, checked.gain) == (True, 0.0)
    assert [stage.device for stage in checked.found.stages] == ["cpu", "gpu"]


def test_a_pool_that_is_not_built_in_is_the_one_that_the_plan_recorded():
    assert check(cluster=None).passes
    with pytest.raises(InputError, match="'mine'"):
        check(replace(PLAN, devices=()), cluster=None)


@pytest.mark.parametrize("tolerance", [-0.1, float("inf"), float("nan")])
def test_a_tolerance_that_is_none_is_refused(tolerance):
    with pytest.raises(InputError, match="tolerance"):
        check(tolerance=tolerance)


def test_every_format_tells_the_verdict():
    failed = check(with_replicas(*(stage.replicas + 3 for stage in PLAN.stages)))
    assert "From the plan at today's costs and prices to the one found now:\n" in check_text(failed)
    assert "### Placement plan" in check_markdown(failed, "plan.json")
    assert check_github(failed, "plan.json").startswith(
        "::error file=plan.json,line=1,title=placement check::a plan that"
    )
    assert '"passes": false' in check_document(failed, "plan.json")
    assert check_github(check(), "plan.json") == ""
