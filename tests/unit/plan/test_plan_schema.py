import json
from typing import get_args

import pytest
from plans import PLAN

from heterps_compile.cost.memory import OPTIMIZERS
from heterps_compile.plan import schema_types
from heterps_compile.plan.file import render, to_json
from heterps_compile.plan.request import MODES, OBJECTIVES, PROVISIONERS
from heterps_compile.plan.schema import json_schema, published_schema
from heterps_compile.schedule.names import SCHEDULES
from heterps_compile.sync_rules.rule import EXACTNESSES


def test_the_published_schema_is_that_of_the_classes():
    assert published_schema() == render(json_schema()) + "\n"  # write it anew: tools/write_schema.py


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (schema_types.Objective, OBJECTIVES),
        (schema_types.Mode, MODES),
        (schema_types.Optimizer, OPTIMIZERS),
        (schema_types.Provisioner, PROVISIONERS),
        (schema_types.Exactness, EXACTNESSES),
        (schema_types.ScheduleName, SCHEDULES),
    ],
)
def test_its_names_are_those_there_are(names, known):
    assert get_args(names) == tuple(known)


def test_it_names_every_part_of_a_plan():
    published = json.loads(published_schema())
    assert published["$schema"].startswith("https://json-schema.org/")
    assert list(published["properties"]) == published["required"] == list(json.loads(to_json(PLAN)))


def test_it_refuses_unknown_keys_as_reading_does():
    published = json.loads(published_schema())
    parts = [published, *published["$defs"].values()]
    assert [part.get("additionalProperties") for part in parts] == [False] * len(parts)
