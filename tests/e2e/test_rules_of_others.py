"""A third party's rule, installed as a package: planned with a bound, compared, run, and told where it is missing."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import cold_heterps as heterps
from onnx import TensorProto, helper, numpy_helper
from wording import names

pytestmark = pytest.mark.slow  # six commands

RULE = """
from dataclasses import dataclass

from heterps_compile.sync_rules.all_reduce_rule import ring_exchange
from heterps_compile.sync_rules.amounts import Amounts
from heterps_compile.sync_rules.rule import BOUNDED, SyncRule

@dataclass(frozen=True)
class Half(SyncRule):
    name = "half"
    example = "half"

    @property
    def exactness(self):
        return BOUNDED

    def exchange(self, group):
        return ring_exchange(group.gradient_bytes // 2, group.replicas, group.network)

    def amounts(self, group):
        return Amounts(ring_bytes=group.gradient_bytes // 2)
"""
RUNTIME = """
import torch

from heterps_compile.runtime.sync.capabilities import Capabilities
from heterps_compile.runtime.sync.contract import Rule

class Half(Rule):
    can = Capabilities(sums=True)

    def __init__(self, shared, asked):
        super().__init__(shared, asked)
        self.works = []

    def after_backward(self, flats, scale):
        for flat in flats:
            half = flat.tensor.to(torch.float16)
            self.works.append((flat.tensor, half, self.shared.group.sum(half)))

    def finish(self):
        for tensor, half, work in self.works:
            work.wait()
            tensor.copy_(half)
        self.works.clear()
"""
ENTRIES = """
[heterps_compile.sync_rules]
half = half_rule:Half
[heterps_compile.sync_runtimes]
half = half_runtime:Half
"""
TRAINING = """
import torch

def loss(outputs, batch):
    return (outputs[0] ** 2).mean()

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=0.05)
"""
WIDTH = 1024
PLANNED = ("--mode", "training", "--backend", "torch", "--batch", "8192", "--min-throughput", "400000", "--no-verify")
PLANNED = (*PLANNED, "--max-stages", "1", "--method", "exact")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, a training file and an installed package."""
    where = tmp_path_factory.mktemp("others")
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 32, f"w{n}") for n in range(2)
    ]
    nodes = [helper.make_node("MatMul", [f"v{n}", f"w{n}"], [f"v{n + 1}"], name=f"fc{n}") for n in range(2)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("v0", "v2")]
    graph = helper.make_graph(nodes, "wide", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), where / "m.onnx")
    (where / "train.py").write_text(TRAINING)
    package = where / "site"
    (package / "half-1.0.dist-info").mkdir(parents=True)
    (package / "half-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 1.0\n")
    (package / "half-1.0.dist-info" / "entry_points.txt").write_text(ENTRIES)
    (package / "half_rule.py").write_text(RULE)
    (package / "half_runtime.py").write_text(RUNTIME)
    return where


def test_a_rule_of_a_package_is_planned_compared_and_run(folder: Path) -> None:
    site = {"PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1"}
    planned = heterps("m.onnx", *PLANNED, "--sync", "half", "-o", "out", cwd=folder, **site)
    assert planned.returncode == 0, planned.stderr
    plan = json.loads((folder / "out" / "plan.json").read_text())
    [stage] = plan["decisions"]["stages"]
    assert stage["sync"] == "half"
    assert plan["estimates"]["bound"] > 0
    assert not any("no bound is proven" in note for note in plan["notes"])
    compared = heterps("sync", "m.onnx", "--plan", "out", "--rule", "half", "--json", cwd=folder, **site)
    assert compared.returncode == 0, compared.stderr
    usual, half = json.loads(compared.stdout)["rules"]
    assert half["rule"] == "half"
    assert 2 * half["sent_bytes"][0] == usual["sent_bytes"][0]
    asked = (
        "run",
        "out",
        "--train",
        "train.py",
        "--data",
        "random:v0=float32[1024]",
        "--batch",
        "16",
        "--micro-batches",
        "2",
    )
    run = heterps(*asked, "--replicas", "2", "--steps", "2", "--log", "run.jsonl", cwd=folder, **site)
    assert run.returncode == 0, run.stderr
    assert "half" in run.stdout + run.stderr
    steps = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    assert {step["sync_bytes"]["0"] for step in steps} == {2 * 4 * WIDTH * WIDTH}  # 2 (k - 1) S of float16
    missing = heterps("m.onnx", *PLANNED, "--sync", "half", cwd=folder)
    assert missing.returncode == 1
    assert names(missing.stderr, "rule 'half'")
