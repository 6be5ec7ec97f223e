"""A plan on machines that are rented whole: its price, its file, and what is said of units that nobody uses."""

import json
from dataclasses import replace

import pytest
from plans import PLAN

from heterps_compile.cluster.devices import DeviceType
from heterps_compile.columns.column import Medium, pairs
from heterps_compile.errors import PlanError
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.idle_units import idle_of, sampleless_notes, units_of
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.total_columns import TOTALS, Summary


def in_machines(device: object, count: int) -> DeviceType:
    assert isinstance(device, DeviceType)
    return replace(device, units_per_machine=count, inner_bytes_per_s=1e11, inner_latency_s=1e-6, whole_machines=True)


def whole_plan() -> Plan:
    first, *others = PLAN.devices
    used = units_of(PLAN.stages)[first.name]
    machine = in_machines(first, used + 2)
    paid = PLAN.price_per_hour + 2 * first.price_per_hour
    devices = (replace(machine, max_units=4 * (used + 2)), *others)
    value = paid / 3600 / PLAN.throughput_samples_per_s * 1e6
    return replace(PLAN, devices=devices, value=value, bound=0.0, steady_bound=0.0, bound_of_all_orders=0.0, other=None)


@pytest.mark.parametrize(("used", "idle"), [(0, 0), (1, 7), (8, 0), (9, 7), (16, 0)])
def test_the_rest_of_the_last_machine_is_idle(used: int, idle: int) -> None:
    assert in_machines(PLAN.devices[0], 8).idle_units(used) == idle


def test_idle_units_are_in_the_price_and_are_told() -> None:
    plan = whole_plan()
    [idle] = plan.idle_units
    assert (idle.device, idle.count) == (PLAN.devices[0].name, 2)
    assert plan.price_per_hour == pytest.approx(PLAN.price_per_hour + idle.price_per_hour)
    rows = dict(pairs(TOTALS, Summary(plan), Medium.GLANCE, "USD"))
    assert rows["idle units"].startswith(f"2 {idle.device} in machines of {idle.units_per_machine}")
    assert PLAN.idle_units == ()
    assert "idle" not in str(PLAN)


def test_a_file_has_them_and_is_refused_where_they_are_wrong() -> None:
    plan = whole_plan()
    text = to_json(plan)
    document = json.loads(text)
    assert document["estimates"]["idle_units"] == {PLAN.devices[0].name: 2}
    assert "idle_units" not in json.loads(to_json(PLAN))["estimates"]
    assert from_json(text, "it").idle_units == plan.idle_units
    for idle in ({}, {PLAN.devices[0].name: 1}):
        document["estimates"]["idle_units"] = idle
        with pytest.raises(PlanError, match=r"estimates.idle_units"):
            from_json(json.dumps(document), "it")


def test_a_device_of_an_older_plan_rents_each_unit_by_itself() -> None:
    assert idle_of({"old": 3}, PLAN.devices) == ()


def test_the_stage_with_most_replicas_for_too_few_samples_is_told():
    assert not list(sampleless_notes([1, 4, 2], 4, 4))
    (note,) = sampleless_notes([2, 5, 3], 2, 2)
    assert note.startswith("stage 1 has 5 replicas and a batch 2 samples: a training run refuses")
    (note,) = sampleless_notes([2, 5, 3], 2062, 2)
    assert note.startswith("stage 1 has 5 replicas and a step of 2,062 samples 2 micro-batches: a training run refuses")
