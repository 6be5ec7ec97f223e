"""``heterps-compile run --train`` through stages of torch and of jax: as one process, and on with other backends."""

import inspect
from pathlib import Path

import pytest
import torch
from commands import heterps
from safetensors.torch import load_file
from wording import names
from written_ctrdnn import (
    BATCH,
    DATA,
    MICRO_BATCH,
    MICRO_BATCHES,
    largest_difference,
    model,
    samples,
    trained_in_one_process,
    weights_in,
    write_ctrdnn,
)

STEPS = 6
SIZE = ("--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES))


def scheduler(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a folder with the model in torch, in torch and jax, and the training file with a scheduler."""
    folder = tmp_path_factory.mktemp("written")
    write_ctrdnn(folder)
    for backend in ("torch", "jax", "onnxruntime"):
        write_ctrdnn(folder, dense_backend=backend)
    with (folder / "train.py").open("a") as file:
        file.write("\n\n" + inspect.getsource(scheduler))
    return folder


def train(folder: Path, compiled: str, *words: str, steps: int = STEPS, replicas: str = "1,2"):
    run = ("run", compiled, "--train", "train.py", "--data", DATA, "--steps", str(steps), "--replicas", replicas, "-q")
    return heterps(*run, *SIZE, *words, cwd=folder, OMP_NUM_THREADS="1")


@pytest.mark.slow  # several runs, one after the other
@pytest.mark.parametrize("order", [("jax", "model2", "jax"), ("model2", "jax", "jax")])
def test_training_goes_on_with_another_backend(written, tmp_path, order):
    words = ("--checkpoint", str(tmp_path / "ck"), "--clip-norm", "0.05")
    for compiled, steps in zip(order, (2, 4, STEPS), strict=True):
        run = train(written, f"{compiled}.heterps", *words, "--resume", steps=steps)
        assert run.returncode == 0, run.stderr
    last = tmp_path / "ck" / f"step-{STEPS:06d}"
    theirs = trained_in_one_process(STEPS, clip_norm=0.05, scheduler=scheduler)
    assert largest_difference(weights_in(last), theirs) < 1e-6
    words = ("--data", DATA, "--steps", "1", "--output", str(tmp_path / "out"), "--weights", str(last), "-q")
    size = ("--batch", str(MICRO_BATCH), "--micro-batches", "1", "--replicas", "1,1")
    run = heterps("run", "jax.heterps", *words, *size, cwd=written, OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    built, _ = model()
    built.load_state_dict(theirs)
    read = samples(0, MICRO_BATCH)
    (found,) = load_file(tmp_path / "out" / f"sample-{0:012d}.safetensors").values()
    torch.testing.assert_close(found, built(read["sparse"], read["dense"]).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow  # several runs, one after the other
def test_tables_on_parameter_servers_beside_a_stage_of_jax(written, tmp_path):
    servers = ("--parameter-servers", "2", "--server-learning-rate", "0.05")
    ends = []
    for compiled in ("torch", "jax"):
        run = train(written, f"{compiled}.heterps", *servers, "--checkpoint", str(tmp_path / compiled))
        assert run.returncode == 0, run.stderr
        ends.append(weights_in(tmp_path / compiled / f"step-{STEPS:06d}"))
    assert [name for name in ends[0] if name.startswith("tables.")] == []
    assert largest_difference(ends[1], ends[0]) < 1e-6


@pytest.mark.slow  # it needs the models of the others
def test_a_stage_of_onnx_runtime_is_refused(written):
    run = train(written, "onnxruntime.heterps")
    assert run.returncode == 1
    assert names(run.stderr, "stage 1", "onnxruntime", "--backend torch")
