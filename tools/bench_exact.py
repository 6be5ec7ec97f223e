"""How fast the exact search is, and what it proves: ``python tools/bench_exact.py [--quick | --long | --scarce]``.

``--scarce`` searches problems whose limits on units bind: for the fastest plan, and for the cheapest at parts of its
throughput. ``--json FILE`` also writes the rows into a file.

``--accelerators`` measures instead what each accelerator of ``passes/placement/proof/effort.py`` gains on each family:
the work without it over the work with it (costs of segments, ends and labels computed), and the same of the seconds of
the processor; beyond 1 it helps.

Every row is one size of generated problem over some seeds: the median, 90th percentile and longest time, the longest
time of the processor, how many are proven, the largest gap left, and the time over that of the row before; ``--long``
tells every problem. Times are of this machine as it is; compare ratios.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from heterps_compile.cost.problem import Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.proof.effort import ACCELERATORS, EFFORT, Effort
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.passes.placement.proof.label_setting import LimitedPaths
from heterps_compile.passes.placement.proof.longest_segments import LongestSegments
from heterps_compile.passes.placement.proof.paths import SegmentPrices

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from synthetic import Recipe, synthetic_problem

SIZES = [(16, 4), (100, 8), (300, 8), (1000, 8)]
LONG_SIZES = [(2000, 8), (10_000, 8)]
COUPLED_SIZES = [(16, 4), (50, 8), (100, 8), (100, 16)]
SCARCE_SIZES = [(300, 8, 16), (1000, 8, 64)]
SCARCE_SHARES = (0.3, 0.5, 0.7, 0.9)
FAMILIES: dict[str, tuple[tuple[int, int], dict[str, bool], int]] = {
    "chains of 300": ((300, 8), {}, 1),
    "chains of 1,000": ((1000, 8), {}, 1),
    "chains of 1,000, three stages": ((1000, 8), {}, 3),
    "branches of 1,000, three stages": ((1000, 8), {"branched": True}, 3),
    "tight memory": ((300, 8), {"tight_memory": True}, 1),
    "branches": ((400, 6), {"branched": True}, 1),
    "limits": ((60, 8), {"limited": True}, 1),
    "fractions of layers, chains of 300": ((300, 8), {"own_fractions": True}, 1),
    "limits, memory, branches": ((60, 8), {"limited": True, "tight_memory": True, "branched": True}, 1),
}
LINKED_SIZES = [(16, 4), (50, 5), (100, 8), (300, 8)]
SEEDS = {16: 6, 50: 6, 100: 6, 300: 5, 1000: 5, 2000: 3, 10_000: 8}
MORE_SEEDS = {1000: 30}  # of plain chains


def solve(problem: Problem, limit_s: float, effort: Effort = EFFORT) -> tuple[float, float, float]:
    """Return seconds, seconds of the processor, and the gap."""
    started, worked = time.perf_counter(), time.process_time()
    try:
        gap = Exact(effort)(problem, time_limit_s=limit_s).gap
    except InfeasibleError as error:
        if "none proven" not in str(error):
            raise
        gap = 1.0
    return time.perf_counter() - started, time.process_time() - worked, gap


def with_links(problem: Problem, seed: int) -> Problem:
    """Return every pair of types a link of its own: the slower type's rate, times e to a normal deviate."""
    rng = np.random.default_rng(seed)
    shape = (problem.type_count, problem.type_count)
    seconds = np.maximum(problem.seconds_per_byte[:, None], problem.seconds_per_byte) * np.exp(rng.normal(0, 1, shape))
    seconds, latency_s = (np.maximum(a, a.T) for a in (seconds, 2e-5 * rng.uniform(1, 10, shape)))
    return replace(
        problem,
        seconds_per_byte=seconds.min(axis=1),
        latency_s=latency_s.min(axis=1),
        link_seconds_per_byte=seconds,
        link_latency_s=latency_s,
    )


def bench_exact(
    sizes: list[tuple[int, int]], limit_s: float, *, links: bool = False, each: bool = False, **options: bool
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for layers, types in sizes:
        found = []
        is_plain = not options and not links
        for seed in range(MORE_SEEDS.get(layers, SEEDS[layers]) if is_plain else SEEDS[layers]):
            problem = synthetic_problem(Recipe(seed=seed, layers=layers, types=types, **options))
            if links:
                problem = with_links(replace(problem, min_throughput=0.8 * problem.min_throughput), seed)
            found.append(solve(problem, limit_s))
            if is_plain:
                found.append(solve(replace(problem, min_throughput=0.0), limit_s))
            if each:
                shown = "; ".join(
                    f"{spent:.1f} s ({worked:.1f} of the processor), gap {gap:.2%}" for spent, worked, gap in found[-2:]
                )
                print(f"{layers} x {types}, seed {seed}, with a floor and without: {shown}", flush=True)
        times = [seconds for seconds, _, _ in found]
        before = rows[-1]["median_s"] if rows else None
        rows.append(
            {
                "layers": layers,
                "types": types,
                "problems": len(found),
                "median_s": statistics.median(times),
                "p90_s": sorted(times)[round(0.9 * (len(times) - 1))],
                "longest_s": max(times),
                "longest_cpu_s": max(worked for _, worked, _ in found),
                "proven": sum(gap == 0 for _, _, gap in found),
                "largest_gap": max(gap for _, _, gap in found),
                "times_before": statistics.median(times) / before if isinstance(before, float) else None,
            }
        )
        print_row(rows[-1])
    return rows


def bench_scarce(limit_s: float, seeds: int) -> list[dict[str, object]]:
    """Search chains with few units of every type, and print the gap and the seconds of the processor of each."""
    rows: list[dict[str, object]] = []
    for layers, types, units in SCARCE_SIZES:
        for seed in range(seeds):
            drawn = synthetic_problem(Recipe(seed=seed, layers=layers, types=types))
            few = replace(drawn, max_units=np.full(types, units), min_throughput=0.0)
            worked = time.process_time()
            fastest = Exact()(replace(few, objective="throughput"), time_limit_s=limit_s)
            found = {"fastest": (fastest.gap, time.process_time() - worked)}
            for share in SCARCE_SHARES:
                floor = share * few.batch / fastest.value
                _, worked, gap = solve(replace(few, min_throughput=floor), limit_s)
                found[f"cheapest at {share:g}"] = (gap, worked)
            rows.append({"layers": layers, "types": types, "units": units, "seed": seed, **found})
            shown = "; ".join(f"{what} {gap:.2%} in {worked:.1f} s" for what, (gap, worked) in found.items())
            print(f"{layers} x {types}, {units} units a type, seed {seed}: gap of the {shown}", flush=True)
    return rows


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the costs of segments, the ends of segments and the labels that are computed inside."""
    work = [0]

    def count(owner: type, name: str, size: Callable[..., int]) -> None:
        inner = getattr(owner, name)

        def counting(*arguments: Any) -> Any:
            made = inner(*arguments)
            work[0] += size(made)
            return made

        stack.callback(setattr, owner, name, inner)
        setattr(owner, name, counting)

    with ExitStack() as stack:
        count(SegmentPrices, "of", np.size)
        count(LongestSegments, "ends", np.size)
        count(LimitedPaths, "_gone", lambda labels: len(labels.used))
        yield work


def bench_accelerators(limit_s: float, seeds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for family, ((layers, types), features, stages) in FAMILIES.items():
        recipes = [Recipe(seed=seed, layers=layers, types=types, **features) for seed in range(seeds)]
        problems = [replace(synthetic_problem(recipe), min_stages=stages) for recipe in recipes]
        whole: tuple[int, float] = (0, 0.0)
        for name in ("", *ACCELERATORS):
            effort = EFFORT.without(name) if name else EFFORT
            with counted() as work:
                found = [solve(problem, limit_s, effort) for problem in problems]
            spent = work[0], sum(worked for _, worked, _ in found)
            whole = whole if name else spent
            row = {
                "family": family,
                "without": name or "(nothing)",
                "work": spent[0] / whole[0],
                "time": spent[1] / whole[1],
                "largest_gap": max(gap for _, _, gap in found),
            }
            rows.append(row)
            print(
                f"{family:32}{row['without']:26}{row['work']:9.2f}{row['time']:9.2f}{row['largest_gap']:9.2%}",
                flush=True,
            )
    return rows


def print_row(row: dict[str, object]) -> None:
    cells = [
        "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()
    ]
    print("  ".join(f"{cell:>13}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small sizes only")
    size.add_argument("--accelerators", action="store_true", help="what each accelerator gains, instead")
    size.add_argument("--long", action="store_true", help="chains of 2,000 and 10,000 layers alone")
    size.add_argument("--scarce", action="store_true", help="chains whose limits on units bind, instead")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a problem may take")
    options = parser.parse_args()
    most = 300 if options.quick else 1000
    results: dict[str, list[dict[str, object]]] = {}
    header = ["layers", "types", "problems", "median_s", "p90_s", "longest_s", "longest_cpu_s", "proven"]
    header += ["largest_gap", "times_before"]
    tables: list[tuple[str, list[tuple[int, int]], dict[str, bool]]] = [
        ("chains, with a floor and without", LONG_SIZES if options.long else SIZES, {}),
    ]
    if not options.long:
        tables += [
            ("tight memory", [(300, 8), (1000, 8)], {"tight_memory": True}),
            ("branches", [(100, 8), (1000, 8)], {"branched": True}),
            ("limits shared between stages", COUPLED_SIZES, {"limited": True}),
            ("branches, memory and limits", COUPLED_SIZES, {"branched": True, "tight_memory": True, "limited": True}),
            ("links between pairs of types", LINKED_SIZES, {"links": True}),
            ("links between pairs of types, branches", LINKED_SIZES[:2], {"links": True, "branched": True}),
        ]
    started = time.perf_counter()
    Exact()(synthetic_problem(Recipe(seed=0, layers=300, types=2)))
    print(f"compiled loops at hand after {time.perf_counter() - started:.1f} s (kept from the first use on)")
    if options.accelerators:
        print(f"{'family':32}{'without':26}{'work':>9}{'time':>9}{'gap':>9}")
        results["accelerators"] = bench_accelerators(options.limit, seeds=2)
        tables = []
    if options.scarce:
        results["scarce"], tables = bench_scarce(options.limit, seeds=3), []
    for title, sizes, features in tables:
        print(f"\nexact: {title}")
        print("  ".join(f"{cell:>13}" for cell in header))
        chosen = [size for size in sizes if options.long or size[0] <= most]
        results[title] = bench_exact(chosen, options.limit, each=options.long, **features)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2), "utf-8")


if __name__ == "__main__":
    main()
