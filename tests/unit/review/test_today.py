"""A plan's decisions with the estimates of today."""

from dataclasses import replace
from types import MappingProxyType

import pytest
from reviewed import CPU, GPU, MODEL, POOL, REQUEST, graph, plan

from heterps_compile.api import choose_backend
from heterps_compile.cluster.devices import Cluster
from heterps_compile.errors import StalePlanError
from heterps_compile.ir.graph import Graph
from heterps_compile.make_plan import make_plan
from heterps_compile.passes.drafts import Draft, Emitted
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.request import Request
from heterps_compile.plan_diff.compare_plans import diff
from heterps_compile.plan_diff.decisions import decisions
from heterps_compile.review.explain import explain_layer
from heterps_compile.review.judge import judge, own_detail
from heterps_compile.review.pose import pose_again
from heterps_compile.review.today import plan_today
from heterps_compile.simulation.plan_steps import best_steps, fits, plan_loads

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


def test_bounds_of_a_plan_under_zero_bubble_are_no_higher_today():
    committed = plan(replace(TRAINING, min_throughput=0.0, objective="throughput"))
    schedule = replace(committed.schedule, name="zero-bubble")
    bound = 0.75 * committed.bound
    committed = replace(committed, schedule=schedule, bound=bound, bound_of_all_orders=bound / 2, steady_bound=bound)
    now = today(committed)
    assert (now.schedule.name, now.bound, now.bound_of_all_orders) == (
        "zero-bubble", committed.bound, committed.bound_of_all_orders,
    )  # fmt: skip


def test_a_pool_with_other_prices_is_refused_and_may_be_allowed():
    committed = plan()
    with pytest.raises(StalePlanError, match=r"differs.*--allow-stale"):
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
    with pytest.raises(StalePlanError, match="hash"):
        today(committed, renamed)
    assert "second" in today(committed, renamed, allow_stale=True).stages[1].layers


def test_a_limit_that_the_plan_breaks_today_is_a_note():
    committed = replace(plan(), request=replace(REQUEST, min_throughput=1e9))
    notes = today(committed, allow_stale=True).notes
    assert any(note.startswith("the plan does not hold any more: the plan reaches ") for note in notes)


def test_a_layer_that_the_model_lost_is_an_error_allowed_or_not():
    text = MODEL.replace("    gemm fc2 : b w2 -> c 64x4096 flops=2147483648\n", "").replace(": c", ": b")
    with pytest.raises(StalePlanError, match=r"\b1\b"):
        today(plan(), text, allow_stale=True)


WIDE = """
    in x 2x16
    par w1 16x65536
    par w2 65536x16
    par w3 16x16
    gemm fc1 : x w1 -> a 2x65536 flops=4194304
    elementwise act : a -> b 2x65536 flops=131072
    elementwise act2 : b -> c 2x65536 flops=131072
    gemm fc2 : c w2 -> d 2x16 flops=4194304
    gemm head : d w3 -> click 2x16 flops=1024
    out click
"""


def wide_pool(memory_bytes: float) -> Cluster:
    return replace(POOL, device_types=(replace(GPU, max_units=2, memory_bytes=memory_bytes),))


def wide_plan(request: Request, memory_bytes: float) -> tuple[Graph, Plan]:
    """Return a model whose first stage holds the more the less its batch of two is divided, and its plan."""
    model = replace(graph(WIDE), batch=2, batch_symbol="N", bindings=MappingProxyType({"N": 2}))
    made = make_plan(
        run_to(Draft(graph=model, cluster=wide_pool(memory_bytes), request=request), Emitted),
        choose_backend(model, None),
    )
    return model, replace(made, bindings={})  # a graph has its dimensions


IN_TWO = replace(REQUEST, mode="training", min_throughput=0.0, pins=(), min_stages=2, max_stages=2)


def test_what_stages_compute_again_counts_today_too():
    model, committed = wide_plan(replace(IN_TWO, reading="steady-state"), 41.5e6)
    assert [stage.recompute for stage in committed.stages] == [True, False]
    posed = pose_again(model, committed, cluster=wide_pool(41.5e6))
    assert plan_today(posed).plan.value == pytest.approx(committed.value, rel=1e-9)
    assert judge(posed) == ("", pytest.approx(committed.value, rel=1e-9))
    kept = own_detail(posed, posed.fitting(allow_stale=False)).throughput
    floored = replace(posed.problem, min_throughput=0.99 * kept)
    fault, _ = judge(replace(posed, draft=replace(posed.draft, problem=floored)))
    assert fault.startswith("the plan reaches")


@pytest.mark.parametrize("reading", ["steady-state", "one-batch-alone"])
def test_a_plan_that_its_schedule_holds_too_much_for_today_is_broken(reading):
    model, committed = wide_plan(replace(IN_TWO, recompute="never", reading=reading), 43e6)
    assert committed.stages[0].memory.total_bytes > 41.5e6  # and less of it with two micro-batches
    posed = pose_again(model, committed, cluster=wide_pool(41.5e6))
    said = "stage 0 needs 40.2 MiB today with 1 micro-batch under gpipe, and 'gpu' has 39.6 MiB"
    assert judge(posed) == (said, None)
    now = plan_today(posed, allow_stale=True)
    assert now.broken == (f"the plan does not hold any more: {said}",)
    by_schedule = best_steps(now.plan, plan_loads(now.plan), [1, 2])
    assert [fits(now.plan, step) for step in by_schedule] == [False] * len(by_schedule)
    if reading == "one-batch-alone":  # a step that does not fit has no value that others could be better than
        assert explain_layer(posed, "fc1", allow_stale=True).reason == f"{now.broken[0]}; compile again"
