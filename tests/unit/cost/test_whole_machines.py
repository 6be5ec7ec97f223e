"""What units cost where machines are rented whole: with the price in sight, and against plain formulas."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import plain_problem, plain_value, rented_whole, small_problem

from heterps_compile.cost.evaluate import Fault, detail, evaluate, to_placement
from heterps_compile.cost.problem import Placement
from heterps_compile.passes.placement.enumeration import every_placement


def test_stages_share_the_machines_of_their_type() -> None:
    problem = plain_problem([[3.0], [3.0]], [1.0], min_throughput=3600.0, objective="price")
    apart = detail(problem, Placement((0, 0), (1,)))
    assert [stage.replicas for stage in apart.stages] == [3, 3]
    whole = detail(replace(problem, rented_together=np.array([4])), Placement((0, 0), (1,)))
    assert (apart.price_per_hour, whole.price_per_hour) == (6.0, 8.0)  # two machines, not one for each stage
    assert whole.idle_price_per_hour == 2.0


def test_units_that_are_paid_already_are_used_where_that_makes_a_batch_cheaper() -> None:
    problem = plain_problem([[12.0]], [1.0], min_throughput=3600 / 2.4, max_units=np.array([64]))
    assert [stage.replicas for stage in detail(problem, Placement((0,))).stages] == [5]
    whole = detail(replace(problem, rented_together=np.array([4])), Placement((0,)))
    assert [(stage.replicas, stage.time_s) for stage in whole.stages] == [(8, 1.5)]
    assert whole.value == pytest.approx(detail(problem, Placement((0,))).value)


def test_a_budget_is_kept_with_whole_machines() -> None:
    problem = plain_problem([[12.0]], [1.0], objective="throughput", budget_per_hour=7.0)
    whole = replace(problem, rented_together=np.array([4]), max_units=np.array([64]))
    assert detail(problem, Placement((0,))).stages[0].replicas == 7
    assert detail(whole, Placement((0,))).stages[0].replicas == 4
    assert evaluate(replace(whole, min_throughput=3600 / 2.0), np.array([[0]])).faults[0] == Fault.BUDGET


@pytest.mark.parametrize("objective", ["cost", "price", "throughput", "latency"])
def test_placements_cost_what_plain_formulas_say(objective: str) -> None:
    for seed in range(8):
        drawn = small_problem(seed, layers=1 + seed % 4, types=1 + seed % 3, units=9)
        budget = (
            0.4 * float(drawn.price_per_hour @ drawn.max_units) if objective in ("throughput", "latency") else np.inf
        )
        posed = replace(drawn, objective=objective, budget_per_hour=budget)
        if objective == "latency":
            posed = replace(posed, sync_s=np.zeros_like(posed.sync_s), keeps_activations=False)
        problem = rented_whole(posed, seed)
        types, cuts = next(every_placement(problem))
        rows = np.random.default_rng(seed).integers(0, len(types), 6)
        found = evaluate(problem, types[rows], cuts[rows]).values
        plain = [plain_value(problem, to_placement(types[row], cuts[row])) for row in rows]
        assert found.tolist() == pytest.approx(plain)
