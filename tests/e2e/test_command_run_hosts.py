"""Two machines with nothing in common but a wire: an agent of torchrun on each, and they run as one."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from network_hosts import NotPermittedError, two_hosts
from processes import PATIENCE_S
from written_ctrdnn import (
    BATCH,
    DATA,
    MICRO_BATCHES,
    largest_difference,
    trained_in_one_process,
    weights_in,
    write_ctrdnn,
)

pytestmark = pytest.mark.slow  # machines of their own, whose ranks start cold

STEPS = 4
RUN = ("--data", DATA, "--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES), "--replicas", "1,2")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Two hosts with a copy each of a compiled folder, and a training file, at the same path."""
    folder = tmp_path_factory.mktemp("hosts")
    try:
        with two_hosts(folder) as made:
            write_ctrdnn(made[0].disk)
            shutil.copytree(made[0].disk / "model2.heterps", made[1].disk / "model2.heterps")
            shutil.copy(made[0].disk / "train.py", made[1].disk)
            yield made
    except NotPermittedError as error:
        pytest.skip(f"no network namespaces here: {error}")


def start(hosts, *words: str) -> list[subprocess.Popen[str]]:
    """Start an agent on each host: two ranks on the first, one on the second."""
    first = hosts[0]
    head = ("-m", "torch.distributed.run", "--nnodes=2", f"--master-addr={first.address}", "--master-port=29500")
    run = ("-m", "--", "heterps_compile", "run", str(first.mounted / "model2.heterps"), *words)
    return [
        subprocess.Popen(
            host.words(sys.executable, *head, f"--node-rank={number}", f"--nproc-per-node={2 - number}", *run),
            env=host.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for number, host in enumerate(hosts)
    ]


def ends(started: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Wait until all have ended; give exit codes and what was printed."""
    try:
        said = [process.communicate(timeout=PATIENCE_S)[0] for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return [(process.returncode, text) for process, text in zip(started, said, strict=True)]


def test_two_hosts_train_as_one_process(hosts, tmp_path):
    log = hosts[0].mounted / "log.jsonl"
    words = ("--train", str(hosts[0].mounted / "train.py"), "--steps", str(STEPS), *RUN, "--log", str(log))
    told = ends(start(hosts, *words, "--checkpoint", str(tmp_path / "ck")))
    assert [code for code, _ in told] == [0, 0], told
    assert f"{STEPS} steps, {STEPS * BATCH} samples" in told[0][1]
    steps = [json.loads(line) for line in (hosts[0].disk / "log.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(STEPS))  # told by ranks of both, though they share no folder
    ours = weights_in(tmp_path / "ck" / f"step-{STEPS:06d}")
    assert largest_difference(ours, trained_in_one_process(STEPS)) < 1e-6


def test_what_inference_gives_lies_on_the_disks_of_those_who_give_it(hosts):
    told = ends(start(hosts, *RUN, "--steps", "2", "--output", str(hosts[0].mounted / "out")))
    assert [code for code, _ in told] == [0, 0], told
    lie = [sorted(path.name for path in (host.disk / "out").iterdir()) for host in hosts]
    assert [len(names) for names in lie] == [MICRO_BATCHES, MICRO_BATCHES]
    assert not set(lie[0]) & set(lie[1])


def test_a_wire_that_breaks_ends_the_run_on_both_sides(hosts):
    """It is the last test: the hosts stay apart."""
    log = hosts[0].disk / "endless.jsonl"
    words = ("--train", str(hosts[0].mounted / "train.py"), "--steps", "1000000", *RUN)
    started = start(hosts, *words, "--log", str(hosts[0].mounted / log.name))
    deadline_s = time.monotonic() + PATIENCE_S
    while not (log.exists() and log.read_text()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    hosts[0].unplug()
    (first, here), (second, there) = ends(started)
    assert (first, second) == (1, 1)
    assert "Error: stage 1, replica 1 (rank 2) gave no sign of life for 8 s: its process is dead or stopped, or" in here
    assert (
        "Error: stage 1, replica 1 (rank 2) had no answer from the store of the run for 10 s: the first host, or"
        in there
    )
    assert re.search(r"it was in step \d+( \(.*\), before its first micro-batch|, last micro-batch \d+ \()", there)
