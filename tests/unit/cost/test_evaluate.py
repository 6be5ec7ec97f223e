"""Placements with their price in sight."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.evaluate import Fault, detail, evaluate, to_arrays, to_placement
from heterps_compile.cost.problem import Placement, Problem

PER_MILLION = 1e6 / 3600 / 3600  # what 1 s a batch at 1 an hour costs per million samples, with 3,600 samples a batch


def price(problem: Problem, *types: int, cuts: tuple[int, ...] = ()) -> float:
    """Return seconds a batch times price per hour."""
    return detail(problem, Placement(types, cuts)).value / PER_MILLION


def replicas(problem: Problem, *types: int, cuts: tuple[int, ...] = ()) -> list[int]:
    return [stage.replicas for stage in detail(problem, Placement(types, cuts)).stages]


def test_one_stage_costs_its_work_times_its_price() -> None:
    problem = plain_problem([[2.0, 1.0], [2.0, 1.0]], [0.5, 3.0])
    assert price(problem, 0, 0) == pytest.approx(4.0 * 0.5)
    assert price(problem, 1, 1) == pytest.approx(2.0 * 3.0)


def test_the_slower_of_two_stages_sets_the_throughput() -> None:
    problem = plain_problem([[2.0, 9.0], [9.0, 1.0]], [0.5, 3.0], max_units=np.array([1, 1]))
    assert price(problem, 0, 1) == pytest.approx(2.0 * (0.5 + 3.0))
    assert detail(problem, Placement((0, 1))).throughput == pytest.approx(3600 / 2.0)


def test_the_slow_stage_gets_the_units_that_balance_the_plan() -> None:
    problem = plain_problem([[2.0, 9.0], [9.0, 1.0]], [0.5, 3.0])
    assert replicas(problem, 0, 1) == [2, 1]
    assert price(problem, 0, 1) == pytest.approx(1.0 * (2 * 0.5 + 3.0))


def test_a_floor_asks_for_more_units() -> None:
    problem = plain_problem([[2.0], [9.0]], [1.0], min_throughput=3600.0)
    assert replicas(problem, 0, 0) == [11]
    assert detail(problem, Placement((0, 0))).throughput == pytest.approx(3600.0)


def test_what_is_serial_makes_replicas_dearer() -> None:
    problem = plain_problem([[4.0]], [1.0], compute_parallel=np.array([0.5]), min_throughput=3600 / 3.0)
    assert replicas(problem, 0) == [2]  # 2 s serial + 2 s / 2
    assert price(problem, 0) == pytest.approx(3.0 * 2)


def test_synchronisation_is_paid_by_replicas_alone() -> None:
    problem = plain_problem([[4.0]], [1.0], sync_s=np.array([[3.0]]), min_throughput=3600 / 3.5)
    assert replicas(problem, 0) == [2]
    stage = detail(problem, Placement((0,))).stages[0]
    assert (stage.data_s, stage.sync_s) == (pytest.approx(1.5), pytest.approx(1.5))  # (2 - 1) / 2 of 3 s
    assert replicas(replace(problem, min_throughput=0.0), 0) == [1]


def test_gradients_that_take_longer_to_sum_allow_only_so_many_replicas() -> None:
    """4 / k of computation, 3 (k - 1) / k of all-reduce: 2 s with two, the fewest and the most under 2 s."""
    problem = plain_problem([[4.0]], [1.0], sync_s=np.array([[3.0]]))
    assert replicas(replace(problem, min_throughput=3600 / 2.0), 0) == [2]
    for batch_s in (1.9, 1.0):  # three take 1.33 s and synchronise for 2 s
        found = evaluate(replace(problem, min_throughput=3600 / batch_s), np.array([[0]]))
        assert found.faults[0] == Fault.FLOOR


def test_a_value_is_charged_where_it_leaves_and_once_to_every_stage_it_enters() -> None:
    problem = plain_problem(
        [[1.0, 1.0, 1.0]] * 4,
        [1.0, 1.0, 1.0],
        edge_producer=np.array([0]),
        edge_bytes=np.array([5.0]),
        edge_readers=np.array([1, 2, 3]),
        edge_starts=np.array([0, 3]),
    )
    stages = detail(problem, Placement((0, 1, 1, 2))).stages
    assert [s.sent_bytes for s in stages] == [5.0, 0.0, 0.0]
    assert [s.received_bytes for s in stages] == [0.0, 5.0, 5.0]


def test_a_cut_divides_a_run_of_one_type() -> None:
    problem = plain_problem([[1.0], [2.0]], [1.0], compute_parallel=np.array([0.0]))
    assert [(s.first_layer, s.end_layer) for s in detail(problem, Placement((0, 0), (1,))).stages] == [(0, 1), (1, 2)]
    assert detail(problem, Placement((0, 0), (1,))).throughput == pytest.approx(3600 / 2.0)
    assert detail(problem, Placement((0, 0))).throughput == pytest.approx(3600 / 3.0)


def test_memory_counts_shared_weights_once_and_the_largest_activation() -> None:
    problem = plain_problem(
        [[1.0], [1.0]],
        [1.0],
        weight_bytes=np.array([10.0, 12.0]),
        activation_bytes=np.array([3.0, 4.0]),
        tied_first=np.array([0]),
        tied_second=np.array([1]),
        tied_bytes=np.array([9.0]),
    )
    assert detail(problem, Placement((0, 0))).stages[0].memory_bytes == 10 + 12 - 9 + 4
    training = replace(problem, keeps_activations=True)
    assert detail(training, Placement((0, 0))).stages[0].memory_bytes == 10 + 12 - 9 + 7
    assert [s.memory_bytes for s in detail(problem, Placement((0, 0), (1,))).stages] == [13, 16]


@pytest.mark.parametrize(
    ("changes", "types", "fault"),
    [
        ({"min_throughput": 1e5, "compute_parallel": np.zeros(2)}, (0, 0), Fault.FLOOR),
        ({"min_throughput": 3600.0, "max_units": np.array([3, 1])}, (0, 0), Fault.UNITS),
        ({"memory_bytes": np.array([1.0, 9.0])}, (0, 0), Fault.MEMORY),
        ({"min_stages": 2}, (0, 0), Fault.STAGE_COUNT),
        ({"max_stages": 1}, (0, 1), Fault.STAGE_COUNT),
        ({"allowed": np.array([[True, True], [False, True]])}, (0, 0), Fault.FORBIDDEN),
        ({"compute_s": np.array([[1.0, np.inf], [1.0, 1.0]])}, (1, 1), Fault.FORBIDDEN),
        ({"uncuttable": np.array([False, True, False])}, (0, 1), Fault.UNCUTTABLE),
    ],
)
def test_an_infeasible_placement_says_why(changes: dict[str, object], types: tuple[int, ...], fault: Fault) -> None:
    problem = plain_problem([[2.0, 1.0], [2.0, 1.0]], [0.5, 3.0], **changes)
    evaluation = evaluate(problem, np.array([types]))
    assert evaluation.faults.tolist() == [int(fault)]
    assert np.isinf(evaluation.values[0])
    assert evaluation.violation[0] > 0


def test_limits_stop_the_balancing_of_a_plan() -> None:
    problem = plain_problem([[2.0, 9.0], [9.0, 1.0]], [0.5, 3.0], max_units=np.array([1, 9]))
    assert replicas(problem, 0, 1) == [1, 1]


def test_units_of_all_stages_on_a_type_count_against_its_limit() -> None:
    problem = plain_problem([[4.0], [4.0]], [1.0], max_units=np.array([5]), min_throughput=3600 / 2.0)
    assert replicas(problem, 0, 0, cuts=(1,)) == [2, 2]
    assert Fault.UNITS in detail(replace(problem, max_units=np.array([3])), Placement((0, 0), (1,))).faults


def test_an_infeasible_stage_has_no_replicas() -> None:
    problem = plain_problem([[2.0]], [1.0], compute_parallel=np.array([0.0]), min_throughput=1e5)
    stage = detail(problem, Placement((0,))).stages[0]
    assert stage.replicas == 0
    assert stage.time_s == np.inf


def test_a_large_batch_is_evaluated_in_parts() -> None:
    problem = plain_problem([[1.0, 2.0]] * 300, [1.0, 1.0])
    types = np.zeros((2000, 300), np.int64)
    types[-1] = 1
    values = evaluate(problem, types).values
    assert values[0] == pytest.approx(300 * PER_MILLION)
    assert values[-1] == pytest.approx(600 * PER_MILLION)


def test_placements_and_arrays_are_two_forms_of_one_thing() -> None:
    placement = Placement((0, 0, 1, 1), (1, 3))
    types, cuts = to_arrays([placement])
    assert to_placement(types[0], cuts[0]) == placement
    assert to_placement(np.array([0, 1]), np.array([True, True])) == Placement((0, 1))
