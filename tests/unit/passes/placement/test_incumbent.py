"""What a search is told to beat: it finds what is better, and says when nothing is."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import linked, small_problem

from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.incumbent import Incumbent
from heterps_compile.passes.placement.proof.prove import prove


def posed(objective: str) -> Problem:
    drawn = small_problem(2, layers=5, types=3, memory=False, structure=False)
    budget = 0.4 * float(drawn.price_per_hour @ drawn.max_units)
    match objective:
        case "throughput":
            return replace(drawn, objective=objective, budget_per_hour=budget)
        case "latency":
            return replace(drawn, objective=objective, sync_s=np.zeros_like(drawn.sync_s), keeps_activations=False)
        case "price":
            return replace(drawn, objective=objective, min_throughput=0.1 * drawn.batch)
        case "max-load":
            return replace(drawn, objective=objective, min_throughput=0.0)
        case "cost over links":
            return linked(drawn, 2)
    return drawn


@pytest.mark.parametrize("objective", ["cost", "price", "throughput", "latency", "max-load", "cost over links"])
def test_what_is_better_than_a_value_is_found_and_what_is_not_is_proven_not_to_be(objective: str) -> None:
    problem = posed(objective)
    best = Brute()(problem)
    above, at = Incumbent(problem, below=best.value * 1.001), Incumbent(problem, below=best.value)
    found = prove(problem, NO_DEADLINE, incumbent=above)
    assert (found.best, above.value) == (pytest.approx(best.value, rel=1e-9),) * 2
    assert found.placement == above.placement is not None
    assert found.is_complete
    nothing = prove(problem, NO_DEADLINE, incumbent=at)
    assert nothing.is_complete
    assert (nothing.best, at.value) == (pytest.approx(best.value, rel=1e-8),) * 2


def test_a_value_far_below_the_optimum_leaves_no_plan() -> None:
    problem = posed("cost")
    at = Incumbent(problem, below=Brute()(problem).value * 0.9)
    proof = prove(problem, NO_DEADLINE, incumbent=at)
    assert (proof.placement, at.placement, proof.is_complete) == (None, None, True)


def test_a_plan_that_another_search_offers_meanwhile_is_taken() -> None:
    problem = posed("cost")
    best, told = Brute()(problem), []
    incumbent = Incumbent(problem)

    def offer(_work: int) -> None:
        told.append(incumbent.offer(best.placement, best.value * (1 - 1e-6), "another"))

    incumbent.take_turns(offer)
    proof = prove(problem, NO_DEADLINE, incumbent=incumbent)
    assert told[0]
    assert not any(told[1:])
    assert (proof.placement, incumbent.found_by) == (best.placement, "another")


def test_the_first_of_equal_plans_is_kept() -> None:
    incumbent = Incumbent(posed("cost"))
    assert incumbent.offer(Placement((0,)), 2.0, "first")
    assert not incumbent.offer(Placement((1,)), 2.0, "second")
    assert (incumbent.placement, incumbent.value, incumbent.found_by) == (Placement((0,)), 2.0, "first")
