"""The exact search and the annealing side by side."""

from dataclasses import replace
from threading import Event

import numpy as np
import pytest
from small_problems import linked, small_problem
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.problem import Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import Budget, Deadline, now_s
from heterps_compile.passes.placement import best as module
from heterps_compile.passes.placement.best import Best, Turns
from heterps_compile.passes.placement.local.annealing import Annealing
from heterps_compile.passes.placement.local.kept_loops import compile_loop_beside
from heterps_compile.passes.placement.method import proving_for
from heterps_compile.passes.placement.proof.effort import EFFORT
from heterps_compile.passes.placement.proof.exact import OPEN, Exact
from heterps_compile.passes.solver import run_solver

SHORT = Annealing(changes=2_000, at_once=1_000, patience=4)
AT_ONCE = Turns(alone_work=0)
WITHOUT_TREE = replace(EFFORT, links=replace(EFFORT.links, most_work=0, most_enumerated=0))
LIMITED = synthetic_problem(Recipe(seed=5, layers=10, types=3, limited=True, tight_memory=True))


def open_problem() -> Problem:
    """Return one that the exact search leaves open without its tree: links, and values that skip layers."""
    return linked(small_problem(1, layers=6, types=3, memory=False), 1)


def test_what_the_exact_search_closes_is_left_to_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Anneal", None)
    found, exact = Best()(LIMITED), Exact()(LIMITED)
    assert (found.placement, found.value, found.bound, found.evaluations) == (
        exact.placement,
        exact.value,
        exact.bound,
        exact.evaluations,
    )
    assert (found.method, found.found_by, found.notes) == ("best", "proof", ())


def test_turns_end_where_plan_and_bound_meet_and_a_seed_gives_the_plan_again() -> None:
    method = Best(annealing=SHORT, turns=AT_ONCE)
    first, second = (method(LIMITED, seed=3) for _ in range(2))
    assert first.evaluations == second.evaluations > Exact()(LIMITED).evaluations
    assert (first.placement, first.gap, first.found_by) == (second.placement, 0, second.found_by)
    assert first.value == pytest.approx(Exact()(LIMITED).value, rel=1e-8)


def test_what_the_proof_leaves_open_the_other_search_goes_on_with() -> None:
    problem = open_problem()
    found = Best(effort=WITHOUT_TREE, annealing=SHORT)(problem)
    assert found.value == evaluate_one(problem, found.placement)
    assert found.bound <= Exact()(problem).value * (1 + 1e-9) <= found.value * (1 + 2e-9)  # of all placements
    assert found.bound < found.value
    assert found.notes == (OPEN,)


def test_a_time_limit_is_shared() -> None:
    problem = linked(synthetic_problem(Recipe(seed=3, layers=120, types=6, branched=True, limited=True)), 2)
    assert compile_loop_beside().is_ready(120.0)  # which the first start on a machine waits for
    found = Best(annealing=SHORT)(problem, time_limit_s=1.0)
    assert found.bound < found.value  # the proof has no end in sight
    assert found.evaluations > Best().drawn  # the plans that the other search begins with, and more


def test_the_proof_has_its_own_seconds_without_a_time_limit() -> None:
    found = proving_for(Best(annealing=SHORT), 0.0)(open_problem())
    assert found.notes[-1] == "the proof was ended after 0 s"
    assert found.value < np.inf


def test_what_nothing_can_meet_is_explained() -> None:
    with pytest.raises(InfeasibleError, match="--min-stages"):
        Best()(replace(LIMITED, min_stages=100))


def test_while_a_solver_works_the_other_search_goes_on() -> None:
    class Solver:
        """Works until the other search has been asked three times."""

        def __getattr__(self, _name: str) -> "Solver":
            return self

        def __call__(self, *_: object) -> None: ...

        def subscribe(self, _ask: object) -> None: ...

        def run(self) -> None:
            assert asked_enough.wait(10)

    asked_enough, asked = Event(), list[int]()

    def meanwhile() -> bool:
        asked.append(1)
        if len(asked) == 3:
            asked_enough.set()
        return len(asked) < 3

    deadline = replace(Deadline.after(10.0), budget=Budget(np.inf, meanwhile))
    run_solver(Solver(), deadline, begun_s=now_s())
    assert len(asked) >= 3
