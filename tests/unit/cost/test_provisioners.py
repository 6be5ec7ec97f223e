"""The paper's provisioning rules: they agree where they must, and none beats the exact one."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import plain_problem, small_problem

from heterps_compile.cost.evaluate import FLOOR_TOLERANCE, detail
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.cost.provisioners import (
    balanced_newton,
    closed_form,
    parameter_servers,
    static_ps_ratio,
    static_ratio,
)
from heterps_compile.errors import InfeasibleError

PLACEMENT = Placement((0, 0, 1, 1))


def problem(floor: float) -> Problem:
    drawn = small_problem(3, layers=4, types=2, floor=False, memory=False, structure=False)
    kinds, limits = ("cpu", "gpu"), np.array([10_000, 10_000])
    return replace(drawn, min_throughput=floor, max_units=limits, type_kinds=kinds, min_stages=1, max_stages=4)


def reachable_floor() -> float:
    base = detail(problem(0.0), PLACEMENT)
    return 1.5 * base.throughput


def test_newton_without_a_fixed_price_is_the_closed_form_at_the_floor() -> None:
    posed = problem(reachable_floor())
    assert balanced_newton(posed, PLACEMENT) == closed_form(posed, PLACEMENT)


def test_every_stage_of_the_real_valued_rule_takes_the_same_time() -> None:
    posed = problem(reachable_floor())
    rule = closed_form(posed, PLACEMENT, whole=False)
    assert rule.throughput == pytest.approx(posed.min_throughput)


def test_newton_finds_the_optimum_inside_that_a_fixed_price_makes() -> None:
    posed = problem(1e-6)
    fixed = 5.0
    found = balanced_newton(posed, PLACEMENT, fixed_price_per_hour=fixed, whole=False)
    price = found.price_per_million_samples
    for factor in (0.9, 0.99, 1.01, 1.1):
        other = closed_form(replace(posed, min_throughput=found.throughput * factor), PLACEMENT, whole=False)
        assert (other.price_per_hour + fixed) / other.throughput / 3600 * 1e6 > price


def test_the_exact_provisioner_is_never_dearer() -> None:
    posed = problem(reachable_floor())
    best = detail(posed, PLACEMENT).value
    assert best <= closed_form(posed, PLACEMENT).price_per_million_samples * (1 + 1e-9)
    assert best <= static_ratio(posed, PLACEMENT, 4.0).price_per_million_samples * (1 + 1e-9)


def test_the_static_ratio_meets_the_floor() -> None:
    posed = problem(reachable_floor())
    assert static_ratio(posed, PLACEMENT, 4.0).throughput >= posed.min_throughput * (1 - FLOOR_TOLERANCE)


def test_the_static_ratio_pays_for_all_that_it_rents() -> None:
    times = [[10.0, np.inf], [np.inf, 10.0]]
    posed = plain_problem(times, [1.0, 3.0], min_throughput=720.0)  # 5 s a batch: two of each
    assert static_ratio(posed, Placement((0, 1)), 4.0).price_per_hour == pytest.approx(2 * 3.0 + 8 * 1.0)
    assert static_ratio(posed, Placement((0, 1)), 0.5).price_per_hour == pytest.approx(3 * 3.0 + 2 * 1.0)


def test_the_static_ratio_rents_as_many_accelerators_as_there_are_units_and_no_more() -> None:
    times = [[10.0, np.inf], [np.inf, 10.0]]
    posed = plain_problem(times, [1.0, 3.0], min_throughput=720.0)  # 5 s a batch: two of each
    two = replace(posed, max_units=np.array([1, 1]))
    assert static_ratio(two, Placement((0, 1)), 4.0) == static_ratio(posed, Placement((0, 1)), 4.0)
    with pytest.raises(InfeasibleError, match=r"\b1\b"):
        static_ratio(replace(posed, max_units=np.array([1, 0])), Placement((0, 1)), 4.0)


def test_newton_sees_where_a_single_replica_stops_to_synchronise() -> None:
    """Replicas synchronise for 9 (k - 1) / k of the 10 s that one takes: just below them one is much cheaper."""
    posed = plain_problem([[10.0]], [1.0], sync_s=np.array([[9.0]]), data_s=np.array([[10.0]]))
    found = balanced_newton(posed, Placement((0,)), fixed_price_per_hour=8.0, whole=False)
    assert (found.units, found.throughput) == (pytest.approx((1.0,)), pytest.approx(posed.batch / 10.0))


def test_newton_ends_at_whole_replicas_where_more_would_synchronise_for_longer() -> None:
    """10 / k of computation, 12 (k - 1) / k of all-reduce: 6 s with two, and no less with three."""
    posed = plain_problem([[10.0]], [1.0], sync_s=np.array([[12.0]]))
    found = balanced_newton(posed, Placement((0,)), fixed_price_per_hour=1e6)
    assert (found.units, found.throughput) == ((2.0,), pytest.approx(posed.batch / 6.0))


def test_newton_may_end_where_the_shared_storage_lets_nothing_be_faster() -> None:
    posed = plain_problem([[10.0]], [1.0], shared_s=np.array([[5.0]]))
    for whole in (False, True):
        found = balanced_newton(posed, Placement((0,)), fixed_price_per_hour=1e6, whole=whole)
        assert (found.units, found.throughput) == (pytest.approx((2.0,)), pytest.approx(posed.batch / 5.0))


def test_the_static_server_ratio_pays_for_its_servers() -> None:
    posed = problem(reachable_floor())
    workers = closed_form(posed, PLACEMENT)
    servers = static_ps_ratio(posed, PLACEMENT, 0.5, 0.04)
    assert servers.price_per_hour == pytest.approx(workers.price_per_hour + np.ceil(sum(workers.units) / 2) * 0.04)


def test_servers_keep_up_with_the_workers() -> None:
    # 4 workers push and pull 100 MB in 0.1 s: 8 GB/s, of which a server carries 1.25
    assert parameter_servers(100e6, 4, 1.25e9, 0.1) == 7
    assert parameter_servers(1.0, 1, 1e9, 1.0) == 1


def test_a_floor_beyond_any_number_of_replicas_names_the_stage() -> None:
    message = "'layer0'.*'layer1'"
    with pytest.raises(InfeasibleError, match=message):
        closed_form(problem(1e15), PLACEMENT)
    with pytest.raises(InfeasibleError, match="throughput"):
        closed_form(problem(0.0), PLACEMENT)
