"""Logs and checkpoints of runs that took place: a row of measurements, and a decision, are made of them."""

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterps_compile.errors import HeterpsError
from heterps_compile.machines import Goal, choose, compile_for, decide_for, row_of_run, rows_text, standing_of
from heterps_compile.machines.measured_runs import read_measured
from heterps_compile.offers import Catalogue, Offer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
GIB = 2**30
T4 = Offer(
    "aws", "us-east-1", "g4dn.xlarge", "t4", 1, 4, 16 * GIB, 16 * GIB, 1.25e9, 0.0, 0.526, None,
    dt.date(2026, 11, 1), "here",
)  # fmt: skip
TRAIN = """
import torch

def loss(outputs, batch):
    return outputs[0].square().mean() if isinstance(outputs, (list, tuple)) else outputs.square().mean()

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=1e-3)
"""


def written_model(path: Path, wide: int) -> str:
    """Write a model of one layer; return its path."""
    weight = numpy_helper.from_array(np.ones((32, wide), "float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="dense")],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", wide])],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


def test_a_run_that_went_on_from_its_checkpoint_is_measured_and_decided_about(tmp_path):
    model = written_model(tmp_path / "m.onnx", 8)
    offers, asked = Catalogue((T4,), "a test"), Goal(1e9, (64,), deadline_s=4e5, most_machines=1)
    compile_for(model, choose(model, asked, offers), tmp_path / "out", time_limit=1)
    (tmp_path / "train.py").write_text(TRAIN)
    words = (
        "run out --train train.py --data random:x=float32[32] --checkpoint ck --every 10 --resume --log log.jsonl -q"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for steps in (20, 35):  # the second goes on, and adds to the log
        ran = subprocess.run(
            [sys.executable, "-m", "heterps_compile", *words.split(), "--steps", str(steps)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
    row = row_of_run(tmp_path / "log.jsonl", tmp_path / "out")
    assert (row["gpu"], row["units"], row["machines"], row["batch"]) == ("t4", "1", "1", "64")
    (tmp_path / "runs.csv").write_text(rows_text([row]))
    measured = next(read_measured(tmp_path / "runs.csv"))
    assert measured.step_s == float(row["step_s"]) > 0
    assert measured.predicted_s == pytest.approx(float(row["predicted_s"]))
    standing = standing_of(tmp_path / "out", tmp_path / "ck")
    assert (standing.checkpoint, standing.samples, standing.notes) == ("step-000035", 35 * 64, ())
    assert decide_for(model, asked, standing, offers).decision.taken.course.kind == "stay"
    with pytest.raises(HeterpsError, match=r"other\.onnx'"):
        decide_for(written_model(tmp_path / "other.onnx", 16), asked, standing, offers)
    other = written_model(tmp_path / "other.onnx", 16)
    compile_for(other, choose(other, asked, offers), tmp_path / "other", time_limit=1)
    with pytest.raises(HeterpsError, match=r"step-000035.*'w'.*\[32, 8\].*\[32, 16\]"):
        standing_of(tmp_path / "other", tmp_path / "ck")
