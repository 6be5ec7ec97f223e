"""The command turns an ONNX model into torch stages that nothing but PyTorch is needed to run."""

import subprocess
import sys
import textwrap
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


@pytest.mark.slow  # a fresh process imports everything
def test_the_stages_run_where_only_torch_and_safetensors_are(compiled: Path) -> None:
    script = textwrap.dedent(
        """
        import importlib.util, sys, torch
        values = {"ids": torch.zeros(8, 4, dtype=torch.int64), "dense": torch.ones(8, 16)}
        for index in range(3):
            spec = importlib.util.spec_from_file_location(f"stage_{index}", f"out/stage_{index}.py")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            stage = module.load()
            values.update(zip(stage.outputs, stage(*(values[name] for name in stage.inputs))))
        print(tuple(values["click"].shape), {"onnx", "onnx_ir", "heterps_compile"} & set(sys.modules))
        """
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=compiled, check=True, capture_output=True, text=True)
    assert run.stdout == "(8, 1) set()\n"
