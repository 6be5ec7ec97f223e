"""A committed plan without its model, against the pool of today."""

import json
from dataclasses import replace

import pytest
from reviewed import POOL, plan

from heterps_compile.cluster.devices import Cluster
from heterps_compile.errors import InputError
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.served_tables import ParameterServers
from heterps_compile.review.check_alone import NOT_JUDGED, check_alone, notes_alone, shown_alone, verdict_alone

PLAN = from_json(to_json(plan()), "plan.json")
USED = PLAN.stages[0].device
UNITS = sum(stage.replicas for stage in PLAN.stages if stage.device == USED)


def with_device(**changes) -> Cluster:
    devices = [replace(d, **changes) if d.name == USED else d for d in POOL.device_types]
    return replace(POOL, device_types=tuple(devices))


def test_a_sound_plan_on_the_pool_it_was_made_for_passes_and_says_what_was_not_judged():
    checked = check_alone(PLAN, POOL)
    assert checked.passes
    assert checked.price_per_hour == pytest.approx(PLAN.price_per_hour)
    assert notes_alone(checked) == [NOT_JUDGED]
    assert (
        verdict_alone(checked) == f"the file is sound, and the pool {POOL.name!r} is the one that the plan was made for"
    )


def test_the_pool_that_the_plan_recorded_is_taken_where_none_is_named():
    assert check_alone(PLAN).passes


def test_a_dearer_device_is_told_with_what_the_plan_costs_today():
    price = (
        POOL.device_type(USED).price_per_hour
        if hasattr(POOL, "device_type")
        else PLAN.pool.device_types[0].price_per_hour
    )
    checked = check_alone(PLAN, with_device(price_per_hour=2 * price + 1))
    assert (checked.passes, checked.faults) == (False, ())
    assert checked.price_per_hour > PLAN.price_per_hour
    assert f"price of {USED} is " in verdict_alone(checked)
    assert verdict_alone(checked).endswith("what that does to its times takes its model")
    assert "% more than the " in notes_alone(checked)[0]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"max_units": 0}, f"the plan takes {UNITS} unit"),
        ({"memory_bytes": 1.0}, f"a unit, and {USED!r} has 1 B"),
    ],
)
def test_what_the_pool_lacks_today_is_a_fault(changes, fault):
    checked = check_alone(PLAN, with_device(**changes))
    assert not checked.passes
    assert fault in verdict_alone(checked)


def test_a_device_type_that_is_gone_is_a_fault_and_the_plan_has_no_price():
    pool = replace(POOL, device_types=tuple(d for d in POOL.device_types if d.name != USED))
    checked = check_alone(PLAN, pool)
    assert checked.price_per_hour is None
    assert f"has no device type {USED!r}, of which the plan takes" in verdict_alone(checked)


def test_parameter_servers_that_the_pool_has_not_are_a_fault_and_the_plan_has_no_price():
    served = replace(PLAN, parameter_servers=ParameterServers(3, 0.12))
    checked = check_alone(served, replace(POOL, parameter_server=None))
    assert checked.price_per_hour is None
    assert "has no parameter server, of which the plan takes 3 cores" in verdict_alone(checked)


def test_a_plan_that_says_nothing_of_its_pool_is_not_judged():
    with pytest.raises(InputError):
        check_alone(replace(PLAN, devices=(), hashes={}), POOL)


def test_what_a_pool_says_otherwise_counts_where_the_plan_has_no_hash_of_it():
    assert check_alone(replace(PLAN, hashes={}), POOL).passes
    assert not check_alone(replace(PLAN, hashes={}), with_device(max_units=UNITS + 1)).passes


def test_a_budget_that_todays_prices_exceed_is_a_fault():
    tight = replace(PLAN, request=replace(PLAN.request, objective="throughput", budget_per_hour=PLAN.price_per_hour))
    assert not check_alone(tight, POOL).faults
    assert "and the budget is" in check_alone(tight, with_device(price_per_hour=1e3)).faults[0]


def test_every_format_has_the_verdict():
    checked = check_alone(PLAN, with_device(max_units=0))
    document = json.loads(shown_alone("json", checked, "p", "p/plan.json"))
    assert (document["passes"], document["model"], document["faults"]) == (False, None, list(checked.faults))
    assert shown_alone("github", checked, "p", "p/plan.json").startswith("::error file=p/plan.json,line=1,")
    for form in ("text", "markdown"):
        assert "The plan does not hold any more" in shown_alone(form, checked, "p", "p/plan.json")
