"""Whether nine of ten runs end as soon as `machines` says, on clusters of which nothing was learned.

A prediction is that of data sheets: computing of one traced transformer layer (or, of CM-DARE's nets, of their FLOPs at
batches of 128, as `resnet_base` of Tensor2Tensor has them) by roofline, sending by the part of a link that its kind
reaches, the step simulated. Every cluster is left out once; the runs of all others are learned from, each cluster a
source, and the left-out runs are held to what that says of their kind of GPU.

Sailor's profiles do not say their precision. Those of OPT-350 and GPT-Neo exceed the float32 peak of their GPU on A100
or GH200, so that they are taken for TF32; OPT-30 keeps below it at a fifth of the others' speed, and is float32. A V100
has no TF32. GH200 is taken for the H100 that it has. On k units a layer takes a k-th, besides its all-reduces.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heterps_compile.api import read_model
from heterps_compile.cluster.link_kinds import LINK_KINDS
from heterps_compile.machines.learned import Correction, Parts, can_be_told_apart, learn
from heterps_compile.machines.step_times import StepTimes
from heterps_compile.offers.as_device import data_sheet
from heterps_compile.plan.request import make_request
from heterps_compile.sync_rules.network import Network
from truth import cm_dare, vtrain
from truth.sailor import Kind, Sailor, predicted

GPUS = {"V100-16": "v100", "A100-40": "a100", "A100-80": "a100-80gb", "GH-96": "h100"}
MODELS = {"OPT-350": (1024, 16, "tf32"), "GPT-Neo-2.7": (2560, 20, "tf32"), "OPT-30": (7168, 56, "fp32")}
"""Hidden size, heads, precision."""

SEQUENCE = 2048
OPT_VOCABULARY = 50_272
CM_DARE_BATCH = 128
_SHARE = 0.9
NVLINK_BYTES_PER_S = {"a100": 300e9, "h100": 450e9}
"""Of a GPU's data sheet, one direction."""


class Layer(nn.Module):
    """A transformer layer that keeps its attention scores, as these frameworks did."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = torch.full((sequence, sequence), -1e9, device=x.device).triu(1)
        scores = torch.softmax(q @ k.transpose(2, 3) / (hidden // self.heads) ** 0.5 + mask, -1)
        x = x + self.dropout(self.out((scores @ v).transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.second(x)))))


@cache
def work_s(gpu: str, precision: str, batch: int, sequence: int, hidden: int, *, heads: int = 0, out: int = 0) -> float:
    """Forward and backward of a layer, or of a product with ``out`` columns, on one unit by its data sheet."""
    with torch.device("meta"):
        model = Layer(hidden, heads) if heads else nn.Linear(hidden, out)
    graph = read_model(model, (torch.empty(batch, sequence, hidden, device="meta"),))
    times = StepTimes(lambda _: graph, make_request("USD", mode="training", precision=precision))
    return float(times.work_s(data_sheet(gpu), batch)[0].sum())


def inside_s(gpu: str, units: int, size_bytes: float) -> float:
    """An all-reduce of units of one machine."""
    rate = NVLINK_BYTES_PER_S[gpu] * LINK_KINDS["nvlink"].efficiency
    return Network(0.0, 0.0, units, 1 / rate).all_reduce_s(size_bytes, units)


@dataclass(frozen=True)
class Cluster:
    """Runs of one kind of GPU in one place."""

    gpu: str
    runs: list[Parts]


@dataclass(frozen=True)
class Held:
    """A cluster that was left out, whether others have its kind, what these say, and how much later its runs were."""

    name: str
    cluster: Cluster
    is_known: bool
    correction: Correction
    later: list[float]

    @property
    def inside(self) -> float:
        return sum(late <= self.correction.late for late in self.later) / len(self.later)


class FromSheets(Sailor):
    """Sailor's plans with layers by data sheets; the network is the published one, or none at all."""

    sends = True

    def layer(self, model: str, layer: int, kinds: Any) -> dict[str, Any]:
        listed = super().layer(model, layer, kinds)
        (hidden, heads, precision), last = MODELS[model], len(self.info[model]["1"]) - 1
        for times, (name, *_, degree) in zip(listed["times"], kinds, strict=True):
            gpu, samples = GPUS[name], [1, 8]
            summed = [4 * inside_s(gpu, degree, 4.0 * each * SEQUENCE * hidden) * self.sends for each in samples]
            kind: dict[str, int] = {"out": OPT_VOCABULARY} if layer == last else {"heads": heads}
            whole = [work_s(gpu, precision, each, SEQUENCE, hidden, **kind) / degree for each in samples]
            found = [a + b for a, b in zip(whole, summed, strict=True)] if layer else [0.0, 0.0]
            times |= {"samples": samples, "update_s": 0.0}
            times |= {"forward_s": [each / 3 for each in found], "backward_s": [2 * each / 3 for each in found]}
        return listed

    def rate(self, first: Kind, second: Kind, size_bytes: float) -> float:
        return super().rate(first, second, size_bytes) if self.sends else 1e18

    def profiled(self) -> Iterator[tuple[str, Parts]]:
        """One layer's micro-batch on one unit, by GPU."""
        for model, (hidden, heads, precision) in MODELS.items():
            for name, sizes in self.profiles[model].items():
                for size, degrees in sizes.items() if name in GPUS else ():
                    if "1" in degrees:
                        forward_s, backward_s, _ = degrees["1"]["5"]
                        used = "fp32" if name == "V100-16" else precision
                        computed_s = work_s(GPUS[name], used, int(size), SEQUENCE, hidden, heads=heads)
                        yield name, Parts(forward_s + backward_s, computed_s, 0.0)


def sailor_clusters(folder: Path) -> dict[str, Cluster]:
    sending, alone = FromSheets(folder), FromSheets(folder)
    alone.sends = False
    found = defaultdict(list)
    for name, parts in sending.profiled():
        found[name].append(parts)
    for (_, *one, measured), (_, *other, _) in zip(sending.trials(), alone.trials(), strict=True):
        whole_s, computed_s = predicted(*one).step_s, predicted(*other).step_s
        found["GH-96"].append(Parts(measured["real"], computed_s, whole_s - computed_s))
    return {f"Sailor's {name}": Cluster(GPUS[name], runs) for name, runs in found.items()}


def vtrain_parts(run: vtrain.Run) -> Parts:
    """A row; activations are recomputed, so that a layer's forward runs twice."""
    shape = ("a100", "fp16", run.micro_batch, run.sequence, run.hidden)
    value_bytes, node = 2.0 * run.tokens * run.hidden, vtrain.NODE
    inner = NVLINK_BYTES_PER_S["a100"] * LINK_KINDS["nvlink"].efficiency
    rate = inner if run.gpus <= node else vtrain.NODE_BYTES_PER_S / node
    units = min(run.d, max(1, node // run.t)) if run.gpus > node else run.d
    network = Network(min(node, run.t) / vtrain.NODE_BYTES_PER_S * units, 0.0, units, 1 / inner)
    alone = vtrain.Times(
        work_s(*shape, heads=run.heads) * 4 / 3 / run.t,
        work_s(*shape, out=vtrain.VOCABULARY) / run.t,
        0.0,
        0.0,
        0.0,
    )
    sent = replace(
        alone,
        layer_s=alone.layer_s + 6 * inside_s("a100", run.t, value_bytes),
        hop_s=2 * value_bytes / rate * (run.p > 1),
        all_reduce_s=network.all_reduce_s(2 * run.parameters, run.d),
    )
    computed_s, whole_s = (predicted(*vtrain.given(run, of)).step_s for of in (alone, sent))
    return Parts(run.measured_s, computed_s, whole_s - computed_s)


def clusters(data: Path) -> dict[str, Cluster]:
    found = sailor_clusters(data / "sailor")
    for name, file in (("one node", "single"), ("many nodes", "multi")):
        measured = vtrain.runs(data / "vtrain" / f"ground_truth_{file}.csv")
        found[f"vTrain's A100, {name}"] = Cluster("a100", [vtrain_parts(run) for run in measured])
    for name in cm_dare.GPUS:
        rate, timed = data_sheet(name.lower()).flops_per_s("float32"), cm_dare.timed_nets(data / "cm-dare", name)
        runs = [Parts(step_s, CM_DARE_BATCH * net.flops / rate, 0.0) for net, step_s in timed.values()]
        found[f"CM-DARE's {name}"] = Cluster(name.lower(), runs)
    return found


def later(run: Parts, computing: float = 1.0, sending: float = 1.0) -> float:
    """By which part a run took longer than predicted with these factors."""
    return run.measured_s / (run.computed_s * computing + (run.sent_s or 0.0) * sending) - 1


def unknown(found: Sequence[Cluster]) -> float:
    """By which part nine of ten runs are at most later than data sheets say, each cluster as a whole counting once."""
    ranked = sorted((later(run), 1 / len(cluster.runs)) for cluster in found for run in cluster.runs)
    seen = accumulate(weight for _, weight in ranked)
    return next(late for (late, _), weight in zip(ranked, seen, strict=True) if weight >= _SHARE * len(found))


def held_out(found: Mapping[str, Cluster]) -> Iterator[Held]:
    """What is learned of every cluster from the others, and the runs that keep to it."""
    for name, cluster in found.items():
        others = {other: each for other, each in found.items() if other != name}
        rows, sources = defaultdict[str, list[Parts]](list), defaultdict[str, list[str]](list)
        late = unknown(list(others.values()))
        for source, each in others.items():
            rows[each.gpu] += each.runs
            sources[each.gpu] += [source] * len(each.runs)
        learned = learn(
            {gpu: [1 + later(run) for run in of] for gpu, of in rows.items()},
            parts={gpu: of for gpu, of in rows.items() if can_be_told_apart(of)},
            sources=sources,
            unknown=late,
        )
        correction = learned.of(cluster.gpu) or Correction(cluster.gpu, 0, 1.0, 0.0, late)
        errors = [later(run, correction.factor, correction.of_sending) for run in cluster.runs]
        yield Held(name, cluster, cluster.gpu in rows, correction, errors)
