"""The learning search: determinism, time limits, objectives, what its trace tells."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_problems import linked, small_problem
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Problem
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.learned.rl import Rl, RlRnn
from heterps_compile.passes.placement.local.annealing import Annealing

RECIPE = Recipe(seed=11, layers=20, types=4, limited=True)
LITTLE = Annealing(changes=2_000, patience=3)
SHORT = Rl(rounds=6, annealing=LITTLE)


@pytest.mark.slow  # a fresh process imports everything
def test_the_same_seed_gives_the_same_plan_in_another_process() -> None:
    program = (
        "from synthetic import *\n"
        "from heterps_compile.passes.placement.learned.rl import Rl\n"
        "from heterps_compile.passes.placement.local.annealing import Annealing\n"
        f"found = Rl(rounds=6, annealing={LITTLE!r})(synthetic_problem({RECIPE!r}), seed=3)\n"
        "print(found.placement, found.evaluations)"
    )
    here = SHORT(synthetic_problem(RECIPE), seed=3)
    environment = {**os.environ, "PYTHONHASHSEED": "1234", "PYTHONPATH": str(Path(__file__).parents[4])}
    there = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert there.stdout.strip() == f"{here.placement} {here.evaluations}"


@pytest.mark.slow  # trains a policy
@pytest.mark.parametrize("is_blind", [False, True])
def test_the_trace_adds_up(*, is_blind: bool) -> None:
    problem = replace(synthetic_problem(RECIPE), currency="USD")
    result, trace = replace(SHORT, is_blind=is_blind).trace(problem)
    assert trace.drawn + trace.polished == result.evaluations
    assert trace.polished_value == result.value <= trace.policy_value
    assert trace.rounds == (0 if is_blind else 6)
    assert trace.stages_priced > 0
    best = OBJECTIVES["cost"].describe(trace.policy_value, 1, "USD")
    assert result.notes[0].startswith(f"the best plan of the learned policy: {best}; local search ")


def test_a_time_limit_ends_the_search_and_is_told() -> None:
    problem = synthetic_problem(Recipe(seed=3, layers=80, types=8))
    found = replace(SHORT, rounds=100_000)(problem, time_limit_s=0.2)
    assert found.notes[-1].startswith("the time limit ended the search, after ")
    assert np.isfinite(found.value)


@pytest.mark.slow  # trains a policy
def test_patience_starts_the_policy_again() -> None:
    _, trace = Rl(rounds=12, patience=1, annealing=Annealing(most_priced=0)).trace(synthetic_problem(RECIPE))
    assert trace.restarts > 0


@pytest.mark.slow  # trains a policy
def test_the_elman_policy_finds_a_plan_as_good() -> None:
    method = RlRnn(rounds=6, annealing=LITTLE)
    problem = synthetic_problem(RECIPE)
    assert (method.name, method.cell) == ("rl-rnn", "rnn")
    assert method(problem).value == pytest.approx(SHORT(problem).value, rel=0.05)


def posed(objective: str, seed: int) -> Problem:
    problem = small_problem(seed, layers=5, types=3, memory=seed % 2 == 0, structure=False)
    budget = 0.4 * float(problem.price_per_hour @ problem.max_units) if seed % 2 else float("inf")
    match objective:
        case "throughput":
            return replace(problem, objective=objective, budget_per_hour=budget)
        case "latency":
            inference = replace(problem, sync_s=np.zeros_like(problem.sync_s), keeps_activations=False)
            return replace(inference, objective=objective, budget_per_hour=budget, min_throughput=0.05 * problem.batch)
        case "price":
            return replace(problem, objective=objective, min_throughput=0.1 * problem.batch)
        case "max-load":
            return replace(problem, objective=objective, min_throughput=0.0)
    return linked(problem, seed)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
@pytest.mark.parametrize("objective", ["price", "throughput", "latency", "max-load", "cost over links"])
def test_every_objective_reaches_what_brute_force_finds(objective: str, seed: int) -> None:
    problem = posed(objective, seed)
    best = Brute()(problem).value
    assert Rl(rounds=10, annealing=Annealing(patience=10))(problem).value == pytest.approx(best, rel=1e-9)


@pytest.mark.slow  # a policy is trained
def test_without_time_little_more_than_the_simple_plans_is_evaluated() -> None:
    problem = synthetic_problem(RECIPE)
    assert SHORT(problem, time_limit_s=0.0).evaluations < 50
    assert SHORT(problem).evaluations > 400
