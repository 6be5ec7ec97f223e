"""Unequal workers as one stage: `python tools/bench_unequal.py [--share 0.25] [--rounds 3] [--steps 12]`.

Two processes train a network of one stage, one of them with a part of a core's time (the kernel's quota for a group of
processes, on which it waits). Each kind of worker is a device type of a pool, with the layer times that `profile`
measures under its own quota. The plan (`--mixed-stages`) gives both to one stage and says what a step takes; `run` is
then timed with micro-batches dealt by speed, as planned, and in equal parts (`--speeds 1,1`), in turn: medians of all
steps.

It needs a writable group of cgroups for the processor (Linux, as root), and says so where there is none.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import onnx
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
memory_bandwidth = "8 GB/s"
network_bandwidth = "2 GB/s"
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


def heterps(words: Sequence[str], group: str | None = None) -> None:
    """Run a command of the product, in a group of processes where one is named.

    Raises:
        SystemExit: with what it said, where it failed.
    """
    join = f"echo $$ > {group} && " if group else ""
    script = f'{join}exec "$0" -m heterps_compile "$@"'
    ran = subprocess.run(["sh", "-c", script, sys.executable, *words], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"heterps-compile {' '.join(words[:2])} failed:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps of runs: their pace, and how long each rank computed; seconds."""

    paces_s: list[float]
    busy_s: list[list[float]]

    def and_(self, other: "Timed") -> "Timed":
        """Return the steps of both."""
        return Timed([*self.paces_s, *other.paces_s], [*self.busy_s, *other.busy_s])


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
    busy_s = [[rank["busy_s"] for rank in record["ranks"]] for record in records]
    return Timed([record["pace_s"] for record in records], busy_s)


def plan_both(folder: Path, groups: Sequence[str], shares: Sequence[float]) -> Plan:
    """Measure the layers on each kind of worker, and plan one stage on both."""
    model, pool = folder / "model.onnx", folder / "pool.toml"
    onnx.save(network(), model)
    devices = [_DEVICE.format(name=name, gflops=60 * share) for name, share in zip((FAST, SLOW), shares, strict=True)]
    pool.write_text('description = "unequal workers"\ncurrency = "USD"\n' + "".join(devices))
    for name, group in zip((FAST, SLOW), groups, strict=True):
        options = ["--mode", "training", "--batches", "128,512,1536", "--clock", "wall", "--no-replicas", "--no-link"]
        heterps(["profile", str(model), "-o", str(folder / f"{name}.json"), *options], group)
    profiles = ",".join(f"{name}={folder / name}.json" for name in (FAST, SLOW))
    asked = ["--mode", "training", "--objective", "throughput", "--max-stages", "1", "--mixed-stages"]
    asked += ["--optimizer", "sgd"]  # that of the training file
    asked += ["--batch", str(BATCH), "--backend", "torch", "--cluster", str(pool), "--profile", profiles]
    heterps([str(model), "-o", str(folder / "plan.heterps"), "--force", "-q", *asked])
    return read_folder(folder / "plan.heterps")[0]


def spread(times_s: Sequence[float]) -> str:
    """Say the median and the quartiles of some times."""
    low_s, _, high_s = quantiles(times_s, n=4)
    return f"{median(times_s):.3f} s ({low_s:.3f} to {high_s:.3f})"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", type=float, default=1.0, help="part of a core that the fast worker has")
    parser.add_argument("--share", type=float, default=0.25, help="part of a core that the slow worker has")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    shares = (asked.full, asked.share)
    with tempfile.TemporaryDirectory() as place, quota(FAST, shares[0]) as fast, quota(SLOW, shares[1]) as slow:
        folder = Path(place)
        plan = plan_both(folder, (fast, slow), shares)
        [stage] = plan.stages
        names = [stage.of_replica(rank)[0] for rank in range(stage.replicas)]
        if not stage.mixed:
            sys.exit(f"the plan has one device type, {stage.hardware}: together they are no faster")
        groups = [{FAST: fast, SLOW: slow}[name] for name in names]
        (folder / "train.py").write_text(_TRAIN.format(groups=groups))
        by_speed, equal = Timed([], []), Timed([], [])
        for _ in range(asked.rounds):
            by_speed = by_speed.and_(timed(folder / "plan.heterps", asked.steps))
            equal = equal.and_(timed(folder / "plan.heterps", asked.steps, "--speeds", "1,1"))
    step_s, count = plan.schedule.step_s, plan.schedule.micro_batches
    print(
        f"{stage.hardware}, with {shares[0]:g} and {shares[1]:g} of a core, {count} micro-batches of {BATCH // count}"
    )
    times_s = [each.micro_batch_s for each in stage.of_replicas]
    taken = share_out(times_s, count, BY_SPEED)
    print("| | predicted | measured, median and quartiles |")
    print("|---|---|---|")
    print(f"| step, by speed | {step_s:.3f} s | {spread(by_speed.paces_s)} |")
    for rank, name in enumerate(names):
        own_s = taken.count(rank) * times_s[rank]
        measured = spread([busy_s[rank] for busy_s in by_speed.busy_s])
        print(f"| of that {name} computes {taken.count(rank)} of them in | {own_s:.3f} s | {measured} |")
    print(f"| step, in equal parts | | {spread(equal.paces_s)} |")
    measured_s = median(by_speed.paces_s)
    print(f"predicted is {100 * (step_s / measured_s - 1):+.1f} % of measured;", end=" ")
    print(f"by speed is {median(equal.paces_s) / measured_s:.2f} times as fast as in equal parts")


if __name__ == "__main__":
    main()
