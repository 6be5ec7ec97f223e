"""The bound by the stage of the layer that reads the most: what replicas cannot divide, and what must be sent."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.problem import Placement
from heterps_compile.passes.placement.orders.forest_bound import forest_bound
from heterps_compile.passes.placement.orders.hub_bound import replica_ranges

# four layers of a second each, whose results of a second on the link one more reads; two replicas sum for five seconds
STAR = replace(
    plain_problem([[1.0]] * 4 + [[0.0]], [1.0], objective="throughput"),
    sync_s=np.full((5, 1), 10.0),
    max_units=np.array([4]),
    edge_producer=np.arange(4),
    edge_bytes=np.ones(4),
    edge_readers=np.full(4, 4),
    edge_starts=np.arange(5),
)


@pytest.mark.parametrize("objective", ["throughput", "max-load"])
def test_a_stage_that_cannot_be_replicated_holds_layers_or_receives_what_they_send(objective: str) -> None:
    star = replace(STAR, objective=objective)
    halves = Placement((0,) * 5, cuts=(2,))
    assert evaluate_one(star, halves) == 2.0
    assert forest_bound(star) == pytest.approx(2.0, rel=1e-3)


def test_without_gradients_replicas_divide_the_work_by_the_units_that_there_are() -> None:
    idle = replace(STAR, sync_s=np.zeros((5, 1)))
    assert forest_bound(idle) == pytest.approx(1.0, rel=1e-3)


def test_ranges_of_replicas_follow_one_another_to_the_last() -> None:
    ranges = replica_ranges(1000)
    assert ranges[:9] == [(k, k) for k in range(1, 9)] + [(9, 11)]
    assert [least for least, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]
    assert ranges[-1][1] == 1000
    assert replica_ranges(0) == []
