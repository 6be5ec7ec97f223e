"""``heterps-compile simulate`` as a user runs it."""

import json
from dataclasses import replace

import pytest
from commands import heterps
from large_plan import large_findings

from heterps_compile.cluster.load import load_cluster
from heterps_compile.plan.file import to_json
from heterps_compile.plan.plan import PoolDevice
from heterps_compile.plan.provenance import hash_cluster


@pytest.fixture
def plan(tmp_path):
    made = large_findings(40, 4, training=True).plan
    stages = tuple(replace(stage, device="v100", kind="gpu") for stage in made.stages)
    trained = replace(
        made,
        stages=stages,
        other=None,
        devices=(PoolDevice("v100", "gpu", 2.42, 8, 32 * 2**30),),
        hashes={"cluster": hash_cluster(load_cluster(made.cluster))},
    )
    (tmp_path / "plan.json").write_text(to_json(trained))
    return tmp_path


def test_every_schedule_has_a_row_and_every_stage_its_memory(plan):
    done = heterps("simulate", "plan.json", cwd=plan)
    assert done.returncode == 0, done.stderr
    for word in ("gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "shortest", "stage 3: 2 x v100", "32 GiB"):
        assert word in done.stdout


def test_json_has_memory_over_time_and_the_trace_is_written(plan):
    done = heterps(
        "simulate", ".", "--schedule", "1f1b", "--micro-batches", "16", "--json", "--trace", "t.json", cwd=plan
    )
    assert done.returncode == 0, done.stderr
    (only,) = json.loads(done.stdout)["schedules"]
    assert (only["schedule"], only["micro_batches"]) == ("1f1b", 16)
    first = only["stages"][0]
    assert max(size for _, size in first["memory_over_time"][0]) == first["peak_bytes"]
    slices = [event for event in json.loads((plan / "t.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 4 * 16 * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--micro-batches", "7"], "7 micro-batches do not divide the plan's batch of 64; the nearest that do are 8"),
        (["--trace", "no/t.json"], "cannot write 'no/t.json'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(plan, words, said):
    done = heterps("simulate", "plan.json", *words, cwd=plan)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_simulating_needs_neither_torch_nor_onnx(plan):
    (plan / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    (plan / "onnx.py").write_text("raise SystemExit('onnx was imported')\n")
    assert heterps("simulate", "plan.json", cwd=plan, PYTHONPATH=str(plan)).returncode == 0
