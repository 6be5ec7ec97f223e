"""Tables on servers in the problem: what a plan with them is worth, held against every number of servers."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from ruled_problems import ruled
from small_problems import (
    linked,
    on_machines,
    plain_served_value,
    small_problem,
    with_rows,
    with_servers,
    with_shared_storage,
)

from heterps_compile.cost.evaluate import detail, evaluate, evaluate_one, ranges_of, to_arrays
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.cost.table_servers import servers_at, work_s


def served_problem(seed: int, objective: str = "cost", *, layers: int = 4, types: int = 2) -> Problem:
    """Draw a small problem, some layers of which have tables on servers."""
    problem = small_problem(seed, layers=layers, types=types, units=4)
    if objective == "price" and not problem.min_throughput:
        problem = replace(problem, min_throughput=0.1 * problem.batch)
    if objective == "latency":
        problem = replace(problem, sync_s=np.zeros_like(problem.sync_s), keeps_activations=False)
    budget = 2.0 + seed % 20 if objective in ("throughput", "latency") and seed % 2 else math.inf
    return with_servers(replace(problem, objective=objective, budget_per_hour=budget), seed)


OBJECTIVES = ("cost", "price", "throughput", "latency", "max-load")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_placement_is_worth_the_best_of_all_replicas_and_all_numbers_of_servers(objective):
    feasible = 0
    for seed in range(24):
        problem = served_problem(seed, objective)
        chance = np.random.default_rng([seed, 9])
        placement = Placement(tuple(int(t) for t in chance.integers(0, problem.type_count, problem.layer_count)))
        expected, found = plain_served_value(problem, placement), evaluate_one(problem, placement)
        assert found == pytest.approx(expected, rel=1e-7), seed
        feasible += math.isfinite(expected)
    assert feasible > 3


def test_stages_and_servers_of_the_detail_are_those_of_its_value():
    seen = 0
    for seed in range(24):
        problem = served_problem(seed)
        placement = Placement((0, 0, 1, 1))
        found = detail(problem, placement)
        if found.faults:
            continue
        seen += 1
        units = sum(stage.price_per_hour for stage in found.stages)
        assert len(found.stages) == len(placement.starts())
        assert found.price_per_hour == pytest.approx(units + found.servers * problem.server_price_per_hour)
        assert found.servers >= problem.least_servers
        whole_s = work_s(problem)
        slowest_s = max(*(stage.time_s for stage in found.stages), found.servers_s)
        assert found.servers_s == pytest.approx(whole_s / found.servers)
        assert found.throughput == pytest.approx(problem.batch / slowest_s)
        again = detail(problem, placement, np.array([stage.replicas for stage in found.stages]), servers=found.servers)
        assert again.value == pytest.approx(found.value)
    assert seen > 5


def test_every_array_has_an_entry_for_the_servers_where_it_has_one_for_every_layer_or_type():
    layers, types = 7, 3
    problem = on_machines(linked(with_shared_storage(small_problem(1, layers=layers, types=types), 1), 1), 1)
    problem = replace(
        problem,
        layer_compute_parallel=np.full((layers, types), 0.9),
        layer_data_parallel=np.full((layers, types), 0.9),
        rented_together=np.ones(types, np.int64),
    )
    problem = ruled(with_rows(with_servers(problem, 2), 2), 2)
    assert not [field.name for field in fields(Problem) if getattr(problem, field.name) is None]  # all are drawn
    for each in ranges_of(problem):
        for field in fields(Problem):
            before, after = getattr(problem, field.name), getattr(each.problem, field.name)
            if isinstance(before, np.ndarray) and not field.name.startswith(
                ("edge_", "tied_", "served", "rows", "requests")
            ):
                assert after.shape == tuple(size + 1 for size in before.shape), field.name
            if field.name == "rules":
                assert [rule.ring_s.shape for rule in after] == [(layers + 1, types + 1)] * len(before)
                assert [rule.room_bytes.shape for rule in after] == [(types + 1,)] * len(before)
            elif isinstance(before, tuple):
                assert len(after) == len(before) + 1, field.name


def test_servers_hold_the_tables_and_keep_up():
    problem = replace(served_problem(0), served_s=np.array([1.0, 0.0, 2.0, 0.0]), least_servers=4)
    assert servers_at(problem, math.inf) == 4
    assert servers_at(problem, 0.75) == 4
    assert servers_at(problem, 0.5) == 6


def test_a_batch_of_placements_is_priced_as_each_alone():
    problem = served_problem(3)
    placements = [Placement((0, 0, 0, 0)), Placement((0, 1, 1, 0)), Placement((1, 1, 1, 1), (2,))]
    together = evaluate(problem, *to_arrays(placements)).values
    assert together.tolist() == [evaluate_one(problem, placement) for placement in placements]
