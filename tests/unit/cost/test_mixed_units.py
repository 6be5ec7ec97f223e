"""What stages of several device types take and cost, with the numbers in sight."""

import math
from dataclasses import replace

import numpy as np
import pytest
from ruled_problems import plain_rule_s, plain_rules, ruled
from small_problems import linked, plain_problem, small_problem

from heterps_compile.cost.evaluate import detail, evaluate, to_placement
from heterps_compile.cost.mixed_units import MixedPlacement, worth_of
from heterps_compile.cost.problem import Problem
from heterps_compile.cost.rule_times import RuleSums
from heterps_compile.passes.placement.enumeration import every_placement


def alone(problem: Problem, *units: int) -> float:
    return worth_of(problem, MixedPlacement((0,), (units,))).times_s[0]


def test_units_are_fed_in_proportion_to_their_speed() -> None:
    """4 s of work on one type, 2 s on the other: 1/4 + 1/2 of a batch a second."""
    problem = plain_problem([[4.0, 2.0]], [1.0, 3.0])
    assert alone(problem, 1, 1) == pytest.approx(4 / 3)
    assert alone(problem, 2, 1) == pytest.approx(1.0)
    worth = worth_of(problem, MixedPlacement((0,), ((2, 1),)))
    assert (worth.price_per_hour, worth.throughput) == (5.0, pytest.approx(3600.0))


def test_what_replicas_cannot_divide_holds_up_every_type() -> None:
    problem = plain_problem([[4.0, 2.0]], [1.0, 1.0], compute_parallel=np.array([0.5, 1.0]))
    # at tau the first works off (tau - 2) / 2 of a batch, the other tau / 2: never less than 2 s
    assert alone(problem, 1, 1) == pytest.approx(2.0)


def test_replicas_sum_over_the_slowest_network_of_their_types() -> None:
    problem = plain_problem([[4.0, 4.0]], [1.0, 1.0], sync_s=np.array([[1.0, 6.0]]), compute_parallel=np.zeros(2))
    assert alone(problem, 2, 0) == 4.0
    assert alone(problem, 1, 1) == 4.0
    slow = replace(problem, compute_s=np.full((1, 2), 1.0))
    assert alone(slow, 1, 1) == pytest.approx(6.0 / 2)  # (2 - 1) / 2 of the longer all-reduce


def test_replicas_of_two_types_sum_over_the_link_between_them() -> None:
    links = np.array([[1.0, 12.0], [12.0, 2.0]])
    problem = plain_problem([[1.0, 1.0]], [1.0, 1.0], sync_s=np.array([[1.0, 2.0]]), compute_parallel=np.zeros(2))
    assert alone(replace(problem, ring_seconds_per_byte=links), 1, 1) == pytest.approx(2.0 * 6 / 2)
    assert alone(replace(problem, ring_seconds_per_byte=links), 0, 2) == pytest.approx(2.0 / 2)


def slowest_s(problem: Problem, rule: RuleSums, total: int) -> float:
    """Return what the slower of two types takes for the one layer; inf where one of them may not have the rule."""
    if any(math.isinf(plain_rule_s(problem, rule, range(1), t, total)) for t in range(2)):
        return math.inf
    ring_s, gather_s = (each.max(axis=1, keepdims=True).repeat(2, axis=1) for each in (rule.ring_s, rule.gather_s))
    return plain_rule_s(problem, replace(rule, ring_s=ring_s, gather_s=gather_s), range(1), 0, total)


@pytest.mark.parametrize("with_links", [False, True])
def test_a_rule_takes_of_two_types_what_it_takes_over_the_slowest_link(with_links: bool) -> None:
    """One layer: the time is that of the formulas, with the slower type's rule and the room of both."""
    seen = 0
    for seed in range(40):
        problem = small_problem(seed, layers=1, types=2, units=9)
        problem = ruled(linked(problem, seed) if with_links else problem, seed)
        data_s = np.zeros_like(problem.data_s)
        problem = replace(problem, compute_s=data_s + 1e-9, data_s=data_s, shared_s=None, machines=None)
        slower, links = 1.0, problem.ring_seconds_per_byte
        if links is not None:
            slower = float(links.max() / links.diagonal().max())
        for units in ((1, 1), (2, 1), (2, 2), (3, 2)):
            if not (problem.allowed.all() and np.isfinite(alone(problem, *units))):
                continue
            total = sum(units)
            expected = min(slowest_s(problem, each, total) * slower for each in plain_rules(problem, 0, 1))
            assert alone(problem, *units) == pytest.approx(max(expected, 1e-9), rel=1e-6, abs=2e-9)
            seen += 1
    assert seen > 20


def test_a_type_that_cannot_hold_the_stage_makes_it_impossible() -> None:
    problem = plain_problem([[4.0, 2.0]], [1.0, 1.0], memory_bytes=np.array([9.0, 1.0]), weight_bytes=np.array([5.0]))
    assert alone(problem, 2, 0) == 2.0
    assert alone(problem, 1, 1) == np.inf


def test_limits_floor_and_budget_are_kept() -> None:
    problem = plain_problem([[4.0, 2.0]], [1.0, 3.0], max_units=np.array([2, 1]))
    both = MixedPlacement((0,), ((2, 1),))
    assert np.isfinite(worth_of(problem, both).value)
    for changes in (
        {"max_units": np.array([1, 1])},
        {"min_throughput": 3601.0},
        {"objective": "throughput", "budget_per_hour": 4.9},
        {"min_stages": 2},
    ):
        assert worth_of(replace(problem, **changes), both).value == np.inf, changes  # type: ignore[arg-type]


@pytest.mark.parametrize("with_links", [False, True])
def test_a_plan_without_such_stages_is_worth_what_the_evaluator_says(with_links: bool) -> None:
    for seed in range(6):
        problem = replace(small_problem(seed, layers=4, types=2), objective=("cost", "price", "throughput")[seed % 3])
        problem = linked(problem, seed) if with_links else problem
        types, cuts = next(every_placement(problem))
        for row in np.flatnonzero(np.isfinite(evaluate(problem, types, cuts).values))[:4]:
            placement = to_placement(types[row], cuts[row])
            found = detail(problem, placement)
            mixed = MixedPlacement.of_plain(problem, placement, [stage.replicas for stage in found.stages])
            worth = worth_of(problem, mixed)
            assert mixed.mixed_stages == 0
            assert worth.value == pytest.approx(found.value)
            assert worth.times_s == pytest.approx([stage.time_s for stage in found.stages])
