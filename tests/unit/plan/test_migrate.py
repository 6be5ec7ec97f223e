import json
from dataclasses import replace
from typing import Any

import pytest
from plans import PLAN, as_read, version_1, version_2

from heterps_compile.errors import PlanError
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.migrate import MIGRATIONS
from heterps_compile.plan.plan import PoolDevice
from heterps_compile.plan.schema import VERSION


def test_a_plan_of_version_1_is_read_and_what_it_did_not_know_stays_unknown():
    stages = tuple(replace(stage, times=()) for stage in PLAN.stages)
    unknown: dict[str, Any] = {"devices": (), "links": (), "parameter_server": None}
    expected = replace(as_read(PLAN), stages=stages, **unknown, fingerprints={}, hashes={"model": "a" * 64})
    assert from_json(json.dumps(version_1()), "plan.json") == expected


def test_a_plan_of_version_2_tells_of_its_pool_what_it_did_and_records_none():
    read = from_json(json.dumps(version_2()), "plan.json")
    devices = tuple(PoolDevice(*(getattr(d, name) for name in PoolDevice.__slots__)) for d in PLAN.devices)
    stages = tuple(replace(stage, times=stage.times[-1:]) for stage in PLAN.stages)  # those of the schedule's count
    assert read == replace(as_read(PLAN), stages=stages, devices=devices, links=(), parameter_server=None)
    assert (read.pool, json.loads(to_json(read))["cluster"]["devices"][0]["data_sheet"]) == (None, None)


def test_every_older_version_has_one_step():
    assert sorted(MIGRATIONS) == list(range(1, VERSION))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"decisions": None}, "cluster.name: Input should be a valid string, not None (and 1 more fault)"),
        ({"decisions": {}}, "cluster.name: Input should be a valid string"),
        ({"provenance": 3}, "provenance: Input should be an object"),
    ],
)
def test_a_damaged_older_plan_is_refused_by_the_schema(damage, said):
    with pytest.raises(PlanError) as caught:
        from_json(json.dumps(version_1() | damage), "plan.json")
    assert said in str(caught.value)
