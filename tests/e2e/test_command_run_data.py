"""``heterps-compile run`` on CSV with text, shuffled: the samples are those of a plain loop, also when it goes on."""

import random

import pytest
import torch
from commands import heterps
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

from heterps_compile import hash_ids

pytest.importorskip("pyarrow", reason="pyarrow is an extra")
pytestmark = pytest.mark.slow  # three runs, one after the other

SAMPLES, WINDOW, STEPS, SEED = 50, 20, 6, 3  # resumes at sample 32, in a window
PREPARE = f"""
def prepare(batch):
    return {{
        "sparse": torch.stack([batch[f"word{{n}}"] for n in range({FIELDS})], 1),
        "dense": torch.stack([batch[f"x{{n}}"] for n in range({DENSE})], 1),
        "label": batch["label"].float(),
    }}
"""


def test_a_shuffled_csv_goes_on_in_the_middle_of_a_window_with_other_replicas(tmp_path):
    write_ctrdnn(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING_FILE + PREPARE)
    words, numbers, labels = write_csv(tmp_path / "clicks.csv")
    size = ("--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES))
    words_of_run = ("run", "model2.heterps", "--train", "train.py", "--data", f"clicks.csv?rows={ROWS}", *size, "-q")
    ck = ("--checkpoint", "ck", "--seed", str(SEED))
    for more in (("--replicas", "2,1", "--steps", "2"), ("--replicas", "1,2", "--steps", str(STEPS), "--resume")):
        run = heterps(*words_of_run, *ck, "--shuffle", str(WINDOW), *more, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
    theirs = trained(words, numbers, labels)
    assert largest_difference(weights_in(tmp_path / "ck" / f"step-{STEPS:06d}"), theirs) < 1e-6
    run = heterps(*words_of_run, *ck, "--resume", "--steps", "7", "--replicas", "1,1", cwd=tmp_path)
    assert run.returncode == 1
    assert "--shuffle 20" in run.stderr, "another order is other data"


def write_csv(path):
    rng = random.Random(0)  # noqa: S311 - test data
    words = [[rng.choice(["", "a", "Zürich", 'x "y",\nz', "b"]) for _ in range(FIELDS)] for _ in range(SAMPLES)]
    numbers = [[rng.randrange(-40, 40) / 8 for _ in range(DENSE)] for _ in range(SAMPLES)]
    labels = [rng.randrange(2) for _ in range(SAMPLES)]
    names = [*(f"word{n}" for n in range(FIELDS)), *(f"x{n}" for n in range(DENSE)), "label"]
    with path.open("w", encoding="utf-8") as file:
        print(*names, sep=",", file=file)
        for sample in zip(words, numbers, labels, strict=True):
            quoted = ['"' + word.replace('"', '""') + '"' for word in sample[0]]
            print(*quoted, *sample[1], sample[2], sep=",", file=file)
    return words, numbers, labels


def order() -> list[int]:
    """Return the samples of two epochs as docs/data.md says: windows in another order, samples in another inside."""

    def permuted(count: int, epoch: int, part: int) -> list[int]:
        stride = 0x9E3779B97F4A7C15
        mixed = (SEED * stride + epoch) * stride + part
        return torch.randperm(
            count, generator=torch.Generator().manual_seed((mixed ^ (mixed >> 31)) & (2**63 - 1))
        ).tolist()

    windows = [range(first, min(first + WINDOW, SAMPLES)) for first in range(0, SAMPLES, WINDOW)]
    found = []
    for epoch in range(2):
        for number in permuted(len(windows), epoch, 0):
            window = windows[number]
            found += [window[place] for place in permuted(len(window), epoch, number + 1)]
        assert sorted(found[epoch * SAMPLES :]) == list(range(SAMPLES))
    return found


def trained(words, numbers, labels) -> dict[str, torch.Tensor]:
    """Train the whole model on the same samples in plain PyTorch."""
    columns = [hash_ids([row[n] for row in words], column=f"word{n}", rows=ROWS) for n in range(FIELDS)]
    sparse = torch.stack([torch.from_numpy(column) for column in columns], 1)
    dense, label = torch.tensor(numbers), torch.tensor(labels, dtype=torch.float32)
    built, _ = model()
    built.train()
    optimizer = torch.optim.SGD(built.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    for step in range(STEPS):
        batch = torch.tensor(order()[step * BATCH : (step + 1) * BATCH])
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(built(sparse[batch], dense[batch]), label[batch]).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in built.state_dict().items()}
