"""Stages of several device types in a plan and its file."""

import json
from dataclasses import replace
from typing import Any

import pytest
from plans import PLAN, as_read

from heterps_compile.errors import PlanError
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.idle_units import units_of
from heterps_compile.plan.planned_schedule import readings_of
from heterps_compile.plan.planned_stage import PlannedStage, TypeReplicas
from heterps_compile.plan_diff.compare_plans import diff
from heterps_compile.plan_diff.formats import diff_text
from heterps_compile.schedule.micro_batch import MicroBatch

STAGE = PLAN.stages[0]
PRICES = {device.name: device.price_per_hour for device in PLAN.devices}
OTHER = next(device for device in PLAN.devices if device.name != STAGE.device)
DEVICES = {device.name: device for device in PLAN.devices}


def types(own: int, other: int) -> tuple[TypeReplicas, ...]:
    def of(name: str, count: int, share: float, compute_s: float) -> TypeReplicas:
        return TypeReplicas(
            name,
            DEVICES[name].kind,
            count,
            share,
            compute_s,
            0.25 * compute_s,
            count * PRICES[name],
            (MicroBatch(PLAN.schedule.micro_batches, 0.002, 0.004),),
        )

    return of(STAGE.device, own, 0.75, 0.5), of(OTHER.name, other, 0.25, 0.4)


def mixed_stage(own: int = 2, other: int = 1) -> PlannedStage:
    each = types(own, other)
    return replace(
        STAGE,
        replicas=own + other,
        compute_s=0.5,
        data_s=0.125,
        sync_s=0.0,
        price_per_hour=sum(one.price_per_hour for one in each),
        mixed=each,
    )


def planned(stage: PlannedStage) -> Any:
    stages = (stage, *PLAN.stages[1:])
    plan = replace(PLAN, stages=stages, request=replace(PLAN.request, mixed_stages=True))
    unused = tuple(name for name in plan.unused_devices if name not in units_of(stages))
    readings = readings_of(plan.batch, stages, plan.schedule)
    rate = readings.steady_state.throughput_samples_per_s
    plan = replace(plan, unused_devices=unused, throughput_samples_per_s=rate)
    return replace(plan, value=plan.price_at(rate), bound=0.0, bound_of_all_orders=0.0, steady_bound=0.0, other=None)


def test_a_stage_says_what_it_runs_on() -> None:
    stage = mixed_stage()
    assert stage.units == ((STAGE.device, 2), (OTHER.name, 1))
    assert stage.hardware == f"2 x {STAGE.device} + 1 x {OTHER.name}"
    assert (stage.device_words, stage.replicas_words) == (f"{STAGE.device} + {OTHER.name}", "2 + 1")
    assert [stage.of_replica(i)[0] for i in range(4)] == [STAGE.device] * 2 + [OTHER.name, STAGE.device]
    assert units_of([stage]) == {STAGE.device: 2, OTHER.name: 1}
    assert STAGE.hardware == f"{STAGE.replicas} x {STAGE.device}"
    assert STAGE.by_type == (STAGE,)


def test_each_type_alone_would_take_a_batch_as_long_as_its_part_says() -> None:
    first, second = mixed_stage().by_type
    assert (first.compute_s, second.compute_s) == (pytest.approx(0.5 / 0.75), pytest.approx(0.4 / 0.25))
    assert (first.replicas, second.replicas) == (2, 1)
    assert first.mixed == ()


def test_the_file_holds_it_and_plans_without_such_stages_say_nothing_of_it() -> None:
    plan = planned(mixed_stage())
    assert from_json(to_json(plan), "plan.json") == as_read(plan)
    assert '"mixed"' not in to_json(PLAN)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("decisions.stages.0.mixed.1.replicas", 2, r"mixed.*\b4 replicas.*\b3\b"),
        ("decisions.stages.0.mixed.1.device", STAGE.device, "least"),
        ("decisions.stages.0.mixed.0.device", OTHER.name, r"mixed.*\['v100', 'v100'\]"),
        ("decisions.stages.0.mixed.1.kind", "npu", "'npu'"),
        ("decisions.stages.0.mixed.1.device", "h900", "'h900'"),
        ("estimates.stages.0.mixed", [], r"\b0\b entries.*\b2\b"),
        ("estimates.stages.0.mixed.1.share", 0.5, r"1.25.*\b1\b"),
        ("estimates.stages.0.mixed.0.compute_s", 0.45, "0.45"),
        ("estimates.stages.0.mixed.0.price_per_hour", 9.0, r"9.0.*\b2\b"),
    ],
)
def test_what_its_parts_say_against_each_other_is_refused(path: str, value: Any, fault: str) -> None:
    document = json.loads(to_json(planned(mixed_stage())))
    *keys, last = path.split(".")
    place: Any = document
    for key in keys:
        place = place[int(key) if key.isdigit() else key]
    place[int(last) if last.isdigit() else last] = value
    with pytest.raises(PlanError, match=fault):
        from_json(json.dumps(document), "plan.json")


def test_other_units_of_a_stage_are_a_change() -> None:
    text = diff_text(diff(planned(mixed_stage(2, 1)), planned(mixed_stage(1, 2))))
    assert f"stage 0 on {STAGE.device} + {OTHER.name} has 1 + 2 replicas, had 2 + 1" in text
    assert f"is on {STAGE.device} + {OTHER.name}, was on {STAGE.device}" in diff_text(
        diff(PLAN, planned(mixed_stage()))
    )
