"""Degrees of tensor parallelism are options of stages: as good as the best of all plans."""

import json
import random
from itertools import pairwise, product
from math import inf
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from heterps_compile.cli.main import command
from heterps_compile.errors import InfeasibleError

DEGREES = (1, 2, 3)


def drawn(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)  # noqa: S311 - a test draws problems
    layers = []
    for name in "abcd"[: rng.randint(2, 4)]:
        work = rng.randint(1, 9)
        times = [
            {"device": "gpu", "tensor_parallel": t, "samples": [1], "forward_s": [work * rng.uniform(0.8, 1.3) / t]}
            for t in DEGREES
            if t == 1 or rng.random() < 0.8
        ]
        layers.append({"name": name, "parameter_bytes": rng.choice([1, 3, 5]), "times": times})
    objective = rng.choice(["throughput", "price", "cost"])
    device = {"name": "gpu", "kind": "gpu", "network_bandwidth": "1 GB/s", "max_units": rng.randint(2, 6),
              "memory": f"{rng.choice([6, 9, 100])} B", "price": "2 USD/h", "price_source": "made up",
              "price_date": "2026"}  # fmt: skip
    least = 0 if objective == "throughput" else rng.choice([0.05, 0.1, 0.3])
    return {"format": "heterps-compile problem", "version": 1, "name": "drawn", "layers": layers, "batch": 4,
            "pool": {"device": [device]}, "request": {"objective": objective, "min_throughput": least}}  # fmt: skip


def best(problem: dict[str, Any]) -> float:
    """Enumerate all runs of layers with all replicas and degrees; nothing crosses between stages."""
    layers, [device] = problem["layers"], problem["pool"]["device"]
    times = [{each["tensor_parallel"]: each["forward_s"][0] for each in layer["times"]} for layer in layers]
    room, least, found = float(device["memory"].split()[0]), problem["request"]["min_throughput"], inf
    options = [(k, t) for t in DEGREES for k in range(1, device["max_units"] // t + 1)]
    for cuts in product((False, True), repeat=len(layers) - 1):
        runs = list(pairwise([0, *(i for i, cut in enumerate(cuts, 1) if cut), len(layers)]))
        for choice in product(options, repeat=len(runs)):
            units, batch_s = sum(k * t for k, t in choice), 0.0
            for (begin, end), (k, t) in zip(runs, choice, strict=True):
                fits = sum(layer["parameter_bytes"] for layer in layers[begin:end]) / t <= room
                batch_s = max(batch_s, sum(of.get(t, inf) for of in times[begin:end]) * 4 / k if fits else inf)
            if units <= device["max_units"] and 4 / batch_s >= least * (1 - 1e-9) and batch_s < inf:
                values = {"throughput": batch_s, "price": 2 * units, "cost": 2 * units / 3600 * batch_s / 4 * 1e6}
                found = min(found, values[problem["request"]["objective"]])
    return found


def test_as_good_as_the_best_of_all_plans(tmp_path: Path) -> None:
    path, seen = tmp_path / "problem.json", set()
    for seed in range(6):
        problem = drawn(seed)
        path.write_text(json.dumps(problem))
        result, least = CliRunner().invoke(command, [str(path), "--json"]), best(problem)
        if least == inf:
            assert isinstance(result.exception, InfeasibleError), seed
            continue
        document = json.loads(result.stdout)
        assert document["objective"]["value"] == pytest.approx(least, rel=1e-9), seed
        assert document["bound"] == pytest.approx(least, rel=1e-6), seed
        seen |= {stage["replicas"][0]["tensor_parallel"] for stage in document["plan"]["stages"]}
    assert len(seen) > 1


def test_machines_rented_whole_have_one_degree_and_their_bound_says_so(tmp_path: Path) -> None:
    problem, path = drawn(4), tmp_path / "problem.json"
    machine = {"units_per_machine": 2, "whole_machines": True, "inner_bandwidth": "1 GB/s", "inner_latency": "1 us"}
    problem["pool"]["device"][0] |= {**machine, "max_units": 4, "memory": "100 B"}
    path.write_text(json.dumps(problem))
    shown = CliRunner().invoke(command, [str(path), "-v"]).output
    assert " ".join(shown.split()).count("one degree of tensor parallelism") == 2, shown
