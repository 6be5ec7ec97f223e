"""Models of both families compiled for jax, by the command and by the library."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
from commands import heterps
from onnx_files import click_model, save

import heterps_compile


def test_the_command_writes_stages_of_jax_that_give_what_the_model_gives(tmp_path: Path) -> None:
    save(click_model(), tmp_path / "model.onnx")
    run = heterps(
        "model.onnx", "--batch", "8", "--min-stages", "2", "--method", "greedy", "--backend", "jax", cwd=tmp_path
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "verified" in run.stdout
    folder = tmp_path / "model.heterps"
    plan = json.loads((folder / "plan.json").read_text())
    assert [[file["file"] for file in stage] for stage in plan["artifacts"]] == [
        ["stage_0_jax.py", "stage_0.safetensors"],
        ["stage_1_jax.py", "stage_1.safetensors"],
    ]
    rng = np.random.default_rng(1)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    inputs = {
        value.name: rng.integers(0, 5, (8, *value.shape[1:]))
        if "int" in value.type
        else rng.standard_normal((8, *value.shape[1:])).astype(np.float32)
        for value in session.get_inputs()
    }
    found = heterps_compile.load(folder).run(**inputs)
    for ours, theirs in zip(found, session.run(None, inputs), strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-5, atol=1e-6)
