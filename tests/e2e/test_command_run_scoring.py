"""``run`` without ``--train`` scores as ``module.eval()`` does; a run goes on from whole checkpoints and data alone."""

from pathlib import Path

import pytest
import torch
from commands import heterps
from safetensors.torch import load_file
from torch import Tensor, nn
from wording import names
from written_ctrdnn import weights_in

import heterps_compile
from heterps_compile.runtime.data.parquet import ParquetSource

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
pq = pytest.importorskip("pyarrow.parquet")

TRAINING_FILE = """
import torch

def loss(outputs, batch):
    logits, others = outputs
    return (logits - batch["label"]).square().mean() + others.square().mean()

def optimizer(parameters):
    return torch.optim.Adam([parameter for _, parameter in parameters], lr=0.1)
"""
SAMPLES, BATCH = 2048, 32


class Dropping(nn.Module):
    """Dropout, a batch norm, and a second output for training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 16), nn.Tanh())
        self.head, self.other = nn.Linear(16, 1), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        hidden = self.layers(x)
        logits = self.head(hidden)[:, 0]
        return (logits, self.other(hidden)) if self.training else logits


def dropping(*, training: bool) -> Dropping:
    torch.manual_seed(0)
    return Dropping().train(training)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return a folder with a training of two stages, an evaluation of three, data, and checkpoints of two steps."""
    folder = tmp_path_factory.mktemp("trained")
    for name, stages in (("training", 2), ("inference", 3)):
        batch = torch.export.Dim("batch", min=2, max=1024)
        made = heterps_compile.compile(
            *(dropping(training=name == "training"), (torch.randn(BATCH, 8),)),
            mode=name,
            method="greedy",
            min_stages=stages,
            max_stages=stages,
            dynamic_shapes=({0: batch},),
        )
        made.save(folder / f"{name}.heterps")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 8, generator=generator)
    columns = {"x": pa.FixedSizeListArray.from_arrays(x.flatten().numpy(), 8), "label": x.sum(1).numpy()}
    pq.write_table(pa.table(columns), folder / "data.parquet")
    (folder / "train.py").write_text(TRAINING_FILE)
    run = train(folder, "2", "--every", "1")
    assert run.returncode == 0, run.stderr
    assert "Dropping: training, 2 stages" in run.stderr
    return folder


def train(folder: Path, steps: str, *words: str):
    what = ("--train", "train.py", "--data", "data.parquet", "--steps", steps, "--batch", str(BATCH))
    return heterps(
        *("run", "training.heterps", *what, "--micro-batches", "2", "--replicas", "1,1", "--checkpoint", "ck", *words),
        cwd=folder,
        OMP_NUM_THREADS="1",
    )


def scored(folder: Path, name: str, out: Path, *words: str) -> tuple[Tensor, str]:
    size = ("--steps", "1", "--batch", str(BATCH), "--micro-batches", "1")
    run = heterps(
        *("run", f"{name}.heterps", "--data", "data.parquet", *size, "--output", str(out), *words),
        cwd=folder,
        OMP_NUM_THREADS="1",
    )
    assert run.returncode == 0, run.stderr
    (file,) = out.glob("*.safetensors")
    (found,) = load_file(file).values()
    return found, run.stderr


@pytest.mark.slow  # several runs, one after the other
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("training", "Dropping: scoring in evaluation mode of a folder compiled for training, 2 stages"),
        ("inference", "was written by a model in another mode or of other code"),
    ],
)
def test_a_checkpoint_of_a_training_scores_in_its_folder_and_in_one_of_other_cuts(trained, tmp_path, name, said):
    found, stderr = scored(trained, name, tmp_path / "out", "--weights", "ck/step-000002")
    assert said in stderr
    module = dropping(training=False)
    module.load_state_dict(weights_in(trained / "ck" / "step-000002"))
    with torch.no_grad():
        wanted = module(ParquetSource(trained / "data.parquet").read(0, BATCH, ["x"])["x"])
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-6


def test_a_run_does_not_go_on_from_a_damaged_checkpoint_or_in_damaged_data(trained):
    path = trained / "ck" / "step-000002" / "optimizer-1.safetensors"
    kept = path.read_bytes()
    path.write_bytes(kept[:-4] + bytes(byte ^ 1 for byte in kept[-4:]))
    run = train(trained, "3", "--resume")
    assert run.returncode == 1
    assert names(run.stderr, "optimizer-1.safetensors'", "SHA-256 ")
    assert names(run.stderr, "'ck/step-000002'", "step-000001")
    path.write_bytes(kept)
    data = trained / "data.parquet"
    kept = data.read_bytes()
    data.write_bytes(kept[:40_000] + bytes(range(64)) + kept[40_064:])
    run = train(trained, "3", "--resume")
    assert run.returncode == 1
    assert names(run.stderr, "'data.parquet' with SHA-256 ")
    assert names(run.stderr, "of 'data.parquet'")
    data.write_bytes(kept)
    run = train(trained, "3", "--resume")
    assert run.returncode == 0, run.stderr
