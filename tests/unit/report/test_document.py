import json
from dataclasses import replace

import pytest
from drafts import COSTS, LAYERS
from plans import PLAN, with_stage

from heterps_compile.plan.plan import Artifact
from heterps_compile.plan.planned_stage import TypeReplicas
from heterps_compile.report.document import to_document
from heterps_compile.report.rows import layer_rows

SAVED = replace(PLAN, artifacts=((Artifact("stage_0.onnx", "d" * 64),), (Artifact("stage_1.onnx", "e" * 64),)))
ROWS = layer_rows(PLAN, LAYERS, COSTS)


def document(plan=SAVED) -> dict:
    return json.loads(to_document(plan, ROWS, "ctr.heterps"))


def test_the_keys_are_these():
    assert set(document()) == {
        "format_version", "model", "directory", "cluster", "currency", "mode", "backend", "method", "seed", "batch",
        "precision",
        "min_throughput_samples_per_s", "budget_per_hour", "objective", "bound", "bound_holds_for", "gap",
        "bound_of_all_orders",
        "evaluations", "found_by", "throughput_samples_per_s", "price_usd_per_hour", "usd_per_million_samples",
        "price_per_hour",
        "price_per_million_samples", "stages", "layers", "schedule", "parameter_servers", "tables", "verification",
        "unused_devices", "replicated_parameters", "notes", "search_s", "total_s", "steady_state", "one_batch_alone",
        "other_objective", "idle_units",
    }  # fmt: skip


def test_the_document_is_this_byte_for_byte(golden):
    """With a stage of two device types, which has keys that others lack, and one whose files are not known."""
    mixed = (
        TypeReplicas("v100", "gpu", 1, 0.75, 0.003, 0.0005, 2.42, 0.0005, 0.001),
        TypeReplicas("t4", "gpu", 2, 0.25, 0.002, 0.0004, 0.7, 0.001, 0.002),
    )
    plan = with_stage(SAVED, 1, mixed=mixed, replicas=3, price_per_hour=3.12, recompute=True)
    files = (SAVED.artifacts[0] + (Artifact("stage_0.onnx.data", "f" * 64),), SAVED.artifacts[1])
    golden("report/document.json", to_document(replace(plan, artifacts=files), ROWS, "ctr.heterps") + "\n")


def test_the_keys_inside_are_these():
    found = document()
    assert set(found["objective"]) == {"name", "value", "unit"}
    compared = {"outputs", "calls", "gradients", "samples", "samples_max_rel"}
    assert set(found["verification"]) == {"max_abs", "max_rel", "gradients_max_rel", "tolerance", *compared}
    assert set(found["steady_state"]) == {"batch_s", "throughput_samples_per_s", "bubble"}
    assert set(found["one_batch_alone"]) == {"batch_s", "throughput_samples_per_s", "bubble"}
    assert set(found["schedule"]) == {"name", "micro_batches", "step_s", "bubble", "reason"}
    assert set(found["stages"][0]) == {
        "device", "replicas", "layers", "time_s", "compute_s", "data_s", "all_reduce_s", "handling_s",
        "update_s", "pull_s", "push_s", "throughput_samples_per_s", "memory_bytes", "recompute", "price_per_hour",
        "artifact", "files",
    }  # fmt: skip
    assert set(found["layers"][0]) == {
        "name", "kind", "stage", "device", "parameters", "parameter_bytes", "flops", "moved_bytes", "flop_per_byte",
        "intensity", "reason",
    }  # fmt: skip


def test_the_numbers_are_the_plan_s():
    found = document()
    assert found["objective"] == {"name": "cost", "value": PLAN.value, "unit": "USD per million samples"}
    assert found["price_usd_per_hour"] == pytest.approx(2.90)
    assert found["usd_per_million_samples"] == pytest.approx(2.90 / 3600 / 16000 * 1e6)
    assert found["gap"] == pytest.approx(1 - 0.05 / PLAN.value)
    assert [stage["artifact"] for stage in found["stages"]] == ["stage_0.onnx", "stage_1.onnx"]
    assert found["stages"][0]["time_s"] == 0.004
    assert found["stages"][0]["memory_bytes"] == 1209831
    assert found["layers"][1] == {
        "name": "fc1",
        "kind": "gemm",
        "stage": 1,
        "device": "v100",
        "parameters": 928,
        "parameter_bytes": 3712,
        "flops": 120832,
        "moved_bytes": 19328,
        "flop_per_byte": 120832 / 19328,
        "intensity": "compute",
        "reason": "9.1 FLOP/B >= 7 (ridge of cpu)",
    }


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
