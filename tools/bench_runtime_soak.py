"""Soak: train while workers are killed, stopped and interrupted at random, resume each time, lose no step.

A small CTRDNN in two stages (two replicas and one) trains with a checkpoint every few steps. Again and again a random
worker gets SIGKILL or SIGSTOP, the process that they are forked from SIGKILL, or the launcher SIGINT or SIGKILL; the
run must end as it should, leave no process, and go on with --resume. In the end every step must be in the log, steps
that ran twice with the same loss, and all weights must be bit for bit those of a run that nobody disturbed.

    python tools/bench_runtime_soak.py                 two minutes
    python tools/bench_runtime_soak.py --minutes 30
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.numpy import load_file

SLEEP = "HETERPS_SOAK_SLEEP_S"
STEP_SLEEP_S = 0.05
EVERY = 20
BATCH, MICRO_BATCHES = 32, 4
LEAVE_LIMIT_S = 15.0
PATIENCE_S = 120.0  # a busy machine takes its time to start processes
HAPPENINGS = ("SIGKILL worker",) * 5 + ("SIGSTOP worker", "SIGKILL server", "SIGINT launcher", "SIGKILL launcher")

TRAINING_FILE = f"""
import os, time
import torch
from torch.nn import functional as F

def loss(outputs, batch):
    time.sleep(float(os.environ.get({SLEEP!r}, 0)) / {MICRO_BATCHES})
    return F.binary_cross_entropy_with_logits(outputs, batch["label"])

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=0.05, momentum=0.9)
"""


@dataclass
class Figures:
    """What the soak saw."""

    happened: dict[str, int] = field(default_factory=dict)
    resumes: int = 0
    leave_s: list[float] = field(default_factory=list)
    steps: int = 0
    run_twice: int = 0
    unlogged: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)


def build(folder: Path) -> Path:
    """Compile the model and write training file and stages."""
    import torch  # noqa: PLC0415 - seconds

    import heterps_compile  # noqa: PLC0415
    from heterps_compile.examples.ctrdnn import ctrdnn  # noqa: PLC0415

    torch.set_num_threads(1)
    model, inputs = ctrdnn(batch=BATCH // MICRO_BATCHES, fields=4, rows=200, width=8, hidden=(64, 32))
    compiled = heterps_compile.compile(
        model, inputs, method="greedy", mode="training", min_stages=2, max_stages=2, min_throughput=1000, verify=False
    )
    compiled.save(folder / "model.heterps")
    (folder / "train.py").write_text(TRAINING_FILE)
    return folder / "model.heterps"


def start(folder: Path, steps: int, checkpoints: str, log: str, *, sleep_s: float) -> subprocess.Popen[str]:
    """Start a run that goes on where the last one stopped."""
    words = [sys.executable, "-m", "heterps_compile", "run", "model.heterps", "--train", "train.py", "--resume", "-q"]
    words += ["--data", "random:sparse<200,label=float32<2", "--steps", str(steps), "--replicas", "2,1"]
    words += ["--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES), "--schedule", "1f1b", "--log", log]
    words += ["--checkpoint", checkpoints, "--every", str(EVERY), "--keep", "2"]
    environment = {**os.environ, SLEEP: str(sleep_s)}
    return subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def children_of(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text("ascii")
    except OSError:
        return []
    return [int(word) for word in text.split()]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def records(log: Path) -> Iterator[dict[str, float]]:
    """Yield the steps of a log; the last line may be half written."""
    if log.exists():
        for line in log.read_text("ascii").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def wait_for_steps(run: subprocess.Popen[str], log: Path, more: int) -> bool:
    """Wait until so many more steps are in the log; False where the run ended before."""
    before, deadline_s = sum(1 for _ in records(log)), time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if run.poll() is not None:
            return False
        if sum(1 for _ in records(log)) >= before + more:
            return True
        time.sleep(0.1)
    raise AssertionError(f"no step in {PATIENCE_S:.0f} s")


def disturb(
    run: subprocess.Popen[str], what: str, dice: random.Random, figures: Figures, *, leave_limit_s: float
) -> None:
    """Do something to a run and check that it ends as it should."""
    (server,) = children_of(run.pid)
    workers = children_of(server)
    name, target = what.split()
    victim = {"launcher": run.pid, "server": server}.get(target) or dice.choice(workers)
    number = getattr(signal, name)
    began_s = time.monotonic()
    os.kill(victim, number)
    printed, _ = run.communicate(timeout=PATIENCE_S)
    left_s = time.monotonic() - began_s
    expected = {"SIGINT launcher": 130, "SIGKILL launcher": -9}.get(what, 1)
    if run.returncode != expected:
        figures.faults.append(f"{what}: exit code {run.returncode}, expected {expected}: {printed[-500:]}")
    if expected == 1:
        figures.leave_s.append(left_s)
        if left_s > leave_limit_s:
            figures.faults.append(f"{what}: took {left_s:.1f} s to end")
        last = printed.strip().splitlines()[-1]
        where = ("last micro-batch", "before its first micro-batch")  # the latter where it had just gone on
        words = ("forked from was killed",) if target == "server" else ("Error: stage", "replica")
        if not all(word in last for word in words) or not (target == "server" or any(word in last for word in where)):
            figures.faults.append(f"{what}: the message names not all: {last}")
    deadline_s = time.monotonic() + 2
    started = [server, *workers]
    while any(map(is_alive, started)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    figures.faults += [f"{what}: process {process} is left" for process in started if is_alive(process)]
    figures.happened[what] = figures.happened.get(what, 0) + 1


def last_checkpoint(folder: Path) -> Path | None:
    return max((path for path in folder.glob("step-*") if (path / "state.json").is_file()), default=None)


def unlogged(log: Path, checkpoints: Path) -> set[int]:
    """Return the steps that a checkpoint has and nobody lived to log; the weights show in the end that they ran."""
    checkpoint = last_checkpoint(checkpoints)
    if checkpoint is None:
        return set()
    return set(range(json.loads((checkpoint / "state.json").read_text())["step"])) - {
        int(r["step"]) for r in records(log)
    }


def soak(
    folder: Path, seconds: float, seed: int = 0, *, leave_limit_s: float = LEAVE_LIMIT_S, verbose: bool = False
) -> Figures:
    """Disturb a run for so many seconds, let it end, and compare it with one that is left alone."""
    dice, figures = random.Random(seed), Figures()  # noqa: S311 - to choose victims
    log, checkpoints = folder / "log.jsonl", folder / "checkpoints"
    build(folder)
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        run = start(folder, 10**9, str(checkpoints), str(log), sleep_s=STEP_SLEEP_S)
        what = dice.choice(HAPPENINGS)
        if not wait_for_steps(run, log, dice.randint(1, 3 * EVERY)):
            figures.faults.append(f"the run ended by itself: {run.communicate()[0][-500:]}")
            break
        disturb(run, what, dice, figures, leave_limit_s=leave_limit_s)
        figures.resumes += 1
        figures.unlogged |= unlogged(log, checkpoints)
        if verbose:
            steps = max((int(r["step"]) for r in records(log)), default=-1) + 1
            print(f"{what:18} after step {steps:,}; {max(0, ends_s - time.monotonic()):.0f} s left", flush=True)
    reached = max(int(record["step"]) for record in records(log)) + 1
    figures.steps = reached + EVERY
    run = start(folder, figures.steps, str(checkpoints), str(log), sleep_s=0)
    printed, _ = run.communicate(timeout=PATIENCE_S + 0.1 * figures.steps)
    if run.returncode:
        figures.faults.append(f"the last run failed: {printed[-500:]}")
        return figures
    run = start(folder, figures.steps, str(folder / "whole"), str(folder / "whole.jsonl"), sleep_s=0)
    printed, _ = run.communicate(timeout=PATIENCE_S + 0.1 * figures.steps)
    if run.returncode:
        figures.faults.append(f"the undisturbed run failed: {printed[-500:]}")
        return figures
    compare(folder, figures)
    return figures


def compare(folder: Path, figures: Figures) -> None:
    """Compare the log and the last checkpoint with those of the undisturbed run."""
    whole = {int(record["step"]): record["loss"] for record in records(folder / "whole.jsonl")}
    seen: dict[int, int] = {}
    for record in records(folder / "log.jsonl"):
        step = int(record["step"])
        seen[step] = seen.get(step, 0) + 1
        if record["loss"] != whole.get(step):
            figures.faults.append(f"step {step}: loss {record['loss']}, undisturbed {whole.get(step)}")
    missing = set(range(figures.steps)) - set(seen) - figures.unlogged
    figures.faults += [f"step {step} was lost" for step in sorted(missing)]
    figures.run_twice = sum(count - 1 for count in seen.values())
    ours, theirs = last_checkpoint(folder / "checkpoints"), last_checkpoint(folder / "whole")
    if ours is None or theirs is None or ours.name != theirs.name:
        figures.faults.append(f"{ours} and {theirs} are the last checkpoints")
        return
    for file in sorted(theirs.glob("*.safetensors")):
        mine = load_file(ours / file.name)
        for name, array in load_file(file).items():
            if mine[name].tobytes() != array.tobytes():
                figures.faults.append(f"{file.name}: {name} differs by up to {abs(mine[name] - array).max():.3g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heterps-soak-") as name:
        figures = soak(Path(name), 60 * arguments.minutes, arguments.seed, verbose=True)
    print(f"\n{figures.steps:,} steps, {figures.run_twice:,} of them run again after {figures.resumes} resumes")
    if figures.unlogged:
        print(f"  {len(figures.unlogged)} steps were run and checkpointed, but the launcher died before it logged them")
    for what, count in sorted(figures.happened.items()):
        print(f"  {what}: {count}")
    if figures.leave_s:
        median_s, longest_s = statistics.median(figures.leave_s), max(figures.leave_s)
        print(f"a dead or stopped worker ended the run after {median_s:.1f} s (median), {longest_s:.1f} s at most")
    print("no step was lost, and all weights are those of an undisturbed run" if not figures.faults else "FAILED")
    for fault in figures.faults:
        print(f"  {fault}")
    return 1 if figures.faults else 0


if __name__ == "__main__":
    sys.exit(main())
