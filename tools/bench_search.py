"""Compare the search methods on a fixed suite of generated problems, and say what the learned policy is worth.

    python tools/bench_search.py                  # 64 problems, all methods, the ablation, rounds per second
    python tools/bench_search.py --quick          # 12 problems
    python tools/bench_search.py --methods rl,genetic --seeds 0,1,2 --json out.json
    python tools/bench_search.py --suite-seed 1   # 64 other problems

Half of the problems are plain chains; the other half has limits on units, memory that binds, or branches. The
reference is the exact method, with its proof; a problem it does not finish in a minute counts by its best plan, and the
table says how many. The gap is value / reference - 1. Seconds are wall time of one process; the ratios of a run
mean more than its seconds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from heterps_compile.cost.problem import Problem
from heterps_compile.errors import HeterpsError
from heterps_compile.passes.placement.learned.rl import Rl, RlRnn, RlTrace
from heterps_compile.passes.placement.local.annealing import Annealing
from heterps_compile.passes.placement.methods import METHODS, find_method
from heterps_compile.passes.placement.proof.exact import Exact

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from synthetic import FAMILIES, Recipe, synthetic_problem

LAYERS = (8, 12, 16, 24, 32, 48, 64, 80, 100, 100)
TYPES = (2, 3, 4, 6, 8, 12, 16, 8)
COUPLINGS = ("limits", "memory", "branches", "limits+branches", "limits+memory", "all")
REFERENCE_LIMIT_S = 60.0
NO_ANNEALING = Annealing(most_priced=0)
LEARNED = {"rl": Rl(), "rl-rnn": RlRnn()}


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one problem."""

    method: str
    case: str
    seed: int
    gap: float
    gap_before_annealing: float | None
    time_s: float
    evaluations: int


def suite(count: int, suite_seed: int) -> Iterator[Case]:
    for index in range(count):
        coupled, place = index % 2 == 1, index // 2
        coupling = COUPLINGS[place % len(COUPLINGS)] if coupled else "chain"
        recipe = Recipe(
            seed=7_000 + 1_000 * suite_seed + index,
            layers=LAYERS[place % len(LAYERS)],
            types=TYPES[(place + place // len(LAYERS)) % len(TYPES)],
            branched="branches" in coupling or coupling == "all",
            limited="limits" in coupling or coupling == "all",
            tight_memory="memory" in coupling or coupling == "all",
            family=FAMILIES[place % len(FAMILIES)],
        )
        yield Case(f"{index:02d} {recipe.layers}x{recipe.types} {recipe.family} {coupling}", recipe)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="12 problems")
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--suite-seed", type=int, default=0, help="another suite of the same sizes and kinds")
    parser.add_argument("--methods", default=",".join(name for name in METHODS if name not in ("exact", "brute")))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--no-ablation", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="one line for every problem and method")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = list(suite(12 if options.quick else options.problems, options.suite_seed))
    seeds = [int(seed) for seed in options.seeds.split(",")]
    problems = {case.name: synthetic_problem(case.recipe) for case in cases}
    references, open_cases = {}, []
    for case in cases:
        result = Exact()(problems[case.name], time_limit_s=REFERENCE_LIMIT_S)
        references[case.name] = result.value
        if result.gap > 1e-9:
            open_cases.append(f"{case.name} (gap {result.gap:.2%})")
    print(
        f"{len(cases)} problems, {len(cases) - len(open_cases)} references proven optimal"
        f"{'; open: ' if open_cases else ''}{', '.join(open_cases)}"
    )

    rows: list[Row] = []
    arms = {name: arm_of(name) for name in options.methods.split(",")}
    if not options.no_ablation:
        arms |= {
            "rl, no annealing": traced(Rl(annealing=NO_ANNEALING)),
            "random + annealing": traced(Rl(is_blind=True)),
        }
    for label, arm in arms.items():
        for case in cases:
            for seed in seeds:
                rows.append(run_arm(label, arm, case, problems[case.name], references[case.name], seed))
                if options.verbose:
                    row = rows[-1]
                    print(f"  {label:26} {row.case:34} {row.gap:8.3%} {row.time_s:6.2f} s", flush=True)
    print_table(rows, cases)
    speed = rounds_per_second()
    print(
        "\nREINFORCE rounds a second, 64 plans each, 300 layers x 8 types: "
        f"{speed['lstm']:.0f} (LSTM), {speed['rnn']:.0f} (Elman)"
    )
    fresh = fresh_process_s(cases[-1].recipe if not options.quick else cases[0].recipe)
    print(f"one rl search in a fresh process, import of torch included: {fresh:.1f} s ({cases[-1].name})")
    if options.json:
        options.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "rounds_per_s": speed}, indent=1))


Arm = Callable[[Problem, int], tuple[float, int, RlTrace | None]]


def arm_of(name: str) -> Arm:
    if name in LEARNED:
        return traced(LEARNED[name])
    method = find_method(name)

    def run(problem: Problem, seed: int) -> tuple[float, int, RlTrace | None]:
        result = method(problem, seed=seed)
        return result.value, result.evaluations, None

    return run


def traced(method: Rl) -> Arm:
    def run(problem: Problem, seed: int) -> tuple[float, int, RlTrace | None]:
        result, trace = method.trace(problem, seed=seed)
        return result.value, result.evaluations + trace.stages_priced, trace

    return run


def run_arm(label: str, arm: Arm, case: Case, problem: Problem, reference: float, seed: int) -> Row:
    started = time.monotonic()
    try:
        value, evaluations, trace = arm(problem, seed)
    except HeterpsError:
        value, evaluations, trace = float("inf"), 0, None
    before = trace.policy_value / reference - 1 if trace is not None else None
    return Row(label, case.name, seed, value / reference - 1, before, time.monotonic() - started, evaluations)


def print_table(rows: list[Row], cases: list[Case]) -> None:
    coupled = {case.name for case in cases if not case.name.endswith("chain")}
    print(
        f"\n{'method':27}{'problems':10}{'before annealing: median, p95':>31}{'gap: median':>13}{'p95':>9}{'worst':>9}"
        f"{'none found':>12}{'s: median':>11}{'worst':>7}{'evaluations':>13}"
    )
    for label in dict.fromkeys(row.method for row in rows):
        for part in ("all", "chains", "coupled"):
            mine = [
                r for r in rows if r.method == label and (part == "all" or (r.case in coupled) == (part == "coupled"))
            ]
            gaps = np.array([row.gap for row in mine])
            before = np.array([row.gap_before_annealing for row in mine if row.gap_before_annealing is not None])
            times = np.array([row.time_s for row in mine])
            annealed = f"{percent(before, 0.5)}, {percent(before, 0.95)}" if len(before) else "-"
            print(
                f"{label if part == 'all' else '':27}{part:10}{annealed:>31}"
                f"{percent(gaps, 0.5):>13}{percent(gaps, 0.95):>9}"
                f"{percent(gaps, 1):>9}{int(np.isinf(gaps).sum()):>12}{np.median(times):>11.2f}{times.max():>7.1f}"
                f"{np.median([row.evaluations for row in mine]):>13,.0f}"
            )
    print("evaluations: plans evaluated, and for rl also stages that the annealing priced")


def percent(gaps: np.ndarray, quantile: float) -> str:
    value = np.sort(gaps)[min(len(gaps) - 1, int(np.ceil(quantile * len(gaps))) - 1)]
    return "inf" if np.isinf(value) else f"{max(0.0, value):.2%}"


def rounds_per_second() -> dict[str, float]:
    problem = synthetic_problem(Recipe(seed=7_999, layers=300, types=8))
    speeds = {}
    learned = Rl(annealing=NO_ANNEALING, patience=1_000), RlRnn(annealing=NO_ANNEALING, patience=1_000, rounds=120)
    for method in learned:
        short, long = (replace(method, rounds=rounds) for rounds in (20, 220))
        spent = [arm.trace(problem)[1] for arm in (short, long)]
        speeds[method.cell] = (spent[1].rounds - spent[0].rounds) / (spent[1].policy_s - spent[0].policy_s)
    return speeds


def fresh_process_s(recipe: Recipe) -> float:
    program = (
        "from synthetic import *\n"
        "from heterps_compile.passes.placement.methods import find_method\n"
        f"find_method('rl')(synthetic_problem({recipe!r}))"
    )
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": sys.path[0]})
    return time.monotonic() - started


if __name__ == "__main__":
    main()
