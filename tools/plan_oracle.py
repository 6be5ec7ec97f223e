"""Value and bound of a fixed set of plans: ``python tools/plan_oracle.py FILE [--against FILE] [--only WORD]``.

A rebuild of the search keeps both. FILE gets one JSON line a problem: its name, value, bound and CPU seconds.
``--against`` prints every problem whose value differs by more than 1e-9, or whose bound is lower, and exits 1.
The problems are models on pools, generated chains, small random problems with every feature, steps and workloads.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

from bench_exact import with_links  # noqa: E402 - next to this file
from light_models import path as light_path  # noqa: E402 - of the tests
from small_problems import linked, on_machines, rented_whole, small_problem, with_servers  # noqa: E402
from synthetic import Recipe, synthetic_problem  # noqa: E402
from workload_family import transformer  # noqa: E402 - next to this file

from heterps_compile.api import open_draft  # noqa: E402 - after the paths
from heterps_compile.cost.problem import Problem  # noqa: E402
from heterps_compile.errors import InfeasibleError  # noqa: E402
from heterps_compile.examples import EXAMPLES  # noqa: E402
from heterps_compile.passes.drafts import Placed  # noqa: E402
from heterps_compile.passes.max_load.solve import solve_max_load  # noqa: E402
from heterps_compile.passes.pipeline import run_to  # noqa: E402
from heterps_compile.passes.placement.methods import find_method  # noqa: E402

SAME = 1e-9
Answer = tuple[float | str, float]
"""Value and bound."""

LIGHT = ("bvlc_alexnet", "squeezenet", "resnet50", "shufflenet", "inception_v1", "densenet121")
POOLS = ("heterps-paper", "cloud-mix", "edge")
FAMILIES: dict[str, dict[str, Any]] = {
    "chain 100": {"layers": 100, "types": 8},
    "chain 300": {"layers": 300, "types": 8},
    "chain 1000": {"layers": 1000, "types": 8},
    "branches 400": {"layers": 400, "types": 6, "branched": True},
    "tight memory 300": {"layers": 300, "types": 8, "tight_memory": True},
    "fractions 300": {"layers": 300, "types": 8, "own_fractions": True},
    "limits 50": {"layers": 50, "types": 8, "limited": True},
    "limits, memory, branches 50": {"layers": 50, "types": 8, "limited": True, "tight_memory": True, "branched": True},
}


def of_method(problem: Problem, method: str) -> Answer:
    """Return what a placement method finds and proves."""
    found = find_method(method)(problem)
    return found.value, found.bound


def of_model(model: Any, inputs: tuple[Any, ...], **asked: Any) -> Answer:
    """Plan a model by the default method."""
    found = run_to(open_draft(model, inputs, **asked), Placed).search
    return found.value, found.bound


def models() -> Iterator[tuple[str, Callable[[], Answer]]]:
    """Yield light models in inference and the paper's in training, on several pools."""
    for pool in POOLS:
        for name in LIGHT:
            for objective, more in (("cost", {"min_throughput": 200.0}), ("latency", {})):
                asked = {"cluster": pool, "objective": objective, **more}
                yield f"model {name} {pool} {objective}", partial(of_model, str(light_path(name)), (), **asked)
    for name, build in EXAMPLES.items():
        for pool in POOLS[:2]:
            for reading in ("steady-state", "one-batch-alone"):
                model, inputs = build(batch=4096)
                asked = {"mode": "training", "batch": 4096, "min_throughput": 100_000.0, "reading": reading}
                yield f"model {name} {pool} training {reading}", partial(of_model, model, inputs, cluster=pool, **asked)


def generated() -> Iterator[tuple[str, Callable[[], Answer]]]:
    """Yield generated problems of every family, of 1 and 3 stages at least, with links too."""
    for family, options in FAMILIES.items():
        for seed in range(2):
            problem = synthetic_problem(Recipe(seed=seed, **options))
            problem = replace(problem, min_stages=1 + 2 * seed)
            yield f"generated {family} seed {seed}", partial(of_method, problem, "exact")
    for layers, types in ((16, 4), (50, 5)):
        problem = synthetic_problem(Recipe(seed=1, layers=layers, types=types))
        problem = with_links(replace(problem, min_throughput=0.8 * problem.min_throughput), 1)
        yield f"generated links {layers}", partial(of_method, problem, "exact")


def small() -> Iterator[tuple[str, Callable[[], Answer]]]:
    """Yield small random problems, every fifth plain and the others with one more feature."""
    more = (lambda problem, seed: problem, linked, on_machines, rented_whole, with_servers)
    for seed in range(100):
        problem = more[seed % len(more)](small_problem(seed, layers=3 + seed % 6), seed)
        yield f"small {seed}", partial(of_method, problem, "exact" if seed % 2 else "best")


def of_workload(layers: int, seed: int) -> Answer:
    """Split a generated operator graph into contiguous parts."""
    found = solve_max_load(transformer(layers, reshapes=1, training=seed % 2 == 1, seed=seed))
    return max(found.loads_ms), found.bound_ms


def workloads() -> Iterator[tuple[str, Callable[[], Answer]]]:
    """Yield generated workloads."""
    for seed in range(4):
        yield f"workload {seed}", partial(of_workload, 2 + seed % 2, seed)


def answers(only: str) -> Iterator[dict[str, Any]]:
    """Yield the record of every problem whose name has a word."""
    for problems in (small, workloads, generated, models):
        for name, solve in problems():
            if only not in name:
                continue
            began_s = time.process_time()
            try:
                value, bound = solve()
            except InfeasibleError:
                value, bound = "infeasible", 0.0
            yield {"name": name, "value": value, "bound": bound, "cpu_s": round(time.process_time() - began_s, 2)}


def differences(found: dict[str, Any], before: dict[str, Any]) -> str:
    """Return how an answer is worse than or unlike the earlier one; "" if it is neither."""
    value, old = found["value"], before["value"]
    if isinstance(value, str) or isinstance(old, str):
        return "" if value == old else f"value {value}, before {old}"
    if abs(value - old) > SAME * abs(old):
        return f"value {value!r}, before {old!r}"
    lower = found["bound"] < before["bound"] - SAME * abs(before["bound"])
    return f"bound {found['bound']!r}, before {before['bound']!r}" if lower else ""


def main() -> int:
    """Write the answers, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where the answers go")
    parser.add_argument("--against", type=Path, help="answers of the tree before")
    parser.add_argument("--only", default="", help="problems whose name has this word")
    options = parser.parse_args()
    lines = options.against.read_text("utf-8").splitlines() if options.against else []
    before = {record["name"]: record for record in map(json.loads, lines)}
    unlike, cpu_s, count = 0, [0.0, 0.0], 0
    with options.file.open("w", encoding="utf-8") as out:
        for found in answers(options.only):
            count += 1
            out.write(json.dumps(found) + "\n")
            out.flush()
            if found["name"] in before:
                old = before[found["name"]]
                cpu_s = [cpu_s[0] + found["cpu_s"], cpu_s[1] + old["cpu_s"]]
                if difference := differences(found, old):
                    unlike += 1
                    print(f"{found['name']}: {difference}")
    print(f"{count} problems, {unlike} unlike before; CPU seconds {cpu_s[0]:.1f}, before {cpu_s[1]:.1f}")
    return int(unlike > 0)


if __name__ == "__main__":
    sys.exit(main())
