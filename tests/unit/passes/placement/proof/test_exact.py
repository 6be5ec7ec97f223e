"""The exact search on problems whose answer is in sight, on long ones, and stopped early."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import letters, plain_problem
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.problem import FREE_PRICE_PER_HOUR, Placement, Problem
from heterps_compile.errors import HeterpsError, InfeasibleError, InputError
from heterps_compile.passes import solver
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.effort import EFFORT
from heterps_compile.passes.placement.proof.exact import NOT_BEGUN, Exact
from heterps_compile.passes.placement.proof.trivial_bounds import trivial_bound


def types(problem: Problem) -> str:
    return letters(problem, Exact()(problem).placement)


def test_every_layer_goes_where_it_is_cheapest_when_cuts_are_free() -> None:
    assert types(plain_problem([[1.0, 9.0], [9.0, 1.0], [1.0, 9.0]], [1.0, 1.0])) == "c|g|c"


def test_a_cut_that_costs_more_than_it_saves_is_not_made() -> None:
    problem = plain_problem([[1.0, 9.0], [3.0, 2.0], [1.0, 9.0]], [1.0, 1.0], edge_bytes=np.array([50.0, 50.0]))
    assert types(problem) == "ccc"


def test_a_run_of_one_type_is_cut_where_its_serial_part_blocks() -> None:
    problem = plain_problem([[1.0], [1.0]], [1.0], compute_parallel=np.zeros(1), min_throughput=3600.0)
    assert types(problem) == "c|c"


def test_the_least_number_of_stages_is_kept() -> None:
    assert types(plain_problem([[1.0]] * 4, [1.0], min_stages=4)) == "c|c|c|c"


def test_the_largest_number_of_stages_is_kept() -> None:
    problem = plain_problem([[1.0, 9.0], [9.0, 1.0]] * 3, [1.0, 1.0])
    assert types(problem) == "c|g|c|g|c|g"
    assert len(Exact()(replace(problem, max_stages=3)).placement.starts()) <= 3


def test_no_stage_begins_where_none_may() -> None:
    uncuttable = np.array([False, True, False, False, False])
    assert types(plain_problem([[1.0, 9.0], [9.0, 8.0], [9.0, 1.0], [9.0, 1.0]], [1.0] * 2, uncuttable=uncuttable)) in (
        "cc|gg",
        "gg|gg",
        "gggg",
    )


def test_stages_share_the_units_of_a_type() -> None:
    # both halves would take 4 units of the cheap type; it has 5
    compute_s = [[4.0, 4.0], [4.0, 4.0]]
    limited = plain_problem(compute_s, [1.0, 1.5], min_throughput=3600.0, max_units=np.array([5, 9]))
    found = Exact()(limited)
    assert found.gap == 0
    assert found.value == pytest.approx(Brute()(limited).value)
    assert set(found.placement.types) == {0, 1}


@pytest.mark.parametrize(("layers", "types", "seed"), [pytest.param(100, 16, 1, marks=pytest.mark.slow), (300, 8, 3)])
def test_a_few_units_of_each_of_many_types_are_shared_out_with_a_proof(layers: int, types: int, seed: int) -> None:
    problem = synthetic_problem(Recipe(seed=seed, layers=layers, types=types, limited=True))
    alone = Exact()(replace(problem, max_units=np.full(types, 100_000)))
    found = Exact()(problem)
    assert alone.gap == found.gap == 0
    assert found.value > alone.value  # the limits bind


@pytest.mark.parametrize("free", range(3))
@pytest.mark.parametrize("seed", range(3))
def test_free_units_that_stages_share_are_shared_out(seed: int, free: int) -> None:
    problem = synthetic_problem(Recipe(seed=seed, layers=6, types=3, limited=True))
    price = np.where(np.arange(3) == free, FREE_PRICE_PER_HOUR, problem.price_per_hour)
    found = Exact()(replace(problem, price_per_hour=price))
    assert found.gap == 0
    assert found.value == pytest.approx(Brute()(replace(problem, price_per_hour=price)).value)


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_long_chain_needs_no_list_of_its_segments(seed: int) -> None:
    problem = synthetic_problem(Recipe(seed=seed, layers=420, types=4, branched=seed % 2 == 1))
    assert Chain(problem).length > 300
    found = Exact()(problem, time_limit_s=60)
    assert found.gap == 0
    whole = Exact(EFFORT.without("interval bounds"))(problem, time_limit_s=60)
    assert found.value == pytest.approx(whole.value, rel=1e-8)


def test_a_long_chain_with_shared_limits_has_a_plan_and_a_bound() -> None:
    problem = synthetic_problem(Recipe(seed=2, layers=400, types=4, limited=True))
    found = Exact()(problem, time_limit_s=2)
    assert evaluate_one(problem, found.placement) == found.value
    assert 0 < found.bound <= found.value


def test_without_time_the_plan_is_a_simple_one_and_the_bound_honest() -> None:
    problem = synthetic_problem(Recipe(seed=1, layers=60, types=4))
    found = Exact()(problem, time_limit_s=0.0)
    assert found.bound == pytest.approx(trivial_bound(problem))
    assert found.notes == ("the time limit came before the proof was complete",)
    best = Exact()(problem)
    assert found.bound < best.value < found.value
    assert best.notes == ()


def test_a_programme_that_was_not_begun_is_why_a_gap_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = synthetic_problem(Recipe(seed=0, layers=60, types=8, limited=True, tight_memory=True, branched=True))
    exact = Exact(EFFORT.without("label setting"))
    assert exact(problem, time_limit_s=600.0).notes == ()
    monkeypatch.setattr(solver, "_STEPS_TO_WRITING", 1e9)
    assert exact(problem, time_limit_s=600.0).notes == (NOT_BEGUN,)


def test_a_plan_is_never_worse_than_its_warm_start() -> None:
    problem = synthetic_problem(Recipe(seed=1, layers=60, types=4))
    best = Exact()(problem)
    assert Exact()(problem, time_limit_s=0.0, warm_start=best.placement).value == best.value


def test_a_warm_start_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"\b2\b.*\b3\b"):
        Exact()(plain_problem([[1.0]] * 3, [1.0]), warm_start=Placement((0, 0)))


def test_no_plan_in_time_is_not_called_infeasible() -> None:
    problem = plain_problem(
        [[1.0, 1.0]] * 6, [1.0, 1.0], allowed=np.array([[True, False], [False, True]] * 3), max_units=np.array([3, 3])
    )
    assert Exact()(problem).gap == 0
    with pytest.raises(InfeasibleError, match=r"\b0\b"):
        Exact()(replace(problem, min_stages=6, max_units=np.array([3, 2])), time_limit_s=0.0)


def test_brute_force_refuses_what_it_cannot_finish() -> None:
    with pytest.raises(HeterpsError, match=r"8.11e\+18.*2,000"):
        Brute()(plain_problem([[1.0] * 2] * 40, [1.0] * 2))


def test_the_latency_of_training_is_refused_since_synchronising_couples_it() -> None:
    problem = plain_problem([[4.0, 1.0]], [1.0, 9.0], objective="latency", sync_s=np.ones((1, 2)))
    with pytest.raises(InputError, match="'latency'"):
        Exact()(problem)


def test_the_cheapest_hour_meets_the_floor_and_no_more() -> None:
    problem = plain_problem([[1.0, 0.25]], [1.0, 3.0], min_throughput=3600.0)  # one cpu is as fast as the floor
    assert Exact()(problem).placement.types == (1,)  # 4 times as fast for 3 times the price
    cheapest = Exact()(replace(problem, objective="price"))
    assert (cheapest.placement.types, cheapest.value, cheapest.bound) == ((0,), 1.0, 1.0)


def test_limits_on_units_couple_the_cheapest_hour() -> None:
    # alone each layer takes 4 cpus; there are 6, and the two gpus that one of the layers then takes are dearer
    problem = plain_problem([[4.0, 2.0], [4.0, 1.0]], [1.0, 3.0], min_throughput=3600.0, objective="price")
    limited = replace(problem, max_units=np.array([6, 100]))
    found = Exact()(limited)
    assert (letters(limited, found.placement), found.value, found.bound) == ("c|g", 7.0, 7.0)
