"""A training that validates is a plain loop's: metrics, plateau, the best checkpoint, stopping, hooks, what is told."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim.lr_scheduler import ReduceLROnPlateau
from written_ctrdnn import (
    BATCH,
    DATA,
    LEARNING_RATE,
    MICRO_BATCH,
    MICRO_BATCHES,
    MOMENTUM,
    TRAINING_FILE,
    model,
    samples,
    write_ctrdnn,
)

import heterps_compile
from heterps_compile.runtime.checkpoint.best import find_best
from heterps_compile.runtime.checkpoint.format import open_checkpoint

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
pq = pytest.importorskip("pyarrow.parquet")

FIRST, COUNT = 5000, 50  # of the samples that are validated on; no multiple of a micro-batch
EVERY, STOP_AFTER = 2, 2
MORE = """
import json
from pathlib import Path

class Sum:
    def __init__(self): self.reset()
    def reset(self): self.total = 0.0
    def update(self, outputs): self.total += float(outputs.sum())
    def compute(self): return self.total

total = Sum()

def metrics(outputs, batch):
    assert not outputs.requires_grad
    total.update(outputs)
    return {"total": total, "share": (outputs > 0).float().mean()}

def scheduler(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)

def say(**what):
    with open(Path(__file__).parent / "seen.jsonl", "a") as file:
        file.write(json.dumps(what) + "\\n")

def on_step(report):
    say(stepped=report.step, loss=report.loss, took=report.step_s > 0)

def on_validation(report):
    say(step=report.step, metrics=dict(report.metrics), rates=report.learning_rates, best=report.best.step)

def on_checkpoint(folder, report):
    say(folder=folder.name, whole=(folder / "state.json").exists(), step=report.step, is_best=report.is_best)
"""


def write_validation(folder: Path) -> Path:
    arrays: dict[str, Any] = {}
    for name, column in samples(FIRST, COUNT).items():
        flat = pa.array(column.flatten().numpy())
        arrays[name] = flat if column.dim() == 1 else pa.FixedSizeListArray.from_arrays(flat, column.shape[1])
    pq.write_table(pa.table(arrays), folder / "valid.parquet")
    return folder / "valid.parquet"


def in_a_plain_loop(steps: int) -> list[dict[str, Any]]:
    """Train and validate in one process on the same batches; give what every validation came to."""
    torch.set_num_threads(1)
    built, _ = model()
    optimizer = torch.optim.SGD(built.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    plateau = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    told = []
    for step in range(steps):
        built.train()
        optimizer.zero_grad()
        for micro_batch in range(MICRO_BATCHES):
            batch = samples(step * BATCH + micro_batch * MICRO_BATCH, MICRO_BATCH)
            loss = binary_cross_entropy_with_logits(built(batch["sparse"], batch["dense"]), batch["label"])
            (loss / MICRO_BATCHES).backward()
        optimizer.step()
        if (step + 1) % EVERY == 0:
            built.eval()
            with torch.no_grad():
                batch = samples(FIRST, COUNT)
                outputs = built(batch["sparse"], batch["dense"])
            found = {
                "loss": float(binary_cross_entropy_with_logits(outputs, batch["label"])),
                "total": float(outputs.sum()),
                "share": float((outputs > 0).float().mean()),
            }
            plateau.step(found["loss"])
            told.append({"step": step + 1, "metrics": found, "rates": [optimizer.param_groups[0]["lr"]]})
    return told


def run_in(folder: Path, compiled: Path, **options: Any) -> Any:
    return heterps_compile.run(
        compiled,
        train=folder / "train.py",
        data=DATA,
        validate=str(folder / "valid.parquet"),
        validate_every=EVERY,
        batch=BATCH,
        micro_batches=MICRO_BATCHES,
        checkpoint=str(folder / "ck"),
        keep=1,
        keep_best="loss",
        stop_after=STOP_AFTER,
        log=str(folder / "log.jsonl"),
        quiet=True,
        **options,
    )


@pytest.mark.slow  # a run until it stops by itself, which tells of every step
def test_a_run_validates_stops_and_keeps_the_best_as_a_plain_loop_would(tmp_path):
    compiled = write_ctrdnn(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING_FILE + MORE)
    write_validation(tmp_path)
    result = run_in(tmp_path, compiled, steps=40, replicas=(2, 1))
    expected = in_a_plain_loop(result.steps)
    losses = [one["metrics"]["loss"] for one in expected]
    best = min(range(len(losses)), key=losses.__getitem__)
    # it ends with the second validation in a row that is none better, and no earlier
    assert result.stopped_after == STOP_AFTER
    assert best == len(losses) - 1 - STOP_AFTER
    assert [one.step for one in result.validations] == [one["step"] for one in expected]
    for ours, theirs in zip(result.validations, expected, strict=True):
        assert ours.samples == COUNT
        assert list(ours.metrics) == ["loss", "total", "share"]
        assert all(
            abs(ours.metrics[name] - value) < 1e-5 * max(1, abs(value)) for name, value in theirs["metrics"].items()
        )
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    stepped = [one for one in seen if "stepped" in one]
    assert [one["stepped"] for one in stepped] == list(range(1, result.steps + 1))
    assert all(one["took"] for one in stepped)
    validations = [one for one in seen if "metrics" in one]
    assert [one["metrics"] for one in validations] == [dict(one.metrics) for one in result.validations]
    assert [one["rates"] for one in validations] == [one["rates"] for one in expected]
    assert validations[-1]["rates"] != [LEARNING_RATE]  # the plateau has been stepped, on rank 0, which knows no loss
    assert validations[-1]["best"] == result.best_step == expected[best]["step"]
    checkpoints = [one for one in seen if "folder" in one]
    assert all(one["whole"] for one in checkpoints)
    assert [one["step"] for one in checkpoints] == [*(v.step for v in result.validations if v.is_best), result.steps]
    left = sorted(path.name for path in (tmp_path / "ck").iterdir() if path.is_dir())
    assert left == [f"step-{result.best_step:06d}", f"step-{result.steps:06d}"]
    assert find_best(tmp_path / "ck") == Path(result.best_checkpoint)
    kept = [open_checkpoint(tmp_path / "ck" / name).state for name in left]
    assert [state.metrics for state in kept] == [dict(result.validations[i].metrics) for i in (best, -1)]
    assert kept[-1].validations == len(losses)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [one["loss"] for one in stepped] == [line["loss"] for line in lines if "step" in line]
    told = [line for line in lines if "validation" in line]
    assert [line["validation"] for line in told] == [dict(one.metrics) for one in result.validations]
    assert [lines[lines.index(line) - 1]["step"] + 1 for line in told] == [line["after_steps"] for line in told]
