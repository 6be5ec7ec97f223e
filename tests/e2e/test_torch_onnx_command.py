"""The command turns an ONNX model into torch stages that nothing but PyTorch is needed to run."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from commands import heterps
from onnx_files import click_model, save

import heterps_compile


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    save(click_model(), folder / "model.onnx")
    words = ("--batch", "8", "--min-stages", "3", "--method", "greedy", "--backend", "torch", "-o", "out")
    run = heterps("model.onnx", *words, cwd=folder)
    assert (run.returncode, run.stderr) == (0, "")
    return folder


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"ids": rng.integers(0, 100, (8, 4)), "dense": rng.standard_normal((8, 16), dtype=np.float32)}


def test_the_folder_loads_and_gives_onnx_runtimes_outputs(compiled: Path) -> None:
    session = onnxruntime.InferenceSession(str(compiled / "model.onnx"))
    (expected,) = session.run(None, inputs())
    (ours,) = heterps_compile.load(compiled / "out").run(**inputs())
    np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=1e-4, atol=1e-7)
