"""The command with a backend for each device type: an ONNX model whose stages run on two of them."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
from commands import heterps
from onnx_files import click_model, save

import heterps_compile
from heterps_compile.backends.borders import as_array


def test_stages_of_one_model_on_two_backends(tmp_path: Path) -> None:
    save(click_model(), tmp_path / "click.onnx")
    pins = ["--pin", "embedding=cpu-core", "--pin", "fc*=v100"]
    words = ["--backend", "cpu=onnxruntime,v100=torch", "--batch", "8", "--method", "exact", "-o", "out", "-q", *pins]
    done = heterps("click.onnx", *words, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("out\n", 0), done.stderr
    stages = json.loads((tmp_path / "out" / "plan.json").read_text())["decisions"]["stages"]
    assert [(stage["kind"], stage["backend"]) for stage in stages] == [("cpu", "onnxruntime"), ("gpu", "torch")]
    assert {path.name for path in (tmp_path / "out").glob("stage_*")} == {
        "stage_0.onnx", "stage_1.py", "stage_1.safetensors"
    }  # fmt: skip
    inputs = {"ids": np.arange(32).reshape(8, 4) % 100, "dense": np.ones((8, 16), np.float32)}
    (whole,) = onnxruntime.InferenceSession(tmp_path / "click.onnx").run(None, inputs)
    (found,) = heterps_compile.load(tmp_path / "out").run(**inputs)
    np.testing.assert_allclose(as_array(found, "click"), whole, rtol=1e-5, atol=1e-6)
