"""The step under every rule on a throttled link, predicted beside measured: `bench_sync.py --link`.

Replicas are ranks of `heterps-compile run`, each started by an agent of torchrun in a network namespace of its own,
whose card `tc` holds to a rate (`throttled_hosts.py`). The prediction is that of `heterps-compile sync` for the same
plan on a pool with that link, by a profile that is measured on all hosts at once, as they share a machine; nothing of
it is fitted to the runs. Samples are made once, as a plan has no reading of data: numbers drawn for every step take a
core that computes 31 ns each, which made steps 2 and 3 ms longer.

A pool's bandwidth is what reaches a process. It is measured with PyTorch's own all-reduce between the hosts, before the
runs (`link_rounds.py`), for here the processors of the hosts are the link as well: they part messages into packets. A
second prediction takes the rate of the wire, less the headers of packets. The latency of both is half of a round of one
byte.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import torch
from clock_ranks import first
from link_rounds import reached_bytes_per_s
from sync_laws import Line
from throttled_hosts import GOODPUT, Host, NotPermittedError, throttled_hosts
from torch import Tensor, nn

from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule_text import rule_text

LINKS = {"200 Mbit/s": 200e6, "1 Gbit/s": 1e9}
RULES = ("all-reduce", "topk(density=0.01)", "topk(density=0.1)", "adasum", "local(steps=4)", "shadow(every=5)")
PERIOD = 20
"""Steps that are counted together, a multiple of every rule's period."""
WARM_UP, STEPS = 5, 45
LATENCY_S = 80e-6
PATIENCE_S = 240.0
WANTED = 0.10
TRAINING = """
import torch

SAMPLES = torch.randn({batch}, {shape})

def prepare(columns):
    return {{"x": SAMPLES[: len(columns["x"])]}}

def loss(outputs, batch):
    return outputs[0].square().mean()

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=1e-3)
"""


class Wide(nn.Module):
    """Three products; most of its step on a slow link is the link."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 64)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Encoder(nn.Module):
    """Two layers of a transformer on sequences of 32; a third of its weights, and as much to compute."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(192, 4, 768, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is trained.

    Attributes:
        name: In words.
        make: With drawn weights.
        shape: Of a sample.
        batch: Samples in a step, of both replicas.
    """

    name: str
    make: type[nn.Module]
    shape: tuple[int, ...]
    batch: int


MODELS = (Model("wide", Wide, (512,), 256), Model("encoder", Encoder, (32, 192), 32))


@dataclass(frozen=True, slots=True)
class Step:
    """A step under a rule.

    Attributes:
        model, link, rule: Of which.
        predicted_s: By ``sync``.
        exposed_s: Of that, what it waits for replicas.
        own_s: Of that, what a replica does by itself behind its backward: the rule's work, the optimizer's step.
        wire_s: What is predicted from the rate of the wire.
        measured_s: The median over so many steps together.
        sent_bytes: Of all replicas in a step, as the log counted them.
        planned_bytes: As the rule says.
    """

    model: str
    link: str
    rule: str
    predicted_s: float
    exposed_s: float
    own_s: float
    wire_s: float
    measured_s: float
    sent_bytes: float
    planned_bytes: float

    @property
    def error(self) -> float:
        """Return by what part the prediction is too long."""
        return self.predicted_s / self.measured_s - 1

    @property
    def wire_error(self) -> float:
        """Return the same from the rate of the wire."""
        return self.wire_s / self.measured_s - 1


def link(*, realtime: bool, hosts_count: int = 2) -> Iterator[str | Line]:
    """Yield a table of steps, and how far predictions are off."""
    steps: list[Step] = []
    try:
        with first(realtime), throttled_hosts(hosts_count) as hosts, TemporaryDirectory() as name:
            for model in MODELS:
                prepared = Prepared(Path(name) / model.name, model, hosts)
                for label, rate in LINKS.items():
                    steps += prepared.steps(label, rate)
    except NotPermittedError as error:
        yield f"no throttled link: {error}"
        return
    yield ""
    yield "| model | link | rule | predicted | exposed | own work | measured | error | from the wire's rate | bytes |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for one in steps:
        times = (one.predicted_s, one.exposed_s, one.own_s, one.measured_s)
        shown = " | ".join(f"{1e3 * time_s:.1f} ms" for time_s in times)
        share = f"{one.sent_bytes / one.planned_bytes:.3f}"
        yield (
            f"| {one.model} | {one.link} | `{one.rule}` | {shown} | {100 * one.error:+.1f} % | "
            f"{100 * one.wire_error:+.1f} % | {share} |"
        )
    yield ""
    for label in LINKS:
        ours = [one for one in steps if one.link == label]
        yield _line(label, "as planned", [one.error for one in ours])
        yield _line(label, "from the wire's rate", [one.wire_error for one in ours])


def _line(label: str, which: str, errors: Sequence[float]) -> Line:
    low, middle, high = (f"{100 * part:+.1f} %" for part in quantiles(errors, n=4, method="inclusive"))
    size = median(map(abs, errors))
    said = f"{100 * size:.1f} % ({low}, {middle}, {high})"
    what = f"step on {label} {which}, {len(errors)} runs: median size of the error (signed quartiles)"
    return Line("all", what, f"<= {100 * WANTED:.0f} %", said, size <= WANTED, "wanted of predicted over measured")


class Prepared:
    """A model that is compiled and profiled, in a folder."""

    def __init__(self, folder: Path, model: Model, hosts: Sequence[Host]) -> None:
        folder.mkdir()
        self._folder, self._model, self._hosts = folder, model, hosts
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about itself
            torch.onnx.export(
                model.make().eval(),
                (torch.ones(8, *model.shape),),
                folder / "model.onnx",
                dynamic_shapes=({0: "batch"},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        training = TRAINING.format(batch=model.batch, shape=", ".join(map(str, model.shape)))
        (folder / "train.py").write_text(training, encoding="utf-8")
        replica = model.batch // len(hosts)
        batches = f"{max(1, replica // 4)},{replica}"
        # replicas are machines of their own, and the link is measured by nobody but the runs
        only = ("--no-link", "--no-replicas")
        profile = ("--mode", "training", "--backend", "torch", "--batches", batches, *only)
        self._profile("profile", "model.onnx", *profile)
        self._pool("fast", 100e9)
        plan = ("--mode", "training", "--backend", "torch", "--batch", str(model.batch), "--max-stages", "1")
        plan = (*plan, "--optimizer", "sgd")  # that of the training file
        # estimates give both hosts a replica, also where the profile says that they take each other's cores
        wanted = ("--objective", "throughput", "--cluster", "fast.toml")
        self._command("model.onnx", *plan, *wanted, "-o", "out")

    def steps(self, label: str, rate: float) -> Iterator[Step]:
        """Yield a step under every rule on a link."""
        for host in self._hosts:
            host.throttle(rate)
        reached = 8 * reached_bytes_per_s(self._hosts, _environment())
        rows, wires = self._predicted(reached), self._predicted(rate * GOODPUT)
        for rule in RULES:
            name = rule_text(parse_rule(rule))
            row, log = rows[name], self._trained(rule)
            exposed_s, planned = sum(row["exposed_s"]), sum(row["sent_bytes"])
            own_s = sum(row["handling_s"]) + sum(row["update_s"])
            sent = [sum(step.get("sync_bytes", {}).values()) for step in log]
            measured_s = _whole_periods_s([step["pace_s"] for step in log])
            counted = sum(sent[WARM_UP:]) / len(sent[WARM_UP:])
            predicted = (row["step_s"], exposed_s, own_s, wires[name]["step_s"])
            yield Step(self._model.name, label, rule, *predicted, measured_s, counted, planned)

    def _predicted(self, bits_per_s: float) -> dict[str, dict[str, Any]]:
        """Return what `sync` says of every rule on a link."""
        rules = [word for rule in RULES for word in ("--rule", rule)]
        self._pool("slow", bits_per_s)
        pool = ("--cluster", "slow.toml", "--profile", "profile.json", "--allow-stale")
        told = json.loads(self._command("sync", "model.onnx", "--plan", "out", *pool, *rules, "--json"))
        return {row["rule"]: {**row, "update_s": told["update_s"]} for row in told["rules"]}

    def _pool(self, name: str, bits_per_s: float) -> None:
        text = POOL.format(units=len(self._hosts), rate=bits_per_s, latency_us=1e6 * LATENCY_S)
        (self._folder / f"{name}.toml").write_text(text, encoding="utf-8")

    def _trained(self, rule: str) -> list[dict[str, Any]]:
        """Return the log of a run of a rank on every host."""
        log = self._folder / "log.jsonl"
        log.unlink(missing_ok=True)
        data = ("--data", "random:x=float32")  # one a sample: to draw inputs would take the core that computes
        words = ("--train", "train.py", *data, "--steps", str(STEPS), "--sync", rule, "--log", str(log), "-q")
        agent = (sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(self._hosts)}")
        agent = (*agent, f"--master-addr={self._hosts[0].address}", "--master-port=29500")
        run = ("-m", "--", "heterps_compile", "run", "out", *words)
        ranks = [host.words(*agent, f"--node-rank={number}", *run) for number, host in enumerate(self._hosts)]
        self._end([self._start(rank) for rank in ranks], rule)
        told = (json.loads(line) for line in log.read_text("utf-8").splitlines())
        return [line for line in told if "pace_s" in line]

    def _profile(self, *words: str) -> None:
        """Profile on all hosts at once, as they train: they share the memory and the caches of one machine."""
        started = [
            self._start(host.words(sys.executable, "-m", "heterps_compile", *words, "-o", f"profile{place or ''}.json"))
            for place, host in enumerate(self._hosts)
        ]
        self._end(started, "profile")

    def _start(self, words: Sequence[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            words,
            cwd=self._folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    @staticmethod
    def _end(started: Sequence["subprocess.Popen[str]"], what: str) -> None:
        """Wait for processes.

        Raises:
            SystemExit: with what they said, where one fails.
        """
        try:
            said = [process.communicate(timeout=PATIENCE_S)[0] for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if any(process.returncode for process in started):
            raise SystemExit(f"{what}: " + "\n".join(said))

    def _command(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "heterps_compile", *words],
            cwd=self._folder,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"heterps-compile {shlex.join(words)}\n{done.stdout}{done.stderr}")
        return done.stdout


def _whole_periods_s(paces_s: Sequence[float]) -> float:
    """Return the time of a step: the median over all runs of steps as long as every rule's period, warm-up left out."""
    counted = paces_s[WARM_UP:]
    return median(sum(counted[at : at + PERIOD]) / PERIOD for at in range(len(counted) - PERIOD + 1))


def _environment() -> dict[str, str]:
    bins = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": bins, "OMP_NUM_THREADS": "1"}


POOL = """
description = "This machine's cores, a link each"
[[device]]
name = "cpu-core"
kind = "cpu"
price = "free"
price_source = "it is here"
price_date = "2026"
max_units = {units}
memory = "8 GiB"
peak = {{ float32 = "50 GFLOP/s" }}
memory_bandwidth = "8 GB/s"
network_bandwidth = "{rate:.0f} bit/s"
network_latency = "{latency_us:.0f} us"
input_bandwidth = "10 GB/s"
launch = "2 us"
efficiency = 0.6
compute_parallel = 1.0
data_parallel = 1.0
"""
