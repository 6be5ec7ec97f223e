"""What it would cost to have layers where the plan does not have them."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from reviewed import GPU, POOL, REQUEST, graph, plan

from heterps_compile.console import make_console
from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.errors import InfeasibleError, StalePlanError, UnknownNameError
from heterps_compile.plan.request import Request
from heterps_compile.review.pin_cost import PinCost, pin_cost
from heterps_compile.review.pin_cost_words import pin_cost_document, print_pin_cost
from heterps_compile.review.pose import pose_again
from heterps_compile.review.what_decides import levers

FREE = Request(method="exact", min_throughput=10000.0)


def cost(*pins: tuple[str, str], request: Request = FREE, **options: object) -> PinCost:
    return pin_cost(pose_again(graph(), plan(request), cluster=POOL), pins, **options)  # type: ignore[arg-type]


def text(found: PinCost, width: int = 200) -> str:
    stream = StringIO()
    print_pin_cost(make_console(stream, width), found)
    return stream.getvalue()


def test_pins_cost_what_the_best_plan_with_them_costs_more():
    found = cost(("gemm", "cpu"))
    alone = plan(replace(FREE, pins=(("gemm", "cpu"),)))
    assert found.pinned.value == pytest.approx(alone.value)
    assert found.plan.value == pytest.approx(plan(FREE).value)
    assert found.change == pytest.approx(alone.value / plan(FREE).value - 1)
    assert found.is_proven
    assert set(found.moved) == {"fc1", "fc2", "head"} - {
        name for stage in plan(FREE).stages if stage.device == "cpu" for name in stage.layers
    }
    for outcome in (found.plan, found.pinned):
        assert outcome.value == evaluate_one(found.problem, outcome.placement)


def test_the_decisive_number_makes_a_plan_with_the_pins_worth_as_much():
    found = cost(("gemm", "cpu"))
    assert found.decisive
    known = {lever.name: lever for lever in levers(found.problem)}
    for one in found.decisive:
        if one.name == "price of 'gpu'":
            there = known[one.name].scaled(found.problem, one.factor)
            dearer = replace(POOL, device_types=(POOL.device_types[0], replace(GPU, price_per_hour=one.needed)))
            pinned = plan(replace(FREE, pins=(("gemm", "cpu"),)), dearer)
            assert pinned.value <= evaluate_one(there, found.plan.placement) * (1 + 1e-6)
            break
    else:
        pytest.fail("the price of the GPU does not decide")


def test_beside_a_step_stands_no_value_of_the_steady_state():
    found = cost(("gemm", "cpu"), request=Request(method="exact", mode="training"))
    assert found.in_any_order == found.pinned.value
    assert found.bound_of_all_orders <= found.bound <= found.pinned.value


def test_pins_that_the_plan_keeps_to_cost_nothing():
    found = cost(("emb", "cpu"), request=REQUEST)
    assert (found.moved, found.change) == ((), 0.0)
    assert "With emb=cpu: the plan keeps to the pins already." in text(found)


def test_pins_of_the_plan_give_way_to_those_that_are_asked_about():
    found = cost(("emb", "gpu"), request=REQUEST)
    assert found.moved == ("emb",)
    assert found.change < 0
    assert "a plan exists that is" in text(found)
    assert "compile again with the pins" in text(found)


def test_pins_that_no_plan_keeps_to_say_why():
    with pytest.raises(InfeasibleError, match="'fc2'"):
        cost(("fc2", "cpu"), request=replace(FREE, min_throughput=1e6))


def test_an_unknown_pattern_or_type_is_told_with_what_there_is():
    with pytest.raises(UnknownNameError, match="'gemmm'"):
        cost(("gemmm", "cpu"))
    with pytest.raises(UnknownNameError, match="'tpu'"):
        cost(("gemm", "tpu"))


def test_a_stale_plan_is_refused_unless_that_is_allowed():
    dearer = replace(POOL, device_types=(POOL.device_types[0], replace(GPU, price_per_hour=9.0)))
    posed = pose_again(graph(), plan(FREE), cluster=dearer)
    with pytest.raises(StalePlanError):
        pin_cost(posed, [("gemm", "cpu")])
    assert pin_cost(posed, [("gemm", "cpu")], allow_stale=True).plan.value > plan(FREE).value


def test_where_another_order_has_a_better_plan_or_may_have_one_a_note_says_so():
    found = cost(("gemm", "cpu"))
    assert found.is_proven_for_all_orders
    assert "order" not in text(found)
    open_ = replace(found, bound_of_all_orders=0.9 * found.pinned.value)
    assert "no plan with the pins in this order of the layers is cheaper" in text(open_)
    assert "in the order of the plan's stages; another order with a plan that is cheaper was not ruled out" in text(
        open_
    )
    better = replace(open_, in_any_order=0.9 * found.pinned.value)
    assert "another order has a plan with the pins that is 10 % cheaper than the one shown" in text(better)
    assert json.loads(pin_cost_document(better))["all_orders"]["value"] == better.in_any_order


def test_it_is_printed_as_a_table_and_sentences(golden):
    golden("report/explain_pin.txt", text(cost(("gemm", "cpu")), 120))
