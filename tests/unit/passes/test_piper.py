"""Piper's files: as good as the best of all plans by its authors' formula, and what is read and refused."""

import json
import random
from itertools import product
from math import ceil, inf
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from wording import names

from heterps_compile.cli.main import command
from heterps_compile.errors import InfeasibleError, InputError

BERT = Path(__file__).parents[3] / "../shared/data/piper/bert32a100.json"


def configuration(rng: random.Random, near: dict[str, list[int]], degree: int) -> dict[str, Any]:
    """Draw a configuration whose work shrinks less than its units grow."""
    return {
        "id": "vanilla",
        "timePerSample": rng.randint(0, 9) / degree**0.7,
        "parameterSize": rng.choice([0.0, 3.0, 40.0]),
        "memoryUsageA": rng.choice([0.0, 1.0, 2.0]) / degree,
        "memoryUsageB": rng.choice([0.0, 1.0, 3.0]) / degree,
        **{key: {str(i): rng.choice([0.0, 2.0]) * (degree > 1) for i in of} for key, of in near.items()},
    }


def drawn(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)  # noqa: S311 - a test draws problems
    ids = rng.sample(range(20), rng.randint(3, 5))
    edges = [(a, b) for i, a in enumerate(ids) for b in ids[i + 1 :] if rng.random() < 0.5]
    nodes = []
    for i in ids:
        near = {"syncTimeFw": [a for a, b in edges if b == i], "syncTimeBw": [b for a, b in edges if a == i]}
        degrees = [1, 2] if rng.random() < 0.9 else [1]
        nodes.append(
            {"id": i, "name": "n", "TMPCs": {f"{degree}": [configuration(rng, near, degree)] for degree in degrees}}
        )
    rng.shuffle(nodes)
    return {
        "maxDevices": rng.randint(1, 5), "maxMemoryPerDevice": rng.choice([7.0, 11.0, 1e9]), "bandwidth": 2.0,
        "mbsInBatch": 8, "nodes": nodes,
        "edges": [{"sourceId": a, "destId": b, "communicationCost": rng.choice([0.0, 1.0, 5.0])} for a, b in edges],
    }  # fmt: skip


Stage = tuple[frozenset[int], int, int]  # nodes, replicas, degree


def period_s(file: dict[str, Any], stages: list[Stage]) -> float:
    """The authors' formula: the longest stage's time for a sample; inf where a stage has no room, or no times."""
    longest = 0.0
    of = {node["id"]: node["TMPCs"] for node in file["nodes"]}
    for number, (inside, replicas, degree) in enumerate(stages):
        if not all(str(degree) in of[i] for i in inside):
            return inf
        own = {i: of[i][str(degree)][0] for i in inside}
        moved = 0.0
        for edge in file["edges"]:
            a, b = edge["sourceId"], edge["destId"]
            if (a in inside) != (b in inside):
                kept = own[b]["syncTimeFw"][str(a)] if b in inside else own[a]["syncTimeBw"][str(b)]
                moved += 2 * edge["communicationCost"] + kept
        y = ceil(sum(d for _, d, _ in stages[number:]) / replicas)
        if sum(c["memoryUsageA"] * y + c["memoryUsageB"] for c in own.values()) > file["maxMemoryPerDevice"]:
            return inf
        weight = sum(c["parameterSize"] for c in own.values()) / file["mbsInBatch"]
        summed = 4 * (replicas - 1) / replicas * weight
        work = sum(c["timePerSample"] for c in own.values())
        longest = max(longest, work / replicas + (moved / replicas + summed) / file["bandwidth"])
    return longest


def best_s(file: dict[str, Any]) -> float:
    """Enumerate all divisions into stages whose edges run forward, with all replicas and degrees."""
    ids, units, best = [node["id"] for node in file["nodes"]], file["maxDevices"], inf
    options = [(d, t) for t in (1, 2) for d in range(1, units // t + 1)]
    for stage_of in product(range(min(len(ids), units)), repeat=len(ids)):
        at, count = dict(zip(ids, stage_of, strict=True)), max(stage_of) + 1
        if len(set(stage_of)) < count or any(at[e["sourceId"]] > at[e["destId"]] for e in file["edges"]):
            continue
        parts = [frozenset(i for i in ids if at[i] == s) for s in range(count)]
        for choice in product(options, repeat=count):
            if sum(d * t for d, t in choice) <= units:
                best = min(best, period_s(file, [(p, d, t) for p, (d, t) in zip(parts, choice, strict=True)]))
    return best


def run(tmp_path: Path, file: Any, *words: str) -> Result:
    path = tmp_path / "net.json"
    path.write_text(json.dumps(file) if not isinstance(file, str) else file)
    return CliRunner().invoke(command, [str(path), "--json", *words])


def stages_of(document: dict[str, Any]) -> list[Stage]:
    return [
        (frozenset(int(name.rsplit(" ")[-1]) for name in stage["layers"]), each["count"], each["tensor_parallel"])
        for stage in document["plan"]["stages"]
        for each in stage["replicas"]
    ]


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_as_good_as_the_best_of_all_plans_by_the_authors_formula(first: int, tmp_path: Path) -> None:
    degrees = set()
    for seed in range(first, first + 10):
        file, result = drawn(seed), run(tmp_path, drawn(seed))
        least = best_s(file)
        if least == inf:
            assert isinstance(result.exception, InfeasibleError), seed
            continue
        document = json.loads(result.stdout)
        assert document["objective"]["value"] == pytest.approx(least, rel=1e-8), seed
        assert period_s(file, stages_of(document)) == pytest.approx(least, rel=1e-8), seed
        assert document["bound"] == pytest.approx(least, rel=1e-8), seed
        assert document["prediction"]["step_s"] == pytest.approx(least, rel=1e-8), seed
        degrees |= {degree for _, _, degree in stages_of(document)}
    assert degrees == {1, 2}


@pytest.mark.parametrize(
    ("units", "memory_bytes", "value_s", "widths"),
    [(8, 16 * 2**30, 0.149496, [2, 1, 1, 2, 2]), (8, 1e18, 0.122037, [8]), (16, 1e18, 0.061263, [16])],
)
def test_bert_32_is_planned_as_by_its_authors(
    tmp_path: Path, units: int, memory_bytes: float, value_s: float, widths: list[int]
) -> None:
    if not BERT.exists():
        pytest.skip("the published input is not here")
    file = json.loads(BERT.read_text()) | {"maxDevices": units, "maxMemoryPerDevice": memory_bytes}
    document = json.loads(run(tmp_path, file).stdout)
    assert document["objective"]["value"] == pytest.approx(value_s, abs=1e-6)
    assert [replicas for _, replicas, _ in stages_of(document)] == widths


def test_what_is_ignored_is_named_and_what_is_wrong_is_refused(tmp_path: Path) -> None:
    file = drawn(1)
    file["origin"] = "made up"
    file["nodes"][0]["TMPCs"]["1"].append({**file["nodes"][0]["TMPCs"]["1"][0], "id": "recomputed"})
    shown = (
        run(tmp_path, file, "--no-such-option").output
        + CliRunner().invoke(command, [str(tmp_path / "net.json"), "-v"]).stdout
    )
    assert names(shown.replace("\n", " "), "'recomputed'", "'origin'")
    slow = file["nodes"][0]["TMPCs"]["1"][0] | {"timePerSample": 1e10}
    for change, word in (
        ({"bandwidth": 0}, "bandwidth"), ({"maxDevices": 2**40}, "maxDevices"), ({"nodes": []}, "nodes"),
        ({"maxMemoryPerDevice": -1.0}, "maxMemoryPerDevice"), ({"mbsInBatch": "8"}, "mbsInBatch"),
        ({"nodes": [file["nodes"][0]] * 2}, "ids"), ({"edges": [{"sourceId": 1, "destId": 77}]}, "communicationCost"),
        ({"nodes": [file["nodes"][0] | {"TMPCs": {"x": []}}]}, "TMPCs"),
        ({"edges": [{"sourceId": 98, "destId": 99, "communicationCost": 1}]}, "node 99"),
        ({"edges": [{"sourceId": 98, "destId": 99, "communicationCost": 1}] * 2}, "98 to 99 is 2"),
        ({"nodes": [file["nodes"][0] | {"TMPCs": {"1": [slow]}}]}, "timePerSample"),
    ):  # fmt: skip
        assert word in str(run(tmp_path, file | change).exception)
    assert isinstance(run(tmp_path, json.dumps(file).replace('"edges"', '"nodes"')).exception, InputError)
