"""What minimising the step gains: the step of the steady state's plan over that of the plan found for steps.

``python tools/bench_step.py [MODEL ...]`` plans the example models, a ResNet-50 and a GPT-2 of four blocks for training
in both readings and prints a table of ratios: of the step's value, by the objective, and of the processor's time that
the two searches took. A ratio above 1 says how many times dearer, or slower, the steady state's plan is with one batch
alone. Beside it stands what is proven: the bound of the steady state, and that of the step, over the value. The last
line has the median gaps of both, of the plans that the steady state leaves open.

``python tools/bench_step.py --drawn 60`` compares the annealing with the descent alone, from the same plan of the
steady state, on N drawn training problems: 10 to 300 layers, 2 to 8 types, limits on units, most with a link for
every pair of types, some with branches, little memory, machines or a least number of stages; half for throughput within
a budget, half for cost at a floor. Problems count if the steady state's bound does not prove the descent's plan.

Left out: running the plans.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from time import process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from bench_backends import gpt2, resnet50
from bench_exact import with_links

from heterps_compile.api import open_draft
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.errors import InfeasibleError
from heterps_compile.examples import EXAMPLES
from heterps_compile.passes import deadline
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.drafts import Posed, Scheduled
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.placement.best import Best
from heterps_compile.passes.placement.steps.anneal_steps import StepAnnealing
from heterps_compile.passes.placement.steps.minimise_step import least_factor, search_steps
from heterps_compile.passes.placement.steps.step_search import StepEffort
from heterps_compile.plan.request import READINGS
from heterps_compile.schedule.step_problem import StepProblem, plain_step_problem

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from synthetic import Recipe, synthetic_problem

SMALL, LARGE = (4096, 65536), (64, 256)
ASKED: dict[str, dict[str, Any]] = {"cost": {}, "throughput": {"budget": "20 USD/h"}}
CLOSED = 1e-6  # a gap that is none
FLOOR = 1000.0  # samples/s, for the cost of the large models
MODELS = (*EXAMPLES, "resnet50", "gpt2")
DRAWN_LAYERS = (10, 16, 24, 32, 48, 60, 80, 100, 130, 160, 200, 250, 300)
FIRST_SEED = 40_000_000  # nothing was chosen on these
MOST_UNITS = 256
STEADY_STATE_S = 0.75  # of the processor or less, for the plan to begin with
AGAIN = 0.02  # part of a layer's time that every further micro-batch pays again
DESCENT = StepEffort(annealing=StepAnnealing(walks=0))


def asked_of(name: str) -> dict[str, dict[str, Any]]:
    """Return what is asked of a model, by words."""
    return ASKED if name in EXAMPLES else ASKED | {"cost at a floor": {"objective": "cost", "min_throughput": FLOOR}}


def made(name: str, batch: int) -> tuple[Any, Any]:
    """Return a model and inputs of a batch, or of any where the batch is named when it is read."""
    if name in EXAMPLES:
        return EXAMPLES[name](batch=batch)
    torch.manual_seed(0)
    model, inputs, _ = {"resnet50": resnet50, "gpt2": gpt2}[name]()
    return model, inputs


def planned(name: str, batch: int, words: str, reading: str) -> tuple[Scheduled, float]:
    """Return the plan of a model in a reading, and the seconds of the processor that its search took."""
    model, inputs = made(name, batch)
    asked = {"objective": words, "mode": "training", "reading": reading, "batch": batch} | asked_of(name)[words]
    posed = run_to(open_draft(model, inputs, **asked), Posed)
    began_s = process_time()
    return run_to(posed, Scheduled), process_time() - began_s


def value_of_step(draft: Scheduled) -> float:
    """Return the objective with the simulated step in the place of the steady state's batch."""
    paid, step_s = sum(stage.price_per_hour for stage in draft.stages), draft.schedule.step_s
    value = OBJECTIVES[draft.problem.objective].paid(paid, draft.graph.batch / step_s)
    return step_s if value is None else value


def drawn_steps(first_seed: int) -> Iterator[StepProblem]:
    """Draw training problems without an end."""
    for seed in itertools.count(first_seed):
        rng = np.random.default_rng([seed, 3])
        layers, types = int(rng.choice(DRAWN_LAYERS)), int(rng.integers(2, 9))
        branched, tight, machines, linked, staged, fast = (rng.random(6) < (0.5, 0.4, 0.3, 0.7, 0.3, 0.5)).tolist()
        recipe = Recipe(seed, layers, types, branched, limited=True, tight_memory=tight, machines=machines)
        problem = synthetic_problem(recipe)
        if linked:
            problem = with_links(problem, seed)
        stages = int(rng.integers(2, min(layers // 2, 9))) if staged else 1
        limits = np.minimum(problem.max_units + stages // 2, MOST_UNITS)
        problem = replace(problem, min_stages=stages, max_units=limits)
        if fast:
            budget = float(rng.uniform(0.2, 0.8) * (problem.price_per_hour @ limits))
            problem = replace(problem, objective="throughput", min_throughput=0.0, budget_per_hour=budget)
        else:
            problem = replace(problem, min_throughput=float(rng.uniform(0.1, 0.5)) * problem.min_throughput)
        yield plain_step_problem(problem, problem.compute_s * AGAIN, training=True)


def bench_drawn(count: int) -> None:
    """Print the values of the annealing over those of the descent, of open problems."""
    deadline.time = SimpleNamespace(monotonic=process_time)
    ratios: list[float] = []
    spent_s = [0.0, 0.0]
    proven, none = 0, 0
    for of in drawn_steps(FIRST_SEED):
        if len(ratios) == count:
            break
        try:
            steady = Best()(of.problem, time_limit_s=STEADY_STATE_S)
        except InfeasibleError:
            none += 1
            continue
        values = []
        least, took_s = steady.bound * least_factor(of), [0.0, 0.0]
        for place, effort in enumerate((DESCENT, StepEffort())):
            began_s = process_time()
            found = search_steps(of, [steady.placement], NO_DEADLINE, effort=effort, least=least, closing=None)
            took_s[place] = process_time() - began_s
            values.append(float("inf") if found.plan is None else found.plan.value)
        if values[0] == float("inf"):
            none += 1
        elif values[0] <= least * (1 + CLOSED):
            proven += 1
        else:
            ratios.append(values[1] / values[0])
            spent_s = [total + took for total, took in zip(spent_s, took_s, strict=True)]
    shorter, longer = (sum(part) for part in zip(*((r < 1 - CLOSED, r > 1 + CLOSED) for r in ratios), strict=True))
    print(f"{count} drawn problems, open in the steady state; it proves {proven} more, {none} without a plan")
    print(
        f"annealing over descent alone: geometric mean {geometric_mean(ratios):.3f}, median {median(ratios):.3f}, from "
        f"{min(ratios):.3f} to {max(ratios):.4f}; better on {shorter}, worse on {longer}; processor time, ratio "
        f"{spent_s[1] / spent_s[0]:.1f}, annealing {spent_s[1] / count:.2f} s a problem"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--drawn", type=int, default=0, metavar="N", help="compare on N drawn problems instead")
    options = parser.parse_args()
    if options.drawn:
        bench_drawn(options.drawn)
        return
    wanted = options.models or MODELS
    print(
        "| model | batch | objective | steady state's plan over the step's | steady state's bound over value | "
        "bound over value | search's processor time, ratio |"
    )
    print("|---|---:|---|---:|---:|---:|---:|")
    gaps: list[tuple[float, float]] = []
    for name in wanted:
        for batch in SMALL if name in EXAMPLES else LARGE:
            for words in asked_of(name):
                found = {reading: planned(name, batch, words, reading) for reading in READINGS}
                (steady, steady_s), (step, step_s) = (found[reading] for reading in READINGS)
                value = value_of_step(step)
                ratio, of_steady, own = (
                    each / value for each in (value_of_step(steady), step.search.steady_bound, step.search.bound)
                )
                took, floor = step_s / steady_s, steady.problem.min_throughput
                gain = "misses the floor" if steady.graph.batch / steady.schedule.step_s < floor else f"{ratio:.2f}"
                gaps.append((max(0.0, 1 - of_steady), max(0.0, 1 - own)))
                print(
                    f"| {name} | {batch:,} | {words} | {gain} | {of_steady:.3f} | {own:.3f} | {took:.1f} |",
                    flush=True,
                )
    still = [gap for gap in gaps if gap[0] > CLOSED]
    if still:
        before, after = (median(each) for each in zip(*still, strict=True))
        shown = f"median gap {before:.1%}, by the step's bound {after:.1%}"
        print(f"{len(still)} plans that the steady state leaves open: {shown}")


if __name__ == "__main__":
    main()
