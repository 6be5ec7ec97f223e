"""What every placement method promises, held against brute force on small problems."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import small_problem

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.problem import Problem
from heterps_compile.errors import HeterpsError, UnknownNameError
from heterps_compile.passes.placement.learned.rl import Rl, RlRnn
from heterps_compile.passes.placement.local.annealing import Annealing
from heterps_compile.passes.placement.method import PlacementMethod
from heterps_compile.passes.placement.methods import METHODS, find_method
from heterps_compile.passes.placement.proof.certificate import certify

SEARCHES = ("best", "rl", "rl-rnn", "exact", "brute", "greedy", "genetic")
GOOD = ("best", "rl", "rl-rnn", "exact", "genetic")
LONG = ("rl", "rl-rnn")  # seconds a search
LITTLE = Annealing(changes=2_000, patience=3)
SHORT = {"rl": Rl(rounds=6, annealing=LITTLE), "rl-rnn": RlRnn(rounds=6, annealing=LITTLE)}


def short(name: str) -> PlacementMethod:
    """Return a method with less effort where it takes seconds: what it promises whatever it finds."""
    return SHORT.get(name) or find_method(name)


def problem(seed: int) -> Problem:
    drawn = small_problem(seed, layers=6, types=2, floor=True, memory=False)
    assert np.isfinite(find_method("brute")(drawn).value)
    return drawn


def feasible() -> list[int]:
    found = []
    for seed in range(40):
        try:
            problem(seed)
        except HeterpsError:
            continue
        found.append(seed)
    return found[:4]


FEASIBLE = feasible()


@pytest.mark.parametrize(
    ("name", "seed"),
    [pytest.param(name, seed, marks=pytest.mark.slow if name in LONG else []) for name in GOOD for seed in FEASIBLE],
)
def test_a_search_reaches_the_optimum_of_a_small_problem(name: str, seed: int) -> None:
    posed = problem(seed)
    best = find_method("brute")(posed).value
    assert find_method(name)(posed, seed=1).value == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("name", SEARCHES)
def test_the_value_is_that_of_the_evaluator_and_the_bound_is_below_it(name: str) -> None:
    posed = problem(FEASIBLE[0])
    result = certify(posed, short(name)(posed))
    assert result.value == evaluate_one(posed, result.placement)
    assert result.bound <= find_method("brute")(posed).value * (1 + 1e-9)
    assert result.method == name


@pytest.mark.parametrize("name", SEARCHES)
def test_the_same_seed_gives_the_same_plan(name: str) -> None:
    posed = problem(FEASIBLE[1])
    first, second = (short(name)(posed, seed=5) for _ in range(2))
    assert first.placement == second.placement
    assert first.evaluations == second.evaluations


@pytest.mark.parametrize("name", SEARCHES)
def test_pins_are_kept(name: str) -> None:
    posed = small_problem(FEASIBLE[0], layers=6, types=2, floor=False, memory=False, structure=False)
    allowed = posed.allowed.copy()
    allowed[2] = (False, True)
    assert short(name)(replace(posed, allowed=allowed)).placement.types[2] == 1


@pytest.mark.parametrize("name", SEARCHES)
def test_a_warm_start_is_never_made_worse(name: str) -> None:
    posed = problem(FEASIBLE[2])
    best = find_method("brute")(posed)
    again = short(name)(posed, warm_start=best.placement)
    assert again.value <= best.value * (1 + 1e-12)


@pytest.mark.parametrize("name", GOOD)
def test_a_time_limit_gives_the_best_so_far_and_an_honest_bound(name: str) -> None:
    posed = problem(FEASIBLE[3])
    try:
        result = certify(posed, find_method(name)(posed, time_limit_s=0.01), 0.01)
    except HeterpsError:
        return  # nothing found in so short a time is told as such
    assert result.bound <= find_method("brute")(posed).value * (1 + 1e-9) <= result.value * (1 + 2e-9)


def test_an_unknown_method_gives_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'genetic'"):
        find_method("genetics")
    assert set(SEARCHES) < set(METHODS)


def test_known_methods_are_named_in_their_order() -> None:
    with pytest.raises(UnknownNameError, match=r"greedy.*genetic.*bayes"):
        find_method("foo")
