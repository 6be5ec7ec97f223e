"""Replicas of one stage that are not alike."""

import pytest
from simulated import simulate

from heterps_compile.schedule.mixed_stage import mixed_stage, share_out
from heterps_compile.schedule.names import orders
from heterps_compile.schedule.simulate import simulate_mixed


def test_shares_are_as_drawn() -> None:
    assert share_out([1, 2], 6, "equal") == (0, 1, 0, 1, 0, 1)
    assert share_out([1, 2], 6, "speed") == (0, 0, 1, 0, 0, 1)
    assert mixed_stage([1, 2], [0, 0], 6, "equal").busiest_s == 6
    assert mixed_stage([1, 2], [0, 0], 6, "speed").busiest_s == 4


def test_replicas_of_one_speed_go_round() -> None:
    assert share_out([2, 2, 2], 5, "speed") == (0, 1, 2, 0, 1)


def test_a_stage_takes_as_long_as_its_slowest_replica() -> None:
    order = orders("1f1b", [2], 4, training=True)
    mixed = simulate_mixed(order, [mixed_stage([1, 3], [1, 3], 4, "equal")])
    assert mixed.makespan_s == 12
    assert simulate_mixed(order, [mixed_stage([1, 3], [1, 3], 4, "speed")]).makespan_s == 6


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("feed", ["equal", "speed"])
def test_every_action_runs_however_replicas_are_fed(schedule: str, feed: str) -> None:
    widths, count = [3, 2, 1], 12
    order = orders(schedule, widths, count, training=True)
    stages = [
        mixed_stage([1.0, 2.5, 0.5], [2.0, 5.0, 1.0], count, feed),
        mixed_stage([1.0, 4.0], [2.0, 2.0], count, feed),
        mixed_stage([0.3], [0.6], count, feed),
    ]
    timeline = simulate_mixed(order, stages, transfer_s=[0.1, 0.2])
    assert len(timeline.spans) == sum(map(len, order))
    assert timeline.makespan_s >= max(stage.busiest_s for stage in stages)


def test_alike_replicas_are_the_simulation_without_mixing() -> None:
    order = orders("1f1b", [2, 1], 8, training=True)
    alike = simulate(order, [2.0, 1.0], [4.0, 2.0], replicas=[2, 1], transfer_s=[0.5])
    mixed = [mixed_stage([2.0] * 2, [4.0] * 2, 8, "equal"), mixed_stage([1.0], [2.0], 8, "equal")]
    assert simulate_mixed(order, mixed, transfer_s=[0.5]) == alike
