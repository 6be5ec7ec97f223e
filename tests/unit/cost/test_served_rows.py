"""The pull before a step and the push behind it, by the formulas of the module, number by number."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import plain_problem, with_rows

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.problem import Placement
from heterps_compile.cost.row_sums import RowSums
from heterps_compile.cost.served_rows import ServedRows

THREE_LAYERS = replace(
    plain_problem([[1.0, 2.0]] * 3, [1.0, 2.0]), max_units=np.array([4, 4]), data_parallel=np.array([0.5, 1.0])
)
TWO_REPLICAS = ServedRows(network_s=4.0, servers_s=3.0, requests_s=0.5)


def test_a_step_waits_for_the_rows_of_one_micro_batch_and_pushes_those_of_all():
    assert TWO_REPLICAS.pull_s(2, 8) == 2 * 4.0 / 8 + 0.5
    assert TWO_REPLICAS.push_s == 4.0 + 0.5


def test_servers_that_are_slower_than_the_networks_set_the_time():
    slow = replace(TWO_REPLICAS, servers_s=16.0)
    assert (slow.pull_s(2, 8), slow.push_s) == (4.5, 16.5)


def test_of_the_busiest_replicas_micro_batches_all_but_the_first_are_pulled_ahead():
    assert TWO_REPLICAS.ahead_s(2, 8) == 3 / 4 * (2 * 4.0 / 8 + 0.5)
    assert TWO_REPLICAS.ahead_s(2, 2) == TWO_REPLICAS.ahead_s(4, 1) == 0.0


def test_inference_pushes_nothing():
    assert replace(TWO_REPLICAS, is_pushed=False).push_s == 0.0


def test_the_stages_of_a_plan_say_what_steps_are_searched_with():
    problem = with_rows(replace(THREE_LAYERS, keeps_activations=True, objective="throughput"), 3)
    found = detail(problem, Placement((0, 0, 1)), np.array([2.0, 3.0]))
    assert problem.rows_s is not None
    assert problem.requests_s is not None
    assert problem.served_s is not None
    first = found.stages[0].rows
    assert first is not None
    part = 1 - problem.data_parallel[0] + problem.data_parallel[0] / 2
    assert first.network_s == pytest.approx(problem.rows_s[:2, 0].sum() * part)
    assert first.requests_s == pytest.approx(problem.requests_s[:2].sum())
    assert first.servers_s == pytest.approx(problem.served_s[:2].sum() / 2 / found.servers)
    sums = RowSums.of(problem, lambda table: np.array([table[:2, 0].sum(), table[2, 1]]))
    assert sums is not None
    assert sums.network_s(np.array([2.0, 3.0]))[0] == pytest.approx(first.network_s)


def test_without_tables_on_servers_there_are_no_rows():
    problem = THREE_LAYERS
    assert RowSums.of(problem, lambda table: table) is None
    assert all(stage.rows is None for stage in detail(problem, Placement((0, 0, 1))).stages)
