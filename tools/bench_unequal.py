"""Unequal workers as one stage: `python tools/bench_unequal.py [--share 0.25] [--rounds 3] [--steps 12]`.

Two processes train a network of one stage, one of them with a part of a core's time (the kernel's quota for a group of
processes, on which it waits). Each kind of worker is a device type of a pool, with the layer times that `profile`
measures under its own quota, a rate of memory that goes with its quota, and as network what PyTorch's all-reduce
between the two reaches. The plan (`--mixed-stages`) gives both to one stage and says what a step takes; `run` is
then timed with micro-batches dealt by speed, as planned, and in equal parts (`--speeds 1,1`). The speed of a machine
drifts within a minute, so each round profiles, plans and runs anew, and holds each run against the plan just before it:
medians of these ratios, and of the steps.

It needs a writable group of cgroups for the processor (Linux, as root), and says so where there is none.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import onnx
from link_rounds import reached_bytes_per_s
from onnx import helper, numpy_helper

from heterps_compile.plan.folder import read_folder
from heterps_compile.plan.plan import Plan
from heterps_compile.schedule.mixed_stage import BY_SPEED, share_out

FAST, SLOW = "fast", "slow"
PERIOD_US = 5_000
WEIGHT = 256  # times that of another process, so that who else works on the machine takes less of the quotas
WIDTHS = (64, 768, 768, 768, 768, 32)
BATCH = 6144
_WARM_UP = 3  # steps
_ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))

_DEVICE = """
[[device]]
name = "{name}"
kind = "cpu"
price = "free"
price_source = "a part of a core of this machine"
price_date = "2026"
max_units = 1
memory = "4 GiB"
peak = {{ float32 = "{gflops:.1f} GFLOP/s" }}
memory_bandwidth = "{memory:.1f} GB/s"
network_bandwidth = "{network:.0f} B/s"
network_latency = "50 us"
input_bandwidth = "1 GB/s"
launch = "20 us"
efficiency = 0.6
compute_parallel = 1.0
data_parallel = 1.0
"""

_TRAIN = """import sys

import torch

groups = {groups!r}
with open(groups[int(sys.argv[2])], "w") as group:  # rank 0 is the first replica of the stage, rank 1 the second
    group.write("0")


def loss(outputs, batch):
    outputs = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    return outputs.square().mean()


def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=1e-3)
"""


def network() -> onnx.ModelProto:
    """Return a perceptron whose batch is free."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i, (wide, narrow) in enumerate(pairwise(WIDTHS)):
        weight = rng.standard_normal((wide, narrow), np.float32) / np.float32(wide**0.5)
        weights += [
            numpy_helper.from_array(weight, f"w{i}"),
            numpy_helper.from_array(np.zeros(narrow, np.float32), f"b{i}"),
        ]
        nodes += [
            helper.make_node("Gemm", [f"x{i}", f"w{i}", f"b{i}"], [f"h{i}"], name=f"dense{i}"),
            helper.make_node("Relu", [f"h{i}"], [f"x{i + 1}"], name=f"relu{i}"),
        ]
    last = len(WIDTHS) - 1
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x0", onnx.TensorProto.FLOAT, ["batch", WIDTHS[0]])],
        [helper.make_tensor_value_info(f"x{last}", onnx.TensorProto.FLOAT, ["batch", WIDTHS[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@contextmanager
def quota(name: str, share: float) -> Iterator[str]:
    """Make a group of processes that together get so much of a core; yield the file by which a process joins it."""
    root = next((root for root in _ROOTS if os.access(root / "cgroup.procs", os.W_OK)), None)
    if root is None:
        sys.exit("no group of cgroups for the processor can be written here; run it as root on Linux")
    group = root / f"heterps-{os.getpid()}-{name}"
    group.mkdir()
    try:
        quota_us = round(share * PERIOD_US)
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            (group / "cpu.shares").write_text(str(1024 * WEIGHT))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            (group / "cpu.weight").write_text(str(min(10_000, 100 * WEIGHT)))
        yield str(group / "cgroup.procs")
    finally:
        with suppress(OSError):
            group.rmdir()


@dataclass(frozen=True, slots=True)
class Worker:
    """Where processes run: on this machine, in the group of processes whose file it names."""

    group: str
    address: str = "127.0.0.1"

    def words(self, *command: str) -> list[str]:
        """Return what runs a command there."""
        return ["sh", "-c", f'echo $$ > {self.group} && exec "$0" "$@"', *command]


def heterps(words: Sequence[str], worker: Worker | None = None) -> None:
    """Run a command of the product, under a worker's quota where one is named.

    Raises:
        SystemExit: with what it said, where it failed.
    """
    command = [sys.executable, "-m", "heterps_compile", *words]
    ran = subprocess.run(worker.words(*command) if worker else command, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"heterps-compile {' '.join(words[:2])} failed:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps of a run: their pace, and how long each rank computed; medians in seconds."""

    pace_s: float
    busy_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """A plan from profiles made just before, and its runs.

    Attributes:
        plan: Of one stage, on both kinds of worker.
        taken: Micro-batches of each rank, dealt by speed.
        own_s: That the plan says each rank computes.
        by_speed, equal: Runs.
    """

    plan: Plan
    taken: tuple[int, ...]
    own_s: tuple[float, ...]
    by_speed: Timed
    equal: Timed


def timed(folder: Path, steps: int, *words: str) -> Timed:
    """Return the steps of a run without the first ones."""
    log = folder.parent / "steps.jsonl"
    log.unlink(missing_ok=True)
    train = str(folder.parent / "train.py")
    heterps(
        [
            "run",
            str(folder),
            "--train",
            train,
            "--data",
            f"random:x0=float32[{WIDTHS[0]}]",
            "--steps",
            str(steps),
            "--log",
            str(log),
            *words,
        ]
    )
    records = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    records = [record for record in records if "pace_s" in record][_WARM_UP:]
    busy_s = zip(*([rank["busy_s"] for rank in record["ranks"]] for record in records), strict=True)
    return Timed(median(record["pace_s"] for record in records), tuple(map(median, busy_s)))


def plan_both(folder: Path, workers: Sequence[Worker], shares: Sequence[float]) -> Plan:
    """Measure the layers on each kind of worker and the link between both, and plan one stage on both."""
    model, pool = folder / "model.onnx", folder / "pool.toml"
    onnx.save(network(), model)
    network_rate = reached_bytes_per_s(workers, dict(os.environ), "lo")
    devices = [
        _DEVICE.format(name=name, gflops=60 * share, memory=8 * share, network=network_rate)
        for name, share in zip((FAST, SLOW), shares, strict=True)
    ]
    pool.write_text('description = "unequal workers"\ncurrency = "USD"\n' + "".join(devices))
    for name, worker in zip((FAST, SLOW), workers, strict=True):
        options = ["--mode", "training", "--batches", "128,512,1536", "--clock", "wall", "--no-replicas", "--no-link"]
        heterps(["profile", str(model), "-o", str(folder / f"{name}.json"), *options], worker)
    profiles = ",".join(f"{name}={folder / name}.json" for name in (FAST, SLOW))
    asked = ["--mode", "training", "--objective", "throughput", "--max-stages", "1", "--mixed-stages"]
    asked += ["--optimizer", "sgd"]  # that of the training file
    asked += ["--batch", str(BATCH), "--backend", "torch", "--cluster", str(pool), "--profile", profiles]
    heterps([str(model), "-o", str(folder / "plan.heterps"), "--force", "-q", *asked])
    return read_folder(folder / "plan.heterps")[0]


def one_round(folder: Path, files: Mapping[str, str], shares: Sequence[float], steps: int) -> Round:
    """Profile, plan and run; ``files`` has by kind of worker the file by which a process joins its quota."""
    plan = plan_both(folder, [Worker(files[FAST]), Worker(files[SLOW])], shares)
    [stage] = plan.stages
    names = [stage.of_replica(rank)[0] for rank in range(stage.replicas)]
    if not stage.mixed:
        sys.exit(f"the plan has one device type, {stage.hardware}: together they are no faster")
    (folder / "train.py").write_text(_TRAIN.format(groups=[files[name] for name in names]))
    count = plan.schedule.micro_batches
    times_s = [each.micro_batch(count).whole_s for each in stage.of_replicas]
    dealt = share_out(times_s, count, BY_SPEED)
    taken = tuple(dealt.count(rank) for rank in range(stage.replicas))
    own_s = tuple(count * each_s for count, each_s in zip(taken, times_s, strict=True))
    by_speed = timed(folder / "plan.heterps", steps)
    return Round(plan, taken, own_s, by_speed, timed(folder / "plan.heterps", steps, "--speeds", "1,1"))


def spread(ratios: Sequence[float]) -> str:
    """Say the median and the quartiles of some ratios, as what they are above or below 1."""
    low, _, high = quantiles(ratios, n=4)
    return f"{median(ratios) - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", type=float, default=1.0, help="part of a core that the fast worker has")
    parser.add_argument("--share", type=float, default=0.25, help="part of a core that the slow worker has")
    parser.add_argument("--rounds", type=int, default=3, help="two at least; some minutes each")
    parser.add_argument("--steps", type=int, default=12, help=f"of every run, of which {_WARM_UP} do not count")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    shares = (asked.full, asked.share)
    with tempfile.TemporaryDirectory() as place, quota(FAST, shares[0]) as fast, quota(SLOW, shares[1]) as slow:
        files = {FAST: fast, SLOW: slow}
        rounds = [one_round(Path(place), files, shares, asked.steps) for _ in range(asked.rounds)]
    [stage] = rounds[0].plan.stages
    print(f"{stage.hardware}, with {shares[0]:g} and {shares[1]:g} of a core, {asked.rounds} rounds")
    print(
        "| round | micro-batches | planned step | measured by speed | in equal parts | each computes, planned | does |"
    )
    print("|---|---|---|---|---|---|---|")
    for number, each in enumerate(rounds, 1):
        parts = " + ".join(map(str, each.taken))
        own, busy = (" + ".join(f"{of_s:.3f}" for of_s in times_s) for times_s in (each.own_s, each.by_speed.busy_s))
        steps = f"{each.plan.schedule.step_s:.3f} s | {each.by_speed.pace_s:.3f} s | {each.equal.pace_s:.3f} s"
        print(f"| {number} | {parts} of {BATCH // sum(each.taken)} | {steps} | {own} s | {busy} s |")
    print("Planned over measured, median and quartiles of the rounds:")
    print(f"step {spread([each.plan.schedule.step_s / each.by_speed.pace_s for each in rounds])};", end=" ")
    for rank in range(stage.replicas):
        over = spread([each.own_s[rank] / each.by_speed.busy_s[rank] for each in rounds])
        print(f"of that {stage.of_replica(rank)[0]} computes {over};", end=" ")
    gain = median(each.equal.pace_s / each.by_speed.pace_s for each in rounds)
    print(f"by speed is {gain:.2f} times as fast as in equal parts")


if __name__ == "__main__":
    main()
