"""``heterps-compile sync`` and ``--sync`` as a user runs them."""

import json

import numpy as np
import onnx
import pytest
from commands import heterps
from onnx import TensorProto, helper, numpy_helper

WIDTH = 1024
PLANNED = ("--mode", "training", "--backend", "torch", "--batch", "8192", "--min-throughput", "400000", "--no-verify")
PLANNED = (*PLANNED, "--method", "exact")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a model of three products and its plan on V100s."""
    where = tmp_path_factory.mktemp("sync")
    weights = [numpy_helper.from_array(np.zeros((WIDTH, WIDTH), np.float32), f"w{number}") for number in range(3)]
    nodes = [helper.make_node("MatMul", [f"v{n}", f"w{n}"], [f"v{n + 1}"], name=f"fc{n}") for n in range(3)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("v0", "v3")]
    graph = helper.make_graph(nodes, "wide", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, where / "m.onnx")
    done = heterps("m.onnx", *PLANNED, "-o", "out", cwd=where)
    assert done.returncode == 0, done.stderr
    return where


@pytest.mark.slow  # a compilation of seconds
def test_every_rule_is_compared_on_a_plan(folder):
    done = heterps("sync", "m.onnx", "--plan", "out", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert max(stage["replicas"] for stage in document["stages"]) > 1
    rules = {row["rule"]: row for row in document["rules"]}
    assert list(rules)[:2] == ["all-reduce", "topk(density=0.01)"]
    assert rules["topk(density=0.01)"]["step_s"] < rules["all-reduce"]["step_s"]
    planned = heterps("m.onnx", *PLANNED, "--sync", "topk(density=0.01)", "-o", "topk", "--json", cwd=folder)
    assert planned.returncode == 0, planned.stderr
    plan = json.loads((folder / "topk" / "plan.json").read_text())
    assert plan["estimates"]["schedule"]["step_s"] == rules["topk(density=0.01)"]["step_s"]
    changed = heterps("diff", "out", "topk", "--fail-on", "rules", cwd=folder)
    assert changed.returncode == 1
    assert "agrees by topk(density=0.01), agreed by all-reduce" in changed.stdout
    checked = heterps("check", "m.onnx", "--against", "topk", cwd=folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
