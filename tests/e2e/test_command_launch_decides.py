"""A run of a folder of `machines -o` loses a node of Ray and decides to wait for another, which joins."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from processes import PATIENCE_S, ROOT, begin_command, end_of, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # Ray's own processes take long to start

STORE_BYTES = 80 * 2**20
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
COLUMNS = (
    "provider,region,instance,gpu,gpus,cores,memory_gib,gpu_memory_gib,network_gbit_per_s,inner_gbyte_per_s,"
    "price_usd_per_hour,spot_usd_per_hour,price_date,source"
)
OFFERS = f"""{COLUMNS}
aws,us-east-1,g4dn.xlarge,t4,1,4,16,16,25,,0.526,,2026-11-01,a test
"""
TRAIN = """
import os, time, torch

def loss(outputs, batch):
    while os.path.exists(HOLD):
        time.sleep(0.01)
    return (outputs[0] if isinstance(outputs, (list, tuple)) else outputs).square().mean()

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=1e-4)
"""


def heterps(folder: Path, words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "heterps_compile", *words.split()],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def write_model(path: Path) -> None:
    """Write three layers, which two machines train in about half the time of one where batches are large."""
    rng, sizes = np.random.default_rng(0), (64, 256, 256, 8)
    weights = [(rng.standard_normal(pair) / pair[0] ** 0.5).astype("float32") for pair in pairwise(sizes)]
    graph = helper.make_graph(
        [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"dense{i}") for i in range(3)],
        "layers",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("x3", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_a_run_waits_for_a_node_as_it_decides_and_takes_the_one_that_joins(tmp_path, monkeypatch):
    write_model(tmp_path / "m.onnx")
    (tmp_path / "offers.csv").write_text(OFFERS)
    (tmp_path / "train.py").write_text(f"HOLD = {str(tmp_path / 'hold')!r}\n{TRAIN}")
    # within a budget alone the fastest set is chosen: two machines, which are worth a wait
    heterps(
        tmp_path,
        "machines m.onnx --samples 1e12 --batch 4096 --budget 900 --max-machines 2 --catalogue offers.csv -o two",
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = pytest.importorskip("ray.cluster_utils").Cluster()
    node = {"num_cpus": 1, "resources": {"t4s": 1}, "object_store_memory": STORE_BYTES}
    try:
        cluster.add_node(**node, include_dashboard=False)
        lost = cluster.add_node(**node)
        words = (
            f"launch two --on ray --ray-address {cluster.address} --resource aws.us-east-1.g4dn.xlarge=t4s "
            "--max-restarts 3 --elastic 1:2 --decide m.onnx --catalogue offers.csv --spent 1.5 --train train.py "
            "--data random:x0=float32[64] --steps 30 --checkpoint ck --every 5 -q --log log.jsonl"
        )
        run = begin_command(tmp_path, *words.split())
        wait_for(lambda: any(int(found.name[5:]) >= 10 for found in tmp_path.glob("ck/step-*[0-9]")), run)
        (tmp_path / "hold").touch()
        cluster.remove_node(lost, allow_graceful=False)
        told: list[str] = []
        assert run.stderr is not None
        for line in run.stderr:
            told.append(line)
            if line.startswith("waiting for up to "):
                cluster.add_node(**node)
            if line.startswith("restart 1 of 3"):
                (tmp_path / "hold").unlink()
        code, _, _ = end_of(run, PATIENCE_S)
    finally:
        cluster.shutdown()
    said = "".join(told)
    assert code == 0, said
    assert "deciding whether to stay on the hosts that are left, to wait or to move\n" in said
    assert "lost: 1 of 2 g4dn.xlarge machines\n" in said
    assert "for 900.00 USD in all; 1.5" in said
    decided = next(line for line in told if " in all, " in line and " from now" in line)
    assert decided.startswith("wait for 2 x aws g4dn.xlarge in us-east-1"), said
    assert "waiting for up to 120 s for others in the place of those that were lost\n" in said
    assert ": replicas 2 on 2 hosts (" in next(line for line in told if line.startswith("restart 1 of 3"))
    assert (tmp_path / "ck" / "step-000030").is_dir()
