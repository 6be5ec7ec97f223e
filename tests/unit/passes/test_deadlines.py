"""A time limit is kept: every long loop asks the clock, and a solver inside of one gets what is left.

The clock is a counter here: it stands still until it has been asked so often, and then the time is up.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import highspy
import numpy as np
import pytest
from drafts import DRAFT, posing
from small_problems import small_problem
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.problem import Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes import deadline as deadline_module
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline, TimeUpError
from heterps_compile.passes.place_layers import PlaceLayers
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.methods import METHODS
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.passes.placement.proof.linked_chain import LinkedChain
from heterps_compile.passes.placement.proof.prove import prove
from heterps_compile.passes.placement.proof.why_infeasible import explain_infeasible
from heterps_compile.passes.placement.simple_plans import seed_placements

LIMIT_S = 10.0
MOST_ASKED_AFTERWARDS = 60


class Clock:
    """Stands at 0 until it has been asked ``patience`` times; then it is far behind any limit, and goes on."""

    def __init__(self, patience: int) -> None:
        self.patience, self.asked = patience, 0

    def monotonic(self) -> float:
        self.asked += 1
        return 0.0 if self.asked <= self.patience else 1000.0 + 0.1 * self.asked

    @property
    def asked_afterwards(self) -> int:
        return max(0, self.asked - self.patience)


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_clock(patience: int) -> Clock:
        clock = Clock(patience)
        monkeypatch.setattr(deadline_module, "time", SimpleNamespace(monotonic=clock.monotonic))
        return clock

    return set_clock


def with_links(problem: Problem, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    shape = (problem.type_count, problem.type_count)
    seconds = np.maximum(problem.seconds_per_byte[:, None], problem.seconds_per_byte) * rng.uniform(1, 3, shape)
    seconds = np.maximum(seconds, seconds.T)
    latency_s = np.full(shape, 1e-4)
    return replace(
        problem,
        seconds_per_byte=seconds.min(axis=1),
        latency_s=latency_s.min(axis=1),
        link_seconds_per_byte=seconds,
        link_latency_s=latency_s,
    )


PROBLEMS = {
    "plain": synthetic_problem(Recipe(1, 40, 4)),
    "limited": synthetic_problem(Recipe(1, 30, 4, limited=True)),
    "branched and tight": synthetic_problem(Recipe(3, 30, 4, branched=True, tight_memory=True)),
    "linked": with_links(synthetic_problem(Recipe(1, 20, 4)), 1),
    "linked and branched": with_links(synthetic_problem(Recipe(2, 20, 3, branched=True, limited=True)), 1),
    "small": synthetic_problem(Recipe(1, 6, 3, limited=True)),
    "long": synthetic_problem(Recipe(1, 400, 4)),
}
OBJECTIVES = ("cost", "throughput", "latency")
EVERY_OBJECTIVE = (*OBJECTIVES, "max-load")


def asked_for(problem: Problem, objective: str) -> Problem:
    if objective == "cost":
        return problem
    budget = float(problem.price_per_hour @ np.minimum(problem.max_units, 4))
    return replace(problem, objective=objective, budget_per_hour=budget, sync_s=np.zeros_like(problem.sync_s))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_proof_stops_soon_after_its_time_and_its_bound_holds(name, objective, stop_after):
    problem = asked_for(PROBLEMS[name], objective)
    starts = seed_placements(problem, None)
    later = None
    for patience in (60, 9, 3, 1):
        clock = stop_after(patience + 1)  # one to make the deadline
        proof = prove(problem, Deadline.after(LIMIT_S), starts)
        assert clock.asked_afterwards <= MOST_ASKED_AFTERWARDS, patience
        assert proof.bound <= proof.best
        if later is not None:  # who stops earlier knows no more
            assert proof.bound <= min(later.best, np.inf) * (1 + 1e-9)
            assert proof.best >= later.bound * (1 - 1e-9)
        later = proof


@pytest.mark.parametrize("objective", EVERY_OBJECTIVE)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_plan_soon_after_its_time_and_starts_no_solver(method, objective, stop_after, monkeypatch):
    problem = replace(asked_for(PROBLEMS["small"], objective), min_throughput=0.0)
    run, started = highspy.Highs.run, list[int]()
    monkeypatch.setattr(highspy.Highs, "run", lambda solver: started.append(clock.asked_afterwards) or run(solver))
    draft = replace(posing(problem), request=replace(DRAFT.request, time_limit_s=LIMIT_S, objective=objective))
    for patience in (5, 25):
        clock = stop_after(patience)
        result = PlaceLayers(method=method)(draft).search
        assert clock.asked_afterwards <= MOST_ASKED_AFTERWARDS
        assert evaluate_one(problem, result.placement) == pytest.approx(result.value)
        assert result.bound <= result.value * (1 + 1e-9)
    assert all(afterwards == 0 for afterwards in started)


def test_segments_between_types_are_listed_with_an_eye_on_the_clock(stop_after):
    chain = Chain(with_links(synthetic_problem(Recipe(1, 60, 6)), 1))
    whole = LinkedChain(chain).all_segments()
    clock = stop_after(10**9)
    listed = LinkedChain(chain).all_segments(Deadline.after(LIMIT_S))
    assert len(listed) == len(whole)
    assert clock.asked > len(whole) / 200_000 + chain.length / 2  # for the list and for what links cost
    stop_after(clock.asked - 1)
    with pytest.raises(TimeUpError):
        LinkedChain(chain).all_segments(Deadline.after(LIMIT_S))


def test_the_parts_of_the_list_are_in_order():
    segments = LinkedChain(Chain(PROBLEMS["linked"])).all_segments(NO_DEADLINE)
    keys = list(zip(segments.first.tolist(), segments.end.tolist(), segments.type.tolist(), strict=True))
    assert keys == sorted(keys)


def test_a_solver_gets_what_is_left_and_no_more(monkeypatch, stop_after):
    given: list[tuple[float, float]] = []
    now = [0.0]

    def monotonic() -> float:
        now[0] += 0.25
        return now[0]

    set_option = highspy.Highs.setOptionValue

    def noted(solver: Any, option: str, value: Any) -> Any:
        if option == "time_limit":
            given.append((now[0], value))
        return set_option(solver, option, value)

    monkeypatch.setattr(highspy.Highs, "setOptionValue", noted)
    monkeypatch.setattr(deadline_module, "time", SimpleNamespace(monotonic=monotonic))
    problem = synthetic_problem(Recipe(1, 40, 8, limited=True, tight_memory=True))
    problem = replace(problem, objective="throughput", budget_per_hour=2 * float(problem.price_per_hour.sum()))
    prove(problem, Deadline.after(1000.0), seed_placements(problem, None))
    assert given
    assert all(0 <= limit <= 1000.5 - at for at, limit in given), given


def test_the_reason_for_nothing_takes_no_longer_than_the_limit_allows(stop_after):
    problem = replace(
        small_problem(3, layers=5, types=2, structure=False), max_units=np.array([1, 1]), min_throughput=1e6
    )
    messages = []
    for method in (Exact(), Brute()):
        clock = stop_after(3)
        with pytest.raises(InfeasibleError) as caught:
            method(problem, time_limit_s=LIMIT_S)
        assert clock.asked_afterwards <= 3 * MOST_ASKED_AFTERWARDS  # the paths that tell the reason ask as well
        messages.append(str(caught.value))
    assert all(message.startswith(("a throughput of", "no feasible plan", "brute found")) for message in messages)


def test_the_search_for_the_reason_is_bounded_and_names_none_that_it_did_not_find(stop_after):
    long = PROBLEMS["long"]
    size_bytes = float(long.weight_bytes.sum())
    problem = replace(long, max_stages=2, min_throughput=0.0, memory_bytes=np.full(long.type_count, size_bytes / 8))
    assert str(explain_infeasible(problem)).startswith("memory asks for at least")
    clock = stop_after(1)
    assert str(explain_infeasible(problem, Deadline(0.0))).startswith("no placement meets all constraints together")
    assert clock.asked_afterwards <= MOST_ASKED_AFTERWARDS
