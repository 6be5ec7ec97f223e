"""vTrain's measured iterations (MICRO 2024): layer times fitted on half of the 2- and 4-GPU rows, the rest predicted.

One transformer layer, one micro-batch of b samples of s tokens, hidden h, a heads, on t units (activations are
recomputed in every row, so that the forward runs twice)::

    works  = FLOPs / (t peak e) + bytes_h b s h + scores b a s^2 / t + weights h^2 / t
             + 6 all-reduces of 2 b s h bytes among t units              what the GPU takes
    layer  = (launch^q + works^q)^(1/q)                                  near the longer of the two: the processor
                                                                         starts a layer meanwhile
    head   = the same of launch_h, and of FLOPs and logits b s V / t     on the last stage
    hop    = message_bytes b s h                                         a micro-batch and neighbour, p > 1
    step   = overhead + all-reduce of 2 B gradients of a unit's parameters among d replicas

The nine factors, which are not negative, and q are fitted together by least squares of the relative error (soft_l1 at
5 %) on the closed form ``(M - 1) max stage + sum of stages``; judged is the simulated step of `predict`, of a problem
file whose layer times are these. All-reduces inside a node are the published table of measurements as it is, its line
going on beyond it. Across nodes: 8 units share 4 x 200 Gbit/s, as the paper describes its cluster; a ring.

The vocabulary is 51,200; the embedding is tied and held by both ends, as Megatron has it.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from heterps_compile.cluster.link_kinds import LINK_KINDS
from heterps_compile.cost.interpolation import interpolate
from heterps_compile.problem_file.given_plan import FORMAT as PLAN_FORMAT
from heterps_compile.problem_file.read_problem import FORMAT
from truth.sailor import predicted
from truth.scores import Row, is_fitted

VOCABULARY = 51_200
NODE = 8  # units
NODE_BYTES_PER_S = 4 * 200e9 / 8 * LINK_KINDS["fabric"].efficiency
_HALF = 2  # bytes of an activation and of a gradient
_PEAK = 312e12  # FLOP/s of the data sheet, half precision
_SIZES = [2.0**power for power in range(10, 38)]

START = {
    "launch": 2e-3, "1/e": 1.0, "bytes_h": 0.01, "scores": 0.01, "weights": 0.01, "launch_h": 1e-3, "logits": 0.06,
    "message_bytes": 0.1, "overhead": 3e-3, "q - 1": 1.0,
}  # fmt: skip
"""Where the fit begins; times are in seconds, those of 10^9 elements too."""


@dataclass(frozen=True)
class Run:
    """A row: degrees t, d, p of tensor, data and pipeline parallelism."""

    gpus: int
    batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    t: int
    d: int
    p: int
    measured_s: float

    @property
    def configuration(self) -> str:
        numbers = (self.gpus, self.batch, self.micro_batch, self.hidden, self.layers, self.t, self.d, self.p)
        return "-".join(map(str, numbers))

    @property
    def model(self) -> tuple[int, ...]:
        """What rows must share for their plans to be compared."""
        return self.gpus, self.batch, self.hidden, self.layers

    @property
    def micro_batches(self) -> int:
        """Of one pipeline."""
        return self.batch // (self.micro_batch * self.d)

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.sequence

    @property
    def parameters(self) -> float:
        """Of one unit at an end of the pipeline: its layers and the embedding."""
        return (12 * self.hidden**2 * self.layers / self.p + VOCABULARY * self.hidden) / self.t


def runs(path: Path) -> list[Run]:
    with path.open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    names = (
        "# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers", "sequence length",
        "tensor parallelism", "data parallelism", "pipeline parallelism",
    )  # fmt: skip
    return [Run(*(int(row[name]) for name in names), float(row["iteration time (ms)"]) / 1e3) for row in found]


class Cluster:
    """What messages take: inside of a node as measured, across nodes by the reached part of the data sheet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cache  # noqa: B019 - one of them lives as long as the program
    def table(self, units: int) -> list[tuple[float, float]]:
        path = self.folder / "all_reduce_a100" / f"AR_GPU{units}_1M_1024M_LUT.csv"
        with path.open(encoding="utf-8") as file:
            return [(float(row[0]), float(row[3]) / 1e9) for row in list(csv.reader(file))[1:]]

    @cache  # noqa: B019 - as above
    def all_reduce_s(self, units: int, size_bytes: float, stride: int = 1) -> float:
        """Of so many units that stand ``stride`` apart."""
        if units < 2:
            return 0.0
        if units * stride <= NODE:
            return interpolate(self.table(units), size_bytes)
        # a ring through nodes: the units of a node that belong to other rings share its network
        return 2 * (units - 1) / units * size_bytes * min(NODE, stride) / NODE_BYTES_PER_S


@dataclass(frozen=True)
class Times:
    """Of one micro-batch: a layer and the head, forward and backward; a stage's hop. Of a step: what is behind."""

    layer_s: float
    head_s: float
    hop_s: float
    all_reduce_s: float
    rest_s: float


def times(run: Run, factors: Mapping[str, float], cluster: Cluster) -> Times:
    elements = run.tokens * run.hidden / 1e9
    e, q = factors["1/e"] / _PEAK / run.t, 1 + factors["q - 1"]
    works = (
        e * 96 * run.tokens * run.hidden**2 * (1 + run.sequence / (6 * run.hidden))
        + factors["bytes_h"] * elements
        + factors["scores"] * run.micro_batch * run.heads * run.sequence**2 / run.t / 1e9
        + factors["weights"] * run.hidden**2 / run.t / 1e9
        + 6 * cluster.all_reduce_s(run.t, _HALF * run.tokens * run.hidden)
    )
    head = e * 6 * run.tokens * run.hidden * VOCABULARY + factors["logits"] * run.tokens * VOCABULARY / run.t / 1e9
    return Times(
        layer_s=(factors["launch"] ** q + works**q) ** (1 / q),
        head_s=(factors["launch_h"] ** q + head**q) ** (1 / q),
        hop_s=factors["message_bytes"] * elements * (run.p > 1),
        all_reduce_s=cluster.all_reduce_s(run.d, _HALF * run.parameters, run.t),
        rest_s=factors["overhead"],
    )


def closed_form_s(run: Run, of: Times) -> float:
    """The iteration; the last stage is the longest, as it has the head."""
    longest = run.layers / run.p * of.layer_s + of.head_s + of.hop_s
    whole = run.layers * of.layer_s + of.head_s + run.p * of.hop_s
    return (run.micro_batches - 1) * longest + whole + of.all_reduce_s + of.rest_s


def fit(found: Sequence[Run], cluster: Cluster) -> dict[str, float]:
    """The factors of the least squares of the relative error; they are searched for by their logarithms."""

    def errors(logs: np.ndarray) -> list[float]:
        factors = dict(zip(START, np.exp(logs), strict=True))
        return [closed_form_s(run, times(run, factors, cluster)) / run.measured_s - 1 for run in found]

    start = np.log(list(START.values()))
    solved = least_squares(errors, start, bounds=(-30, 5), loss="soft_l1", f_scale=0.05)
    return dict(zip(START, map(float, np.exp(solved.x)), strict=True))


def given(run: Run, of: Times) -> tuple[dict[str, Any], dict[str, Any]]:
    """The problem and the plan of a row."""
    per_stage = run.layers // run.p
    names = [f"layer {i}" for i in range(run.layers)]
    own = 12 * run.hidden**2 * _HALF / run.t
    embedding = VOCABULARY * run.hidden * _HALF / run.t
    # a hop holds up both of its stages, so that it is work of theirs and no way between them
    listed = [_layer(run, name, of.layer_s + of.hop_s / per_stage, 1 / 4, own) for name in names]
    listed.insert(0, _layer(run, "embedding", 0.0, 1 / 3, embedding if run.p > 1 else 0.0))
    listed.append(_layer(run, "head", of.head_s, 1 / 3, embedding))
    problem = {
        "format": FORMAT,
        "version": 1,
        "name": "GPT",
        "layers": listed,
        "edges": [{"from": a["name"], "to": [b["name"]], "bytes_per_sample": 0.0} for a, b in pairwise(listed)],
        "pool": {"device": [{"name": "a100", "kind": "gpu", "network_bandwidth": f"{NODE_BYTES_PER_S / NODE} B/s"}]},
        "all_reduces": [
            {
                "device": "a100",
                "units": run.d,
                "sizes_bytes": [_HALF * run.parameters],
                "times_s": [of.all_reduce_s],
            }
        ],
        "step_overhead_s": of.rest_s,
        "batch": run.batch,
    }
    stages = [
        {
            "layers": ["embedding"] * (i == 0)
            + names[i * per_stage : (i + 1) * per_stage]
            + ["head"] * (i == run.p - 1),
            "replicas": [{"device": "a100", "count": run.d, "tensor_parallel": run.t}],
        }
        for i in range(run.p)
    ]
    return problem, {"format": PLAN_FORMAT, "version": 1, "micro_batch": run.micro_batch, "stages": stages}


def _layer(run: Run, name: str, time_s: float, forward_share: float, parameter_bytes: float) -> dict[str, Any]:
    listed = {
        "device": "a100",
        "tensor_parallel": run.t,
        "samples": [run.micro_batch],
        "forward_s": [float(time_s * forward_share)],
        "backward_s": [float(time_s * (1 - forward_share))],
        "parameter_bytes": parameter_bytes,
    }
    return {"name": name, "times": [listed]}


def rows(folder: Path) -> tuple[Mapping[str, list[Row]], Iterator[str]]:
    """Rows by what they are, and the fitted factors in words."""
    cluster = Cluster(folder)
    single, multi = runs(folder / "ground_truth_single.csv"), runs(folder / "ground_truth_multi.csv")
    half = [run for run in single if is_fitted(run.configuration)]
    rest = [run for run in single if not is_fitted(run.configuration)]
    factors = fit(half, cluster)
    two, four = ([run for run in single if run.gpus == gpus] for gpus in (2, 4))
    from_two = fit(two, cluster)

    def predict(found: Sequence[Run], factors: Mapping[str, float] = factors) -> list[Row]:
        return [
            Row(
                run.configuration,
                run.measured_s,
                predicted(*given(run, times(run, factors, cluster))).step_s,
                run.model,
            )
            for run in found
        ]

    return {
        "2 and 4 GPUs, fitted half": predict(half),
        "2 and 4 GPUs, judged half": predict(rest),
        "2 GPUs, all fitted": predict(two, from_two),
        "4 GPUs from those 2 alone, judged": predict(four, from_two),
        "18.4B on 256 and 39.1B on 512 GPUs, judged": predict(multi),
    }, (f"{name} {value:.3g}" for name, value in factors.items())
