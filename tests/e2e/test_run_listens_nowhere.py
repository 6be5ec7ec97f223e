"""A run on one machine talks through memory alone: none of its processes listens on a port, and it trains as one."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from processes import PATIENCE_S, begin_command, children, end_of, wait_for
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from written_ctrdnn import largest_difference, weights_in

import heterps_compile
from heterps_compile.runtime.data.model_inputs import InputSpec
from heterps_compile.runtime.data.open_source import open_source
from heterps_compile.runtime.servers.saved_tables import export_tables

ROWS, WIDTH, STEPS, BATCH, MICRO_BATCHES, LEARNING_RATE, CLIP_NORM = 40, 8, 5, 16, 4, 0.1, 0.05
DATA = f"random:sample<{ROWS},label=float32<2"
LISTENS = "0A"  # TCP_LISTEN, as /proc/net/tcp has it

TRAIN = f"""
import time
from pathlib import Path
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

calls = 0

def loss(outputs, batch):
    global calls
    calls += 1
    if calls == 2 * {MICRO_BATCHES} + 1:  # in the third step
        Path("reached").touch()
        while not Path("go on").exists():
            time.sleep(0.01)
    return binary_cross_entropy_with_logits(outputs, batch["label"])

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr={LEARNING_RATE})
"""


class Tied(nn.Module):
    """A table that is only looked up, and two layers with one weight, in two stages."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ROWS, WIDTH)
        self.inner, self.outer = (nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.outer.weight = self.inner.weight
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, sample: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.outer(torch.tanh(self.inner(self.table(sample))))))
        return logits.squeeze(1)


def write_stages(folder: Path) -> None:
    heterps_compile.compile(
        Tied(),
        (torch.arange(4),),
        method="greedy",
        mode="training",
        pins={"embedding": "cpu-core", "linear": "cpu-core", "linear_1": "v100", "linear_2": "v100"},
        min_stages=2,
        max_stages=2,
        min_throughput=1,
        verify=False,
    ).save(folder / "tied.heterps")
    (folder / "train.py").write_text(TRAIN)


def train_whole() -> dict[str, Tensor]:
    """Return the weights after a plain loop of PyTorch's."""
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    source = open_source(DATA, wanted={"sample": InputSpec("int64", ())}, seed=0)
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = source.read(step * BATCH, BATCH, ("sample", "label"))
        parts = [{name: column.chunk(MICRO_BATCHES)[place] for name, column in batch.items()} for place in range(4)]
        for part in parts:
            (binary_cross_entropy_with_logits(model(part["sample"]), part["label"]) / MICRO_BATCHES).backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM) > CLIP_NORM
        optimizer.step()
    return model.state_dict()


def listening(processes: list[int]) -> list[str]:
    """Return the sockets of some processes that wait for connections over a network."""
    held = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # it was closed
                held.add(os.readlink(descriptor))
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return [words[1] for words in lines if words[3] == LISTENS and f"socket:[{words[9]}]" in held]


@pytest.mark.skipif(not Path("/proc/net/tcp6").exists(), reason="no list of sockets")
def test_a_run_with_replicas_ties_clipping_and_servers_listens_nowhere_and_equals_one_process(tmp_path):
    write_stages(tmp_path)
    run = begin_command(
        tmp_path,
        *f"run tied.heterps --train train.py --data {DATA} --steps {STEPS} --batch {BATCH}".split(),
        *f"--micro-batches {MICRO_BATCHES} --replicas 2,1 --parameter-servers 1 --clip-norm {CLIP_NORM} -q".split(),
        *f"--server-learning-rate {LEARNING_RATE} --checkpoint ck".split(),
    )
    try:
        wait_for((tmp_path / "reached").exists, run)
        processes = [run.pid]
        for process in processes:
            processes += children(process)
        found = listening(processes)
    finally:
        (tmp_path / "go on").touch()
        code, _, errors = end_of(run, PATIENCE_S)
    assert code == 0, errors
    assert len(processes) >= 6  # the launcher, the process that forks, three ranks with stages, a server
    assert found == []
    checkpoint = tmp_path / "ck" / f"step-{STEPS:06d}"
    export_tables(checkpoint / "servers", tmp_path / "tables.safetensors")
    trained = weights_in(checkpoint) | load_file(tmp_path / "tables.safetensors")
    expected = train_whole()
    assert trained.keys() <= expected.keys()
    assert largest_difference(trained, {name: expected[name] for name in trained}) < 1e-6
    assert {"inner.bias", "outer.bias", "table.weight"} <= trained.keys()
    assert {"inner.weight", "outer.weight"} & trained.keys()
