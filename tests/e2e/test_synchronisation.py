"""``run --sync``: replicas agree by rules, runs go on with them to the bit, also after a process was killed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from commands import heterps
from safetensors.torch import load_file
from wording import names
from written_ctrdnn import (
    BATCH,
    DATA,
    LEARNING_RATE,
    MICRO_BATCH,
    MICRO_BATCHES,
    MOMENTUM,
    largest_difference,
    model,
    samples,
    weights_in,
    write_ctrdnn,
)

from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rules import RULES as KNOWN

pytestmark = pytest.mark.slow  # some forty runs of the command

STEPS = 7
MM = "local(steps=3, rule=mm, blocks=2, block_steps=3)"
MC = "local(steps=3, rule=mc, blocks=2, block_steps=3)"
RULES = ("topk(density=0.1)", "powersgd(rank=1)", "adasum(on=step)", "local(steps=3)", MM, MC)
WITHOUT_STATE = ("all-reduce", "adasum")
KILLED = """
import os, pathlib, signal

def on_step(report):
    mark = pathlib.Path("{mark}")
    if report.step == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    write_ctrdnn(folder, stages=1)
    write_ctrdnn(folder, stages=2)
    return folder


def train(folder, *words, stages=1, steps=STEPS, replicas="2"):
    size = ("--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES), "--replicas", replicas)
    data = ("--data", DATA, "--steps", str(steps))
    run = heterps(
        *("run", f"model{stages}.heterps", "--train", "train.py", *data, *size, *words), cwd=folder, OMP_NUM_THREADS="1"
    )
    assert run.returncode == 0, run.stderr
    return run


def files_of(checkpoint: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {file.name: load_file(file) for file in sorted(checkpoint.glob("*.safetensors"))}


def assert_same_bits(ours: Path, theirs: Path) -> None:
    one, other = files_of(ours), files_of(theirs)
    assert one.keys() == other.keys()
    for name, tensors in one.items():
        assert tensors.keys() == other[name].keys()
        assert all(torch.equal(tensor, other[name][key]) for key, tensor in tensors.items()), name


@pytest.mark.parametrize("rule", [*WITHOUT_STATE, *RULES])
def test_a_run_that_is_stopped_or_killed_goes_on_to_the_bit(written, tmp_path, rule):
    sync, last = ("--sync", rule, "-q"), f"step-{STEPS:06d}"
    train(written, *sync, "--checkpoint", str(tmp_path / "whole"))
    for steps in (4, STEPS):
        train(written, *sync, "--checkpoint", str(tmp_path / "parts"), "--resume", steps=steps)
    assert_same_bits(tmp_path / "parts" / last, tmp_path / "whole" / last)
    killed = (written / "train.py").read_text() + KILLED.format(mark=tmp_path / "killed")
    (tmp_path / "killed.py").write_text(killed)
    often = ("--checkpoint", str(tmp_path / "killed_ck"), "--every", "2", "--restarts", "1")
    run = train(written, *sync, *often, "--train", str(tmp_path / "killed.py"))
    assert (tmp_path / "killed").exists()
    assert "restart 1 of 1, from step-000004" in run.stderr
    assert_same_bits(tmp_path / "killed_ck" / last, tmp_path / "whole" / last)


def test_a_run_whose_replicas_are_brought_together_beside_it_goes_on_after_one_was_killed(written, tmp_path):
    (tmp_path / "killed.py").write_text((written / "train.py").read_text() + KILLED.format(mark=tmp_path / "killed"))
    often = ("--checkpoint", str(tmp_path / "ck"), "--every", "2", "--restarts", "1", "-q")
    run = train(written, "--sync", "shadow(every=1)", *often, "--train", str(tmp_path / "killed.py"))
    assert "restart 1 of 1, from step-000004" in run.stderr
    assert f"{STEPS} steps, {STEPS * BATCH} samples" in run.stdout
    assert (tmp_path / "ck" / f"step-{STEPS:06d}" / "own-1.safetensors").exists()


def test_every_rule_is_killed_somewhere():
    elsewhere = {"shadow", "adsaga", "servers"}  # below, test_blocks_and_batches.py, test_no_lost_update.py
    assert {parse_rule(rule).name for rule in (*WITHOUT_STATE, *RULES)} | elsewhere == set(KNOWN)


def local_in_one_process(steps: int, every: int) -> dict[str, torch.Tensor]:
    """Train two models on the micro-batches of two replicas, and take their mean; return the mean at the end."""
    torch.set_num_threads(1)
    replicas = [model()[0].train() for _ in range(2)]
    optimizers = [torch.optim.SGD(one.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM) for one in replicas]

    def mean() -> dict[str, torch.Tensor]:
        first, second = (one.state_dict() for one in replicas)
        return {name: (first[name] + second[name]) / 2 for name in first}

    for step in range(steps):
        for place, (one, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            optimizer.zero_grad()
            for micro_batch in range(place, MICRO_BATCHES, 2):
                batch = samples(step * BATCH + micro_batch * MICRO_BATCH, MICRO_BATCH)
                outputs = one(batch["sparse"], batch["dense"])
                loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, batch["label"])
                (loss / (MICRO_BATCHES / 2)).backward()
            optimizer.step()
        if (step + 1) % every == 0:
            for one, state in [(one, mean()) for one in replicas]:
                one.load_state_dict(state)
    return mean()


def test_a_checkpoint_between_two_averages_has_their_mean_and_goes_on_with_one_replica(written, tmp_path):
    words = ("--sync", "local(steps=3)", "--checkpoint", str(tmp_path / "ck"))
    train(written, *words)
    checkpoint = tmp_path / "ck" / f"step-{STEPS:06d}"
    assert largest_difference(weights_in(checkpoint), local_in_one_process(STEPS, 3)) < 1e-6
    own = [load_file(checkpoint / f"own-{rank}.safetensors") for rank in range(2)]
    name = next(key for key in own[0] if key.startswith("weight:") and "tables" not in key)
    mean = weights_in(checkpoint)[name.removeprefix("weight:")]
    assert not torch.equal(own[0][name], own[1][name])
    assert torch.allclose((own[0][name] + own[1][name]) / 2, mean, atol=1e-7)
    run = train(written, *words, "--resume", steps=STEPS + 1, replicas="1")
    assert names(run.stderr, "replicas", "mean", "optimiser")


LAYERWISE = """
import torch
from torch.nn import functional as F
from heterps_compile.runtime.layerwise import Lamb

def loss(outputs, batch):
    return F.binary_cross_entropy_with_logits(outputs, batch["label"])

def optimizer(parameters):
    return Lamb([parameter for _, parameter in parameters], lr=0.02, weight_decay=0.01)
"""


@pytest.mark.parametrize("optimizer", ["Lamb", "Lars"])
def test_norms_that_replicas_share_out_go_on_to_the_bit_after_a_process_was_killed(written, tmp_path, optimizer):
    file = LAYERWISE.replace("Lamb", optimizer)
    (tmp_path / "train.py").write_text(file)
    (tmp_path / "killed.py").write_text(file + KILLED.format(mark=tmp_path / "killed"))
    train(written, "--train", str(tmp_path / "train.py"), "--checkpoint", str(tmp_path / "whole"), "-q")
    often = ("--checkpoint", str(tmp_path / "ck"), "--every", "2", "--restarts", "1", "-q")
    run = train(written, "--train", str(tmp_path / "killed.py"), *often)
    assert "restart 1 of 1, from step-000004" in run.stderr
    last = f"step-{STEPS:06d}"
    assert_same_bits(tmp_path / "ck" / last, tmp_path / "whole" / last)


@pytest.mark.parametrize("rule", ["average", "easgd", "bmuf"])
def test_replicas_that_are_brought_together_beside_the_training_go_on_and_tell_how_far_they_are_apart(
    written, tmp_path, rule
):
    words = ("--sync", f"shadow(every=1, rule={rule})", "--checkpoint", str(tmp_path / "ck"), "--resume", "-q")
    train(written, *words, steps=20)
    train(written, *words, "--log", str(tmp_path / "log.jsonl"), steps=60)
    checkpoint = tmp_path / "ck" / "step-000060"
    own = [load_file(checkpoint / f"own-{rank}.safetensors") for rank in range(2)]
    kinds = {key.partition(":")[0] for key in own[0]}
    assert (
        kinds == {"weight", "optimizer"} | {"average": set(), "easgd": {"centre"}, "bmuf": {"centre", "velocity"}}[rule]
    )
    for name, mean in weights_in(checkpoint).items():
        both = [tensors[f"weight:{name}"] for tensors in own]
        assert torch.allclose((both[0] + both[1]) / 2, mean, atol=1e-6)
    gaps = [json.loads(line)["replica_gap"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert any(gap.get("0", 0) > 0 for gap in gaps)
    assert all(gap.get("0", 0) < 0.5 for gap in gaps)


VALIDATED = """
import torch

def validation_data():
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        ids = torch.randint(0, 50, (4, 3), generator=generator)
        label = torch.randint(0, 2, (4,), generator=generator).float()
        yield {"sparse": ids, "dense": torch.randn(4, 13, generator=generator), "label": label}
"""


@pytest.mark.parametrize("rule", ["local(steps=4)", "shadow(every=2)"])
def test_a_validation_is_of_the_mean_of_replicas_that_differ(written, tmp_path, rule):
    (tmp_path / "train.py").write_text((written / "train.py").read_text() + VALIDATED)
    words = ("--sync", rule, "--checkpoint", str(tmp_path / "ck"), "--log", str(tmp_path / "log.jsonl"), "-q")
    train(written, *words, "--train", str(tmp_path / "train.py"), "--validate-every", "5", steps=5)
    (told,) = [
        line["validation"]["loss"]
        for line in map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
        if "validation" in line
    ]
    known: dict[str, Callable[[], Iterator[dict[str, torch.Tensor]]]] = {}
    exec(VALIDATED, known)  # noqa: S102 - the text above
    whole = model()[0].eval()
    whole.load_state_dict(weights_in(tmp_path / "ck" / "step-000005"))
    with torch.no_grad():
        losses = [
            torch.nn.functional.binary_cross_entropy_with_logits(whole(batch["sparse"], batch["dense"]), batch["label"])
            for batch in known["validation_data"]()
        ]
    assert told == pytest.approx(float(sum(losses) / len(losses)), rel=1e-6)
    own = [load_file(tmp_path / "ck" / "step-000005" / f"own-{rank}.safetensors") for rank in range(2)]
    assert any(not torch.equal(own[0][key], own[1][key]) for key in own[0] if key.startswith("weight:"))
