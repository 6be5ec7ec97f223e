"""Beside a plan with a floor stands the plan that the other question about money would choose."""

from dataclasses import replace

import numpy as np
import pytest
from drafts import posing
from small_problems import plain_problem, small_problem

from heterps_compile.cost.evaluate import detail
from heterps_compile.passes.place_layers import PlaceLayers
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.other_question import answer_other, has_other_question
from heterps_compile.plan.other_plan import OtherPlan
from heterps_compile.plan.request import Request

FLOOR = replace(small_problem(11, layers=4, types=2, structure=False, memory=False), min_throughput=3.0)


@pytest.mark.parametrize(("objective", "other"), [("cost", "price"), ("price", "cost")])
def test_it_is_the_plan_that_brute_force_finds_for_the_other_objective(objective: str, other: str) -> None:
    problem = replace(FLOOR, objective=objective)
    answer = answer_other(replace(posing(problem), request=Request()), Brute()(problem), 60.0)
    best = Brute()(replace(problem, objective=other))
    assert (answer.objective, answer.is_proven) == (other, True)
    assert answer.value == pytest.approx(best.value)
    assert answer.price_per_hour == pytest.approx(
        detail(replace(problem, objective=other), best.placement).price_per_hour
    )


def test_it_takes_the_layers_in_the_order_that_is_best_for_the_other_objective() -> None:
    # two layers for each type, in turn: at the floor two units in another order, four in this one
    turns = replace(
        plain_problem([[1.0, 9.0], [9.0, 1.0]] * 2, [1.0, 1.0], min_throughput=1800.0),
        edge_producer=np.zeros(0, np.int64),
        edge_bytes=np.zeros(0),
        edge_readers=np.zeros(0, np.int64),
        edge_starts=np.zeros(1, np.int64),
    )
    own = Brute()(turns)
    alone, free = (
        answer_other(replace(posing(turns, is_chain=is_chain), request=Request()), own, 60.0)
        for is_chain in (True, False)
    )
    assert (alone.price_per_hour, free.price_per_hour) == (4.0, 2.0)
    assert alone.is_proven
    assert free.is_proven


def test_there_is_none_without_a_floor_and_beside_a_time() -> None:
    assert has_other_question(FLOOR)
    assert not has_other_question(replace(FLOOR, min_throughput=0.0))
    assert not has_other_question(replace(FLOOR, objective="latency"))


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Request(min_throughput=1.0, method="greedy", time_limit_s=1e-9), "the time limit left no time for it"),
        (
            Request(min_throughput=1.0, method="greedy", provisioner="newton"),
            "the provisioner 'newton' does not go with it",
        ),
        (
            Request(min_throughput=1.0, method="greedy", mode="training", synchronisation="parameter-server"),
            "the parameter servers that its plan needs are left out of the search",
        ),
    ],
)
def test_where_it_is_not_looked_for_a_note_says_why(request_: Request, why: str) -> None:
    placed = PlaceLayers()(replace(posing(FLOOR), request=request_))
    assert placed.other is None
    assert f"what --objective price would choose is not told: {why}" in placed.search.notes


def test_it_is_told_where_it_saves_more_than_a_hundredth() -> None:
    other = OtherPlan("price", 2.42, 414.0, {"v100": 1, "cpu-core": 2}, is_proven=True)
    assert other.sentence(2.62, 429.0, "USD") == (
        "the cheapest hourly bill that meets the floor is 2.42 USD/h (-7.63 %), on 1 x v100 and 2 x cpu-core at "
        "414 samples/s: --objective price"
    )
    assert other.sentence(2.44, 429.0, "USD") == ""
    assert replace(other, is_proven=False).sentence(2.44, 429.0, "USD") == (
        "whether there is a cheaper hourly bill that meets the floor is not known, as the search for it did not end in "
        "its time: --objective price"
    )
    found = replace(other, objective="cost", is_proven=False).sentence(2.42, 400.0, "EUR")
    assert found.startswith("a cheaper price of a million samples at or above the floor is 1.62 EUR per million")
    assert found.endswith("--objective cost")
