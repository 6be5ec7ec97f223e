"""What a plan alone says of a layer; the answer is in the drawing of the plan."""

import io
import json
from dataclasses import replace

import pytest
from plan_changes import drawn
from plans import PLAN

from heterps_compile.console import make_console
from heterps_compile.errors import UnknownNameError
from heterps_compile.plan.plan import Plan
from heterps_compile.review.explain_plan import find_layer, layer_document, print_layer

DRAWN = drawn("2 cpu: a b | 1 v100: c")
DRAWN = replace(DRAWN, request=replace(DRAWN.request, min_throughput=0.0, max_stages=None))


def text(plan: Plan, layer: str) -> str:
    stream = io.StringIO()
    print_layer(make_console(stream, 120), find_layer(plan, layer))
    return stream.getvalue()


def test_a_layer_stands_in_its_stage_between_its_neighbours():
    assert text(DRAWN, "a").splitlines()[:7] == [
        "a, stage 0, on cpu",
        "",
        "stage    0 (they are 0 to 1), 2 layers",
        "layer    1 of its stage, before b",
        "device   2 units of cpu (cpu)",
        "time     4 ms a batch of 64; the slowest: it sets the throughput, 16,000 samples/s",
        "of that  computation 4 ms, data 0 s, side by side",
    ]
    assert "price    0.08 USD/h, 3.2 % of the plan's" in text(DRAWN, "b")
    assert "layer    1 of its stage\n" in text(DRAWN, "c")
    assert "stage    0 (the only one), 1 layer\n" in text(drawn("1 v100: c"), "c")


def test_the_stage_that_sets_the_throughput_is_named_where_it_is_another_one():
    first, second = DRAWN.stages
    plan = replace(DRAWN, stages=(first, replace(second, compute_s=0.001)))
    assert "time     1 ms a batch of 64; stage 0 is the slowest, 4 ms\n" in text(plan, "c")


@pytest.mark.parametrize(
    ("asked", "binding"),
    [
        ({"min_throughput": 15_900.0}, "the floor binds: 16,000 samples/s of 15,900 samples/s"),
        ({"budget_per_hour": 2.5}, "the budget binds: 2.50 of 2.50 USD/h"),
        ({"max_stages": 2}, "the number of stages binds: at most 2 are allowed"),
    ],
)
def test_a_limit_that_is_near_binds(asked, binding):
    assert find_layer(DRAWN, "a").binding == ()
    assert "Binding: no limit is near.\n" in text(DRAWN, "a")
    bound = replace(DRAWN, request=replace(DRAWN.request, **asked))
    assert find_layer(bound, "a").binding == (binding,)


def test_units_and_memory_bind():
    second, devices = DRAWN.stages[1], {device.name: device for device in DRAWN.devices}
    plan = replace(DRAWN, devices=(replace(devices["v100"], max_units=1, memory_bytes=second.memory.total_bytes),))
    assert find_layer(plan, "c").binding == (
        "the units bind: the pool has 1 unit of 'v100'",
        "memory binds: stage 1 needs 1.15 MiB of the 1.15 MiB of 'v100'",
    )
    assert find_layer(plan, "a").binding == ()  # of its device type the plan tells nothing


def test_the_document_has_the_same_numbers_and_says_what_it_lacks():
    document = json.loads(layer_document(find_layer(PLAN, "fc2")))
    stage = PLAN.stages[1]
    assert (document["stage"], document["stage_time_s"], document["slowest_stage"]) == (1, stage.time_s, 0)
    assert (document["layers_of_stage"], document["pins"]) == (["fc1", "fc2"], ["embedding=cpu"])
    assert document["price_per_hour"] == PLAN.price_per_hour
    assert document["notes"][0].endswith("name its model (--model MODEL.onnx)")


def test_a_name_that_the_plan_lacks_is_told_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'fc3'.*'fc\d'"):
        find_layer(PLAN, "fc3")
