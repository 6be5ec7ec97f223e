import json

from plans import PLAN

from heterps_compile.plan.file import render, to_json
from heterps_compile.plan.schema import json_schema, published_schema


def test_the_published_schema_is_that_of_the_classes():
    assert published_schema() == render(json_schema()) + "\n"  # write it anew: tools/write_schema.py


def test_it_names_every_part_of_a_plan():
    schema = json.loads(published_schema())
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert list(schema["properties"]) == schema["required"] == list(json.loads(to_json(PLAN)))


def test_it_refuses_unknown_keys_as_reading_does():
    schema = json.loads(published_schema())
    parts = [schema, *schema["$defs"].values()]
    assert [part.get("additionalProperties") for part in parts] == [False] * len(parts)
