"""A run that cannot go on: one message that says who and why, on every rank; and nothing left behind."""

import os
import signal
import time
from pathlib import Path

import pytest
from processes import PATIENCE_S, begin_command, is_alive, kill_with_descendants, ranks_of, wait_for
from written_ctrdnn import (
    BATCH,
    DATA,
    MICRO_BATCHES,
    largest_difference,
    trained_in_one_process,
    weights_in,
    write_ctrdnn,
)

# Rank 1 does FAULT in its optimiser's fourth step, in this user's own file.
FAULTY = """
import os, signal, sys, time
import torch
from torch.nn import functional as F

FAULT = os.environ.get("FAULT", "")
calls = 0

def happen():
    if FAULT == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "exit": os._exit(3)
    if FAULT == "quiet exit": os._exit(0)
    if FAULT == "stop": os.kill(os.getpid(), signal.SIGSTOP)
    if FAULT == "memory": torch.empty(10**15)
    if FAULT == "raise": raise ValueError("no good")
    while FAULT == "loop": pass

class Faulty(torch.optim.SGD):
    calls = 0
    def step(self, closure=None):
        self.calls += 1
        if self.calls == 4 and sys.argv[2] == "1":  # the words of a rank: the folder of the run, its number
            happen()
        return super().step(closure)

def loss(outputs, batch):
    global calls
    calls += 1
    time.sleep(float(os.environ.get("SLEEP", 0)))
    if FAULT == "nan" and calls == 6:
        outputs = outputs * float("nan")
    return F.binary_cross_entropy_with_logits(outputs, batch["label"])

def optimizer(parameters):
    return Faulty([parameter for _, parameter in parameters], lr=0.05, momentum=0.9)
"""


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    write_ctrdnn(folder)
    (folder / "faulty.py").write_text(FAULTY)
    return folder


@pytest.fixture
def start(written):
    """Start a run that would never end by itself; nothing of it outlives the test."""
    started = []

    def run(*words, **environment):
        command = ["run", "model2.heterps", "--train", "faulty.py", "--data", DATA, "--replicas", "1,2", "-q", *words]
        command += ["--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES)]
        started.append(begin_command(written, *command, environment={**os.environ, **environment}))
        return started[-1]

    yield run
    for process in started:
        kill_with_descendants(process.pid)
        process.communicate()


@pytest.mark.slow  # waits for clocks and for runs that would never end
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param(
            *("kill", "was killed by SIGKILL (by somebody, or by the system for its memory)"),
            marks=pytest.mark.kill("a rank"),
        ),
        ("exit", "left with exit code 3 before the run was over"),
        ("quiet exit", "left with exit code 0 before the run was over"),
        pytest.param("stop", "gave no sign of life for", marks=pytest.mark.kill("a rank, stopped")),
        ("memory", "ran out of memory"),
        ("raise", "raised ValueError: no good"),
        ("loop", "hangs: no progress for"),
    ],
)
def test_a_worker_at_fault_ends_the_run_and_is_told_once(start, fault, said):
    run = start("--steps", "1000000", FAULT=fault)
    out, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 1, err
    assert out == ""
    lines = err.splitlines()
    message = lines[-1]
    assert message.startswith("Error: stage 1, replica 0 (rank 1) ")
    assert said in message
    assert message.endswith("it was in step 3, last micro-batch 2 (updating parameters)")
    assert err.count("Error: ") - err.count("ValueError: ") == 1
    assert err.count("Traceback") == (fault == "raise")


@pytest.mark.slow  # waits for clocks and for runs that would never end
def test_a_loss_that_is_no_number_names_step_and_micro_batch(start):
    run = start("--steps", "100", FAULT="nan")
    _, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 1
    last = err.splitlines()[-1]
    assert ("the loss is nan" in last, "it was in step 2, last micro-batch " in last) == (True, True)


def run_until_a_step(start, log: Path, *words, **environment):
    run = start("--steps", "1000000", "--log", str(log), *words, **environment)
    wait_for(lambda: log.exists() and log.read_text().count("\n") > 2, run, PATIENCE_S)
    assert run.poll() is None, run.communicate()[1]
    return run


@pytest.mark.slow  # waits for clocks and for runs that would never end
@pytest.mark.kill("the launcher")
def test_workers_do_not_outlive_their_launcher(start, tmp_path):
    run = run_until_a_step(start, tmp_path / "log")
    workers = ranks_of(run.pid)
    assert len(workers) == 3
    run.kill()
    run.communicate()
    deadline_s = time.monotonic() + PATIENCE_S
    while any(map(is_alive, workers)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(map(is_alive, workers))


@pytest.mark.slow  # waits for clocks and for runs that would never end
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.kill("the launcher, asked to end"))],
)
def test_an_interrupted_run_leaves_a_checkpoint_and_goes_on_from_it(start, tmp_path, number, code):
    ck = ("--checkpoint", str(tmp_path / "ck"), "--resume")
    run = run_until_a_step(start, tmp_path / "log", *ck, SLEEP="0.01")
    workers = ranks_of(run.pid)
    run.send_signal(number)
    out, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == code, err
    assert "go on with --resume" in out
    assert not any(map(is_alive, workers))
    (checkpoint,) = (tmp_path / "ck").iterdir()
    done = int(checkpoint.name.removeprefix("step-"))
    assert f"stopped by {signal.Signals(number).name} after {done} steps" in out
    run = start("--steps", str(done + 3), *ck)
    _, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, err
    assert (
        largest_difference(weights_in(tmp_path / "ck" / f"step-{done + 3:06d}"), trained_in_one_process(done + 3))
        < 1e-5
    )


@pytest.mark.slow  # waits for clocks and for runs that would never end
def test_interrupting_twice_ends_it_at_once(start, tmp_path):
    run = run_until_a_step(start, tmp_path / "log", SLEEP="3")
    workers = ranks_of(run.pid)
    run.send_signal(signal.SIGINT)
    assert "SIGINT: stopping" in run.stderr.readline()
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 128 + signal.SIGINT
    assert "interrupted twice" in err
    assert not any(map(is_alive, workers))
