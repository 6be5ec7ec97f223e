"""Runs whose replicas or servers are out of step, and which are killed, end with every update in their weights, once.

Gradients of the model do not hang on its weights, so that after SGD they are what they were less all gradients,
in whatever order those came and however old the weights were that they were made with.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import heterps
from safetensors.torch import load_file
from torch import Tensor, nn

import heterps_compile
from heterps_compile.runtime.data.model_inputs import InputSpec
from heterps_compile.runtime.data.open_source import open_source

pytestmark = pytest.mark.slow  # runs of three processes that are started again

BATCH, MICRO_BATCHES, STEPS, EVERY, ROWS, RATE = 16, 4, 11, 2, 20, 0.05
DATA = f"random:ids<{ROWS},label=float32<2"
TRAINING = f"""
import os, pathlib, signal
import torch

def loss(outputs, batch):
    return (outputs * batch["label"]).mean()

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr={RATE})

def on_step(report):
    for step in (5, 8):
        mark = pathlib.Path(f"{{FOLDER}}/killed-{{step}}")
        if report.step == step and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


class Additive(nn.Module):
    """A table and a product, added up."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ROWS, 3)
        self.product = nn.Linear(5, 3, bias=False)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return (self.table(ids).sum(1) + self.product(x)).sum(1)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    example = torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, 5)
    made = heterps_compile.compile(Additive(), example, mode="training", min_stages=1, max_stages=1, verify=False)
    made.save(folder / "model.heterps")
    return folder


def all_updates() -> dict[str, Tensor]:
    """Return the weights after all steps of one process."""
    model, wanted = Additive(), {"ids": InputSpec("int64", (2,)), "x": InputSpec("float32", (5,))}
    samples = open_source(DATA, wanted=wanted, seed=0).read(0, STEPS * BATCH, ("ids", "x", "label"))
    ((model(samples["ids"], samples["x"]) * samples["label"]).sum() / BATCH).backward()
    return {name: (p - RATE * p.grad).detach() for name, p in model.named_parameters() if p.grad is not None}


def trained(written: Path, folder: Path, *words: str) -> tuple[str, Path]:
    """Run until the end, with two ranks killed on the way; give what was told, and the last checkpoint."""
    (folder / "train.py").write_text(TRAINING.replace("{FOLDER}", str(folder)))
    size = ("--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES), "--replicas", "2", "--steps", str(STEPS))
    often = ("--checkpoint", str(folder / "ck"), "--every", str(EVERY), "--restarts", "2", "-q")
    run = heterps(
        *("run", "model.heterps", "--train", str(folder / "train.py"), "--data", DATA, *size, *often, *words),
        cwd=written,
        OMP_NUM_THREADS="1",
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("restart ") >= 2, run.stderr
    assert {path.name for path in folder.glob("killed-*")} == {"killed-5", "killed-8"}
    return run.stderr, folder / "ck" / f"step-{STEPS:06d}"


def assert_all_there(found: Mapping[str, Tensor], names: set[str]) -> None:
    expected = all_updates()
    for name in names:
        assert torch.allclose(found[name], expected[name], atol=1e-6), name


@pytest.mark.parametrize("every", [1, 3])
def test_averaging_beside_a_training_that_is_killed_loses_no_update(written, tmp_path, every):
    _, last = trained(written, tmp_path, "--sync", f"shadow(every={every}, rule=average)")
    weights = {k: v for file in last.glob("weights-*.safetensors") for k, v in load_file(file).items()}
    assert_all_there(weights, {"table.weight", "product.weight"})


def test_servers_of_stale_rows_lose_no_update_where_workers_are_killed(written, tmp_path):
    servers = ("--parameter-servers", "1", "--server-learning-rate", str(RATE), "--staleness", "2")
    _, last = trained(written, tmp_path, *servers)
    weights = {k: v for file in last.glob("weights-*.safetensors") for k, v in load_file(file).items()}
    (table,) = (last / "servers").glob("*.npy")
    assert_all_there(weights | {"table.weight": torch.from_numpy(np.load(table))}, {"table.weight", "product.weight"})
