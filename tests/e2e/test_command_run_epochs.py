"""``heterps-compile run --epochs`` on data() of the training file: the samples are those of a plain loop."""

import runpy

import pytest
import torch
from commands import heterps
from safetensors.torch import save_file
from torch.nn.functional import binary_cross_entropy_with_logits
from written_ctrdnn import (
    BATCH,
    DENSE,
    FIELDS,
    LEARNING_RATE,
    MICRO_BATCHES,
    MOMENTUM,
    ROWS,
    TRAINING_FILE,
    largest_difference,
    model,
    weights_in,
    write_ctrdnn,
)

pytestmark = pytest.mark.slow  # three runs of processes

SAMPLES, EPOCHS = 36, 4
STEPS = SAMPLES * EPOCHS // BATCH
DATA = f"""
from torch.utils.data import DataLoader

def rows():
    chance = torch.Generator().manual_seed(5)
    sparse = torch.randint({ROWS}, ({SAMPLES}, {FIELDS}), generator=chance)
    dense, label = torch.randn({SAMPLES}, {DENSE}, generator=chance), torch.randint(2, ({SAMPLES},), generator=chance)
    return [{{"sparse": s, "dense": d, "label": l.float()}} for s, d, l in zip(sparse, dense, label)]

def data():
    return DataLoader(rows(), batch_size=10, shuffle=True, generator=torch.Generator().manual_seed(6))
"""
WORDS = (
    "run", "model2.heterps", "--train", "train.py", "-q", "--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES),
)  # fmt: skip


def test_epochs_of_a_loader_are_those_of_a_plain_loop_also_when_a_run_resumes_in_one(tmp_path):
    write_ctrdnn(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING_FILE + DATA)
    for more in (("--steps", "5", "--replicas", "2,1"), ("--epochs", str(EPOCHS), "--replicas", "1,2", "--resume")):
        run = heterps(*WORDS, *more, "--checkpoint", "ck", cwd=tmp_path)
        assert run.returncode == 0, run.stderr
    loader = runpy.run_path(str(tmp_path / "train.py"))["data"]()
    batches = [batch for _ in range(EPOCHS) for batch in loader]
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    assert largest_difference(weights_in(tmp_path / "ck" / f"step-{STEPS:06d}"), trained(whole)) < 1e-6


def test_a_run_begins_with_a_state_dict_and_a_label_of_whole_numbers_is_explained(tmp_path):
    write_ctrdnn(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING_FILE + DATA)
    start = {name: tensor * 0.5 for name, tensor in model()[0].state_dict().items()}
    save_file(start, tmp_path / "init.safetensors")
    words = (*WORDS, "--weights", "init.safetensors", "--steps", "1")
    run = heterps(*words, "--checkpoint", "ck", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    batches = list(runpy.run_path(str(tmp_path / "train.py"))["data"]())
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    assert largest_difference(weights_in(tmp_path / "ck" / "step-000001"), trained(whole, 1, start)) < 1e-6
    (tmp_path / "train.py").write_text(TRAINING_FILE + DATA.replace("l.float()", "l"))
    run = heterps(*words, cwd=tmp_path)
    assert run.returncode == 1
    assert "types=label:float" in run.stderr and "'label' from 0 to 1" in run.stderr  # noqa: PT018


def trained(
    columns: dict[str, torch.Tensor], steps: int = STEPS, start: dict[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    built, _ = model()
    if start is not None:
        built.load_state_dict(start)
    built.train()
    optimizer = torch.optim.SGD(built.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    for step in range(steps):
        sparse, dense, label = (columns[name][step * BATCH :][:BATCH] for name in ("sparse", "dense", "label"))
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(built(sparse, dense), label).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in built.state_dict().items()}
