"""Replicas on two machines sum inside each first: the same training, and the bytes between hosts of the plan."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PATIENCE_S, free_port
from written_ctrdnn import (
    BATCH,
    DATA,
    MICRO_BATCHES,
    largest_difference,
    model,
    trained_in_one_process,
    weights_in,
    write_ctrdnn,
)

from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup

pytestmark = pytest.mark.slow  # runs of four ranks

STEPS = 5
ON_TWO = Network(1e-9, 0.0, 2, 1e-11)
NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$1" && shift && exec "$@"', "sh")
"""Runs a command on a machine of another name."""

if subprocess.run([*NAMED, "machine", "true"], capture_output=True, check=False).returncode:
    pytest.skip("this machine does not let us give it another name", allow_module_level=True)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    write_ctrdnn(folder, stages=1)
    return folder


def train(folder: Path, *words: str, steps: int = STEPS) -> list[tuple[int, str]]:
    """Run an agent on each of two machines by name; return exit codes and what they printed."""
    size = ("--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES), "--replicas", "4", "--steps", str(steps))
    options = ("--train", "train.py", "--data", DATA, *size, *words)
    port = free_port()
    head = ("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1")
    run = (f"--master-port={port}", "-m", "--", "heterps_compile", "run", "model1.heterps", *options)
    hosts = [
        subprocess.Popen(
            [
                *NAMED,
                f"machine-{number}",
                sys.executable,
                *head,
                f"--master-port={port}",
                f"--node-rank={number}",
                *run,
            ],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in (0, 1)
    ]
    try:
        said = [host.communicate(timeout=PATIENCE_S)[0] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    return [(host.returncode, text) for host, text in zip(hosts, said, strict=True)]


@pytest.mark.parametrize("rule", ["all-reduce", "topk(density=0.01)", "local(steps=1)"])
def test_replicas_on_two_hosts_train_as_one_process_and_send_what_the_plan_says(written, tmp_path, rule):
    log = tmp_path / "log.jsonl"
    done = train(written, "--sync", rule, "--log", str(log), "--checkpoint", str(tmp_path / "ck"))
    assert [code for code, _ in done] == [0, 0], done
    stand = "the 4 replicas of stage 0 stand on 2 machines, 2 + 2 (the plan counts with 1 + 1 + 1 + 1 on 4): "
    assert f"{stand}{rule} sums inside each of them first" in done[0][1]
    buffers = (FlatBuffer(sum(parameter.numel() for parameter in model()[0].parameters())),)
    planned = parse_rule(rule).exchange(SyncGroup(4, buffers, buffers, 1, ON_TWO))
    steps = [json.loads(line) for line in log.read_text().splitlines()][1:]  # local is counted with the next one
    assert [step["sync_bytes"]["0"] for step in steps] == [planned.sent_bytes] * (STEPS - 1)
    assert [step["sync_between_bytes"]["0"] for step in steps] == [2 * planned.card_bytes] * (STEPS - 1)
    apart = largest_difference(weights_in(tmp_path / "ck" / f"step-{STEPS:06d}"), trained_in_one_process(STEPS))
    if "0.01" in rule:
        assert apart > 1e-4
    elif "local" not in rule:  # whose momenta stay with their replica
        assert apart < 1e-6
