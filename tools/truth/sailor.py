"""Sailor's measured plans (SOSP 2025) as problem files and plans: nothing is fitted.

Layers: the published profiles, forward, backward and update of a layer in one micro-batch on a group. Between two
profiled sizes times are read off a line. A value between stages is a message at the published rate of the slowest pair
of nodes. Gradients are a ring of ``2 (k - 1)`` messages of a k-th part between units of different nodes, at the part of
the nodes' rate that one unit of a group has. The step is the simulated 1F1B one.

Memory is 4 bytes of every parameter's weight, gradient and two states, and the activations of the micro-batches that
1F1B holds. What a layer works on in its backward, and what a process holds besides tensors, are told apart
(:func:`memory_left`).
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_compile.prediction.predict_step import Prediction, predict_step
from heterps_compile.problem_file.given_plan import FORMAT as PLAN_FORMAT
from heterps_compile.problem_file.given_plan import make_given_plan
from heterps_compile.problem_file.read_problem import FORMAT, make_given
from truth.scores import Row

_SIZES = [2.0**power for power in range(8, 37)]
Kind = tuple[str, int, str, int]
"""GPU, GPUs of its node, zone, degree of tensor parallelism."""
Trial = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]
"""Name, problem, plan, and what was measured."""


class Sailor:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profiles = json.loads((folder / "profiles_tmp.json").read_text())
        self.info = json.loads((folder / "llm_info.json").read_text())
        self.rates = json.loads((folder / "multizone_bandwidths_het.json").read_text())

    def trials(self) -> Iterator[Trial]:
        for path in sorted(self.folder.glob("plans/*/*/*/*.json")):
            record = json.loads(path.read_text())
            record = record[0] if isinstance(record, list) else record
            yield (
                f"{path.parts[-4]}/{path.parts[-3]}/{path.stem}",
                *self.trial(path.parts[-3], record),
                record,
            )

    def trial(self, model: str, record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The problem and the plan of one measured plan."""
        [line] = record["pipeline_list"]
        kinds: dict[Kind, None] = {}
        stages = []
        for layers, replicas in zip(line["layers_per_stage"], line["tmp_per_stage"], strict=True):
            listed: dict[Kind, int] = {}
            for nodes, degree in replicas:
                gpu, of_node, zone = nodes[0]
                kind = (gpu, int(of_node), zone, int(degree))
                kinds[kind] = None
                listed[kind] = listed.get(kind, 0) + 1
            stages.append((layers, listed))
        widest_group = max(degree for *_, degree in kinds)
        rings: dict[tuple[str, int], dict[Kind, int]] = {}
        for _, listed in stages:
            count = sum(listed.values())
            for kind in listed if count > 1 else ():
                rings.setdefault((self.device(kind), count), {}).update(listed)
        problem = {
            "format": FORMAT,
            "version": 1,
            "name": model,
            "layers": [self.layer(model, layer, kinds) for layer in sorted(map(int, self.info[model]["1"]))],
            "edges": self.edges(model, widest_group),
            "transfers": self.transfers(list(kinds)),
            "pool": {
                "device": [
                    {
                        "name": self.device(kind),
                        "kind": "gpu",
                        "network_bandwidth": "1 GB/s",
                        "memory": f"{self.memory(kind[0])} GB",
                    }
                    for kind in {self.device(kind): kind for kind in kinds}.values()
                ]
            },
            "all_reduces": [self.all_reduce(device, list(of), count) for (device, count), of in rings.items()],
            "batch": record["gbs"],
        }
        plan = {
            "format": PLAN_FORMAT,
            "version": 1,
            "micro_batch": record["mbs"],
            "stages": [
                {
                    "layers": [f"layer {each}" for each in layers],
                    "replicas": [
                        {"device": self.device(kind), "count": count, "tensor_parallel": kind[3]}
                        for kind, count in listed.items()
                    ],
                }
                for layers, listed in stages
            ],
        }
        return problem, plan

    @staticmethod
    def device(kind: Kind) -> str:
        return f"{kind[0]}.{kind[1]}.{kind[2]}"

    @staticmethod
    def memory(gpu: str) -> int:
        """Gigabytes of a GPU: what its name ends with, or its data sheet's."""
        return {"Titan-RTX": 24, "RTX-2080": 11, "RTX-3090": 24}.get(gpu) or int(gpu.rsplit("-", 1)[1])

    def layer(self, model: str, layer: int, kinds: Iterable[Kind]) -> dict[str, Any]:
        times = []
        for gpu, of_node, zone, degree in kinds:
            profile = self.profiles[model][gpu]
            sizes = sorted(int(size) for size in profile if str(degree) in profile[size])
            found = [profile[str(size)][str(degree)][str(layer)] for size in sizes]
            info = self.info[model][str(degree)][str(layer)]
            times.append(
                {
                    "device": self.device((gpu, of_node, zone, degree)),
                    "tensor_parallel": degree,
                    "samples": sizes,
                    "forward_s": [each[0] for each in found],
                    "backward_s": [each[1] for each in found],
                    "update_s": found[0][2],
                    "parameter_bytes": info["params_bytes"],
                    "activation_bytes_per_sample": info["act_mem_bytes"],
                }
            )
        return {"name": f"layer {layer}", "times": times}

    def edges(self, model: str, degree: int) -> list[dict[str, Any]]:
        info = self.info[model][str(degree)]
        return [
            {"from": f"layer {i}", "to": [f"layer {i + 1}"], "bytes_per_sample": info[str(i)]["act_output_bytes"]}
            for i in range(len(info) - 1)
        ]

    def rate(self, first: Kind, second: Kind, size_bytes: float) -> float:
        """Bytes a second between two nodes for a message; below 1 MB that of 1 MB, never above the peak."""
        coefficients, peak = self.rates[first[2]][first[0]][str(first[1])][second[2]][second[0]][str(second[1])]
        power = math.log2(max(1.0, size_bytes / 1e6))
        return min(peak, 1e9 * sum(c * power ** (len(coefficients) - 1 - i) for i, c in enumerate(coefficients)))

    def transfers(self, kinds: list[Kind]) -> list[dict[str, Any]]:
        pairs = {tuple(sorted((self.device(a), self.device(b)))): (a, b) for a in kinds for b in kinds}
        return [
            {
                "between": list(names),
                "sizes_bytes": _SIZES,
                "times_s": [size / self.rate(*pair, size) for size in _SIZES],
            }
            for names, pair in pairs.items()
        ]

    def all_reduce(self, device: str, kinds: list[Kind], count: int) -> dict[str, Any]:
        """A ring among units of different nodes, of a stage's kinds; the units of a group share their node's rate."""
        times = []
        for size in _SIZES:
            message = size / count
            slowest = min(self.rate(a, b, message * a[3]) / max(a[3], b[3]) for a in kinds for b in kinds)
            times.append(2 * (count - 1) * message / slowest)
        return {"device": device, "units": count, "sizes_bytes": _SIZES, "times_s": times}


def predicted(problem: dict[str, Any], plan: dict[str, Any]) -> Prediction:
    read = make_given(problem, "the problem")
    return predict_step(read, make_given_plan(plan, read, "the plan"))


def rows(folder: Path) -> dict[str, list[Row]]:
    """Rows of step time, gradient reduction and memory."""
    found: dict[str, list[Row]] = {"step": [], "all-reduce": [], "memory of the fullest GPU": []}
    for name, problem, plan, measured in Sailor(folder).trials():
        step = predicted(problem, plan)
        cluster = name.split("/")[0]
        found["step"].append(Row(name, measured["real"], step.step_s, cluster))
        if max(stage.stage.width for stage in step.stages) > 1 and not name.endswith(
            "N4_D4"
        ):  # a known defect of the data
            reduced_s = max(stage.all_reduce_s for stage in step.stages)
            found["all-reduce"].append(Row(name, measured["red_grads"], reduced_s, cluster))
        held = max(max(stage.held_bytes) for stage in step.stages)
        found["memory of the fullest GPU"].append(Row(name, measured["max_mem"], held, cluster))
    return found


@dataclass(frozen=True)
class MemoryLeft:
    """Of a plan: samples of a micro-batch, and bytes of its fullest GPU that are not predicted.

    ``beside_bytes`` are without two times the activations that a micro-batch has in the largest layer of the stage.
    """

    samples: int
    left_bytes: float
    beside_bytes: float


def memory_left(folder: Path) -> list[MemoryLeft]:
    data = Sailor(folder)
    found = []
    for name, problem, plan, measured in data.trials():
        stage = max(predicted(problem, plan).stages, key=lambda each: max(each.held_bytes))
        degree, model = stage.stage.replicas[0].tensor_parallel, name.split("/")[1]
        activations = [data.info[model][str(degree)][str(layer)]["act_mem_bytes"] for layer in stage.stage.layers]
        left = measured["max_mem"] - max(stage.held_bytes)
        found.append(MemoryLeft(measured["mbs"], left, left - 2 * measured["mbs"] * max(activations)))
    return found


def sizes_between(folder: Path) -> tuple[list[Row], list[Row]]:
    """Every profiled size between two others, predicted by the line between these, and by the nearer of them.

    Times are of a whole model on one group, forward and backward.
    """
    line, nearer = [], []
    for model, gpus in Sailor(folder).profiles.items():
        for gpu, sizes in gpus.items():
            for degree in sorted({each for found in sizes.values() for each in found}):
                known = sorted(int(size) for size in sizes if degree in sizes[size])
                times = {size: sum(f + b for f, b, _ in sizes[str(size)][degree].values()) for size in known}
                for low, size, high in zip(known, known[1:], known[2:], strict=False):
                    what = f"{model} {gpu} x {degree} at {size}"
                    share = (size - low) / (high - low)
                    line.append(Row(what, times[size], times[low] * (1 - share) + times[high] * share))
                    near = low if size - low <= high - size else high
                    nearer.append(Row(what, times[size], times[near]))
    return line, nearer
