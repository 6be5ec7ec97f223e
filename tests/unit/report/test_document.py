import json
from dataclasses import replace

import pytest
from drafts import COSTS, LAYERS
from plans import PLAN, with_stage

from heterps_compile.plan.plan import Artifact
from heterps_compile.plan.planned_stage import TypeReplicas
from heterps_compile.report.document import to_document
from heterps_compile.report.rows import layer_rows
from heterps_compile.schedule.micro_batch import MicroBatch

SAVED = replace(PLAN, artifacts=((Artifact("stage_0.onnx", "d" * 64),), (Artifact("stage_1.onnx", "e" * 64),)))
ROWS = layer_rows(PLAN, LAYERS, COSTS)


def document(plan=SAVED) -> dict:
    return json.loads(to_document(plan, ROWS, "ctr.heterps"))


def test_the_document_is_this_byte_for_byte(golden):
    """With a stage of two device types, which has keys that others lack, and one whose files are not known."""
    mixed = (
        TypeReplicas("v100", "gpu", 1, 0.75, 0.003, 0.0005, 2.42, (MicroBatch(4, 0.0005, 0.001),)),
        TypeReplicas("t4", "gpu", 2, 0.25, 0.002, 0.0004, 0.7, (MicroBatch(4, 0.001, 0.002),)),
    )
    plan = with_stage(SAVED, 1, mixed=mixed, replicas=3, price_per_hour=3.12, recompute=True)
    files = (SAVED.artifacts[0] + (Artifact("stage_0.onnx.data", "f" * 64),), SAVED.artifacts[1])
    golden("report/document.json", to_document(replace(plan, artifacts=files), ROWS, "ctr.heterps") + "\n")


def test_another_currency_is_not_called_dollars():
    found = document(replace(SAVED, currency="EUR"))
    assert found["price_usd_per_hour"] is found["usd_per_million_samples"] is None
    assert found["price_per_hour"] == pytest.approx(2.90)
    assert found["objective"]["unit"] == "EUR per million samples"


def test_a_number_that_is_not_finite_is_null():
    assert document(replace(SAVED, bound=float("-inf")))["bound"] is None
    assert document(replace(SAVED, value=float("nan")))["objective"]["value"] is None


def test_what_is_not_known_is_null():
    found = document(replace(with_stage(PLAN, 0, memory=None), verification=None))
    assert found["verification"] is None
    assert found["stages"][0]["memory_bytes"] is None
    assert found["stages"][0]["artifact"] is None


def test_the_text_is_printable_ascii_whatever_the_names():
    text = to_document(replace(SAVED, model="\x1b[31m\x7f\u202e\ud800é"), ROWS, "\n")
    assert set(text) <= {chr(c) for c in range(32, 127)} | {"\n"}
