"""``run`` on data that come in blocks, and on batches that come again: the papers' numbers, through checkpoints."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import heterps
from plain_rules import steady_models
from safetensors.torch import load_file
from torch import Tensor, nn
from wording import names

import heterps_compile

pytestmark = pytest.mark.slow  # some twenty runs of the command

BLOCKS, BATCH, RATE = 5, 4, 0.9
MM = f"local(steps=1, rule=mm, blocks={BLOCKS}, block_steps=1, skip=15)"
TRAINING = """
import torch

def loss(outputs, batch):
    return outputs.square().sum(1).mean() / 2

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr={rate}, momentum={momentum})
"""
KILLED = """
import os, pathlib, signal

def on_step(report):
    mark = pathlib.Path("{mark}")
    if report.step == {step} and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Centre(nn.Module):
    """Its weights are the one place that is nearest to all samples; in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.full((BLOCKS,), 100.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.place - x


def write(folder: Path, name: str, samples: Tensor) -> None:
    rows = pa.FixedSizeListArray.from_arrays(pa.array(samples.flatten().numpy()), BLOCKS)
    pq.write_table(pa.table({"x": rows}), folder / name)


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("centre")
    dynamic = {0: torch.export.Dim("batch")}
    heterps_compile.compile(
        Centre(),
        (torch.ones(BATCH, BLOCKS, dtype=torch.float64),),
        batch=BATCH,
        mode="training",
        backend="torch",
        method="greedy",
        min_throughput=1,
        max_stages=1,
        verify=False,
        dynamic_shapes=(dynamic,),
    ).save(folder / "m.heterps")
    (folder / "train.py").write_text(TRAINING.format(rate=RATE, momentum=0))
    (folder / "momentum.py").write_text(TRAINING.format(rate=0.1, momentum=0.9))
    centres = torch.eye(BLOCKS, dtype=torch.float64)
    write(folder, "blocks.parquet", centres.repeat_interleave(BATCH, 0))
    write(folder, "long_blocks.parquet", centres.repeat_interleave(4 * BATCH, 0))
    write(folder, "held_back.parquet", centres.repeat_interleave(3, 0))
    noise = torch.randn(8 * BATCH, BLOCKS, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    write(folder, "noise.parquet", noise)
    return folder


def train(folder: Path, data: str, *words: str, replicas: str = "2", code: int = 0):
    size = ("--batch", str(BATCH), "--micro-batches", "2", "--replicas", replicas)
    run = heterps(
        "run", "m.heterps", "--train", "train.py", "--data", data, *size, *words, cwd=folder, OMP_NUM_THREADS="1"
    )
    assert run.returncode == code, run.stderr
    return run


def files_of(checkpoint: Path) -> dict[str, dict[str, Tensor]]:
    return {file.name: load_file(file) for file in sorted(checkpoint.glob("*.safetensors"))}


def assert_same_bits(ours: Path, theirs: Path) -> None:
    one, other = files_of(ours), files_of(theirs)
    assert one.keys() == other.keys()
    for name, tensors in one.items():
        assert tensors.keys() == other[name].keys()
        assert all(torch.equal(tensor, other[name][key]) for key, tensor in tensors.items()), name
    read = [json.loads((folder / "state.json").read_text())["blocks"] for folder in (ours, theirs)]
    assert read[0] == read[1]


@pytest.mark.parametrize("replicas", ["2", "1"])
def test_predictors_are_those_of_the_paper_validated_on_their_blocks_and_exported(written, tmp_path, replicas):
    words = ("--sync", MM, "--epochs", "20", "--checkpoint", str(tmp_path / "ck"), "--validate", "held_back.parquet")
    run = train(written, "blocks.parquet", *words, "--log", str(tmp_path / "log.jsonl"), replicas=replicas)
    assert names(run.stderr, "15", "5 ", "4 ")
    centres, q = torch.eye(BLOCKS, dtype=torch.float64), 1 - RATE
    steady, found = steady_models(centres, q), []
    for block in range(BLOCKS):
        export = heterps("export", "ck", "--block", str(block + 1), "-o", f"block-{block}.safetensors", cwd=tmp_path)
        assert f"the predictor of block {block + 1} of 5 (5 averages)" in export.stdout
        found.append(load_file(tmp_path / f"block-{block}.safetensors")["place"])
        assert f"the predictor of block {block + 1} of 5" in (tmp_path / f"block-{block}.safetensors.md").read_text()
    assert torch.allclose(torch.stack(found), steady, rtol=0, atol=1e-12)
    export = heterps("export", "ck", "-o", "last.safetensors", cwd=tmp_path)
    assert "the last average of all blocks, not the predictor of one of the 5" in export.stdout
    last = load_file(tmp_path / "last.safetensors")["place"]
    assert torch.allclose(last, steady[-1], rtol=0, atol=1e-12)
    told = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = [line["validation"]["loss"] for line in told if "validation" in line]
    own = float((torch.stack(found) - centres).square().sum(1).mean() / 2)
    assert losses[-1] == pytest.approx(own, rel=1e-6)
    assert own < 0.02 * float((last - centres).square().sum(1).mean() / 2)
    assert losses[0] == pytest.approx(
        float((steady_models(centres, q)[-1] - centres).square().sum(1).mean() / 2), rel=0.1
    )
    scored = heterps(
        *("run", "m.heterps", "--data", "held_back.parquet", "--weights", str(tmp_path / "ck" / "step-000100")),
        *("--block", "2", "--batch", "3", "--micro-batches", "1", "--output", str(tmp_path / "out"), "--replicas", "1"),
        cwd=written,
    )
    assert scored.returncode == 0, scored.stderr
    assert names(scored.stderr, "block 2")
    (first, *_) = sorted((tmp_path / "out").glob("*.safetensors"))
    (outputs,) = load_file(first).values()
    assert torch.allclose(outputs, (steady[1] - centres[0]).expand_as(outputs), rtol=0, atol=1e-12)


def killed(written: Path, tmp_path: Path, data: str, words: Sequence[str], *, step: int) -> tuple[Path, Path]:
    """Train in one go, and with a process that is killed; return both folders of checkpoints."""
    file = str(written / "momentum.py")
    train(written, data, *words, "--train", file, "--checkpoint", str(tmp_path / "whole"), "-q")
    (tmp_path / "killed.py").write_text(Path(file).read_text() + KILLED.format(mark=tmp_path / "mark", step=step))
    often = ("--checkpoint", str(tmp_path / "killed"), "--every", "3", "--restarts", "1", "-q")
    run = train(written, data, *words, *often, "--train", str(tmp_path / "killed.py"))
    assert f"restart 1 of 1, from step-{step // 3 * 3:06d}" in run.stderr
    return tmp_path / "whole", tmp_path / "killed"


@pytest.mark.parametrize("rule", ["mm", "mc"])
def test_predictors_and_chains_go_on_to_the_bit_after_a_process_was_killed(written, tmp_path, rule):
    """In the third block, between two averages, and in the second cycle."""
    words = ("--sync", f"local(steps=2, rule={rule}, blocks=5, block_steps=4)", "--steps", "50")
    whole, parts = killed(written, tmp_path, "long_blocks.parquet", words, step=34)
    assert_same_bits(parts / "step-000050", whole / "step-000050")
    files = files_of(whole / "step-000050")
    assert ("chains-1.safetensors" in files) == (rule == "mc")
    assert sorted(name for name in files if name.startswith("block-")) == [
        f"block-{block}-0.safetensors" for block in range(1, BLOCKS + 1)
    ]


def test_chains_go_on_with_the_same_replicas_alone_and_predictors_with_others(written, tmp_path):
    blocks = "blocks=5, block_steps=4)"
    kept = ("--checkpoint", str(tmp_path / "ck"), "--resume", "-q")
    train(written, "long_blocks.parquet", "--sync", f"local(steps=2, rule=mc, {blocks}", "--steps", "20", *kept)
    asked = ("--sync", f"local(steps=2, rule=mc, {blocks}", "--steps", "24", *kept)
    run = train(written, "long_blocks.parquet", *asked, replicas="1", code=1)
    assert names(run.stderr, "2 replicas", " 1")
    mm = ("--sync", f"local(steps=2, rule=mm, {blocks}", "--steps", "24", *kept)
    before = files_of(tmp_path / "ck" / "step-000020")["block-4-0.safetensors"]["place"]
    train(written, "long_blocks.parquet", *mm, replicas="1")
    assert torch.equal(files_of(tmp_path / "ck" / "step-000024")["block-4-0.safetensors"]["place"], before)
    other = ("--sync", "local(steps=2, rule=mm, blocks=10, block_steps=2)", "--steps", "28", *kept)
    run = train(written, "long_blocks.parquet", *other, code=1)
    assert names(run.stderr, "step-000024", "5 blocks", " 10")


def test_data_that_are_no_cycle_are_refused_before_anything_starts(written):
    run = train(written, "blocks.parquet", "--sync", "local(steps=2, rule=mm, blocks=5, block_steps=2)", code=1)
    assert names(run.stderr, "blocks=5", "block_steps=2", " 20", " 40")
    run = train(written, "noise.parquet", "--sync", "adsaga(batches=9)", code=1)
    assert names(run.stderr, "batches=9", " 32", " 36", "batches=8")


def saga(samples: Tensor, order: Sequence[int], *, delay: int, rate: float, momentum: float = 0.0) -> Tensor:
    """One process, one table, one worker whose innovations come late: the recursion of the paper."""
    batches = samples.view(-1, BATCH, BLOCKS).mean(1)
    x, moved = torch.full((BLOCKS,), 100.0, dtype=torch.float64), torch.zeros(BLOCKS, dtype=torch.float64)
    table, mean, late = torch.zeros_like(batches), torch.zeros(BLOCKS, dtype=torch.float64), list[Tensor]()
    for batch in order:
        late.append(x - batches[batch] - table[batch])
        table[batch] = x - batches[batch]
        gradient = torch.zeros_like(x)
        if len(late) > delay:
            gradient = late.pop(0)
            gradient, mean = gradient + mean, mean + gradient / len(batches)
        moved = momentum * moved + gradient
        x = x - rate * moved
    return x


@pytest.mark.parametrize("delay", [0, 2])
def test_adsaga_takes_the_steps_of_its_paper_counts_its_bytes_and_goes_on_after_a_kill(written, tmp_path, delay):
    rule, noise = f"adsaga(batches=8, delay={delay})", pq.read_table(written / "noise.parquet")["x"].to_pylist()
    samples = torch.tensor(noise, dtype=torch.float64)
    words = ("--sync", rule, "--steps", "50", "--log", str(tmp_path / "log.jsonl"))
    whole, parts = killed(written, tmp_path, "noise.parquet", words, step=34)
    assert_same_bits(parts / "step-000050", whole / "step-000050")
    expected = saga(samples, [step % 8 for step in range(50)], delay=delay, rate=0.1, momentum=0.9)
    place = load_file(whole / "step-000050" / "weights-0.safetensors")["place"]
    assert torch.allclose(place, expected, rtol=0, atol=1e-9)
    own = load_file(whole / "step-000050" / "own-1.safetensors")
    assert own["table:place"].shape == (8, BLOCKS)
    assert ("pending:place" in own) == (delay > 0)
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    told = [line["sync_bytes"]["0"] for line in lines if "sync_bytes" in line]
    assert set(told) == {2 * 8 * BLOCKS}  # 2 (k - 1) S of two replicas


def test_adsaga_converges_where_all_reduce_stays_apart_also_in_another_order_every_epoch(written, tmp_path):
    samples = torch.tensor(pq.read_table(written / "noise.parquet")["x"].to_pylist(), dtype=torch.float64)
    (tmp_path / "train.py").write_text(TRAINING.format(rate=0.1, momentum=0))
    off = {}
    for name, *words in (
        ("sgd", "--sync", "all-reduce"),
        ("cyclic", "--sync", "adsaga(batches=8)"),
        ("mixed", "--sync", "adsaga(batches=8, delay=1)", "--shuffle", str(BATCH), "--seed", "5"),
    ):
        kept = ("--checkpoint", str(tmp_path / name), "--train", str(tmp_path / "train.py"), "-q")
        train(written, "noise.parquet", *words, *kept, "--epochs", "60")
        place = load_file(tmp_path / name / "step-000480" / "weights-0.safetensors")["place"]
        off[name] = float((place - samples.mean(0)).norm())
    batches, q = samples.view(8, BATCH, BLOCKS).mean(1), 0.9
    assert off["sgd"] == pytest.approx(float((steady_models(batches, q)[-1] - samples.mean(0)).norm()), rel=1e-6)
    assert off["sgd"] > 0.02
    assert off["cyclic"] < 1e-10
    assert off["mixed"] < 1e-10
