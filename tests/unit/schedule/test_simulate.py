"""The simulator against closed forms."""

import pytest
from simulated import simulate

from heterps_compile.errors import HeterpsError
from heterps_compile.schedule.mixed_stage import EQUAL, mixed_stage
from heterps_compile.schedule.names import orders
from heterps_compile.schedule.order import Action, Phase
from heterps_compile.schedule.simulate import ServersTraffic, Timeline, simulate_mixed


def around(timeline: Timeline, kind: str) -> list[tuple[int, float, float]]:
    return [(each.stage, each.start_s, each.end_s) for each in timeline.around if each.kind == kind]


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (1, 7), (4, 1), (4, 8), (6, 3)])
def test_equal_stages_fill_and_drain_in_the_closed_form(stages, micro_batches):
    timeline = simulate(orders("gpipe", [1] * stages, micro_batches, training=False), [0.5] * stages)
    assert timeline.makespan_s == pytest.approx((micro_batches + stages - 1) * 0.5)
    assert timeline.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (4, 4), (4, 12), (3, 2)])
def test_training_takes_a_forward_and_a_backward_as_long(name, stages, micro_batches):
    timeline = simulate(orders(name, [1] * stages, micro_batches, training=True), [1.0] * stages, [2.0] * stages)
    assert timeline.makespan_s == pytest.approx((micro_batches + stages - 1) * 3.0)


def test_one_slow_stage_sets_the_pace():
    timeline = simulate(orders("gpipe", [1, 1, 1], 10, training=False), [1.0, 4.0, 2.0])
    assert timeline.makespan_s == 1.0 + 10 * 4.0 + 2.0


def test_replicas_make_a_slow_stage_keep_up():
    timeline = simulate(orders("gpipe", [1, 4, 1], 8, training=False), [1, 4, 1], replicas=[1, 4, 1])
    assert timeline.makespan_s == 1 + 4 + 1 + 7


def test_a_wire_carries_one_message_at_a_time_in_each_direction():
    """The drawing in ``schedule/wires.py``; four replicas send to one; gradients do not wait for values."""
    timeline = simulate(orders("gpipe", [1, 1], 3, training=False), [1.0, 1.0], transfer_s=[2.0])
    assert [span.start_s for span in timeline.spans] == [0.0, 1.0, 2.0, 3.0, 5.0, 7.0]
    for widths in ([4, 1], [1, 4]):
        order = orders("gpipe", widths, 4, training=False)
        assert simulate(order, [1.0, 0.5], replicas=widths, transfer_s=[2.0]).makespan_s == 1 + 4 * 2 + 0.5
    order = orders("1f1b", [1, 1], 2, training=True)
    assert simulate(order, [1.0, 1.0], [1.0, 1.0], transfer_s=[4.0]).makespan_s == 1 + 4 + 2 + 4 + 4 + 1


def test_gradients_are_summed_when_all_replicas_of_a_stage_have_ended_and_hold_up_nobody():
    """The drawing in ``schedule/simulate.py``, with half an all-reduce in stage 1."""
    order = orders("gpipe", [2, 2], 2, training=True)
    timeline = simulate(order, [1.0, 1.0], [1.0, 1.0], replicas=[2, 2], sync_s=[1.0, 0.5])
    assert around(timeline, "all-reduce") == [(0, 4.0, 5.0), (1, 3.0, 3.5)]
    assert timeline.makespan_s == 5.0
    assert timeline.bubble == pytest.approx(1 - (8 * 1.0 + 2 * 1.0 + 2 * 0.5) / (4 * 5.0))


def test_replicas_do_something_by_themselves_once_they_have_summed_and_hold_up_nobody():
    """The drawing in ``schedule/simulate.py``: U of stage 1 is over before the last backward of stage 0."""
    order = orders("gpipe", [2, 2], 2, training=True)
    alike = [mixed_stage([1.0] * 2, [1.0] * 2, 2, EQUAL)] * 2
    timeline = simulate_mixed(order, alike, sync_s=[1.0, 0.25], own_s=[0.5, 0.25])
    assert around(timeline, "update") == [(0, 5.0, 5.5), (1, 3.25, 3.5)]
    assert timeline.makespan_s == 5.5
    assert timeline.bubble == pytest.approx(1 - (8 * 1.0 + 2 * 1.5 + 2 * 0.5) / (4 * 5.5))


def test_rows_of_servers_are_pulled_before_a_stage_and_their_gradients_pushed_behind_it():
    """Two stages, of which the second looks rows up: it waits for them while the first one works."""
    order = orders("gpipe", [1, 1], 2, training=True)
    alike = [mixed_stage([1.0], [2.0], 2, EQUAL)] * 2
    servers = [ServersTraffic(), ServersTraffic(1.5, 4.5)]
    timeline = simulate_mixed(order, alike, sync_s=[0.0, 0.25], servers=servers)
    assert [span.start_s for span in timeline.spans if span.action.stage == 1] == [1.5, 2.5, 3.5, 5.5]
    assert around(timeline, "pull") == [(1, 0.0, 1.5)]
    assert around(timeline, "push") == [(1, 7.5, 12.0)]
    assert around(timeline, "all-reduce") == [(1, 12.0, 12.25)]
    assert timeline.makespan_s == 12.25


def test_a_stage_that_sums_for_long_ends_the_step_though_its_backward_was_not_the_last():
    timeline = simulate(orders("gpipe", [1, 2], 1, training=True), [1.0, 1.0], [2.0, 2.0], sync_s=[0.0, 9.0])
    assert timeline.makespan_s == 1.0 + 1.0 + 2.0 + 9.0


def test_gpipe_holds_every_micro_batch_and_1f1b_one_per_stage_to_come():
    peaks = {
        name: simulate(orders(name, [1] * 4, 9, training=True), [1.0] * 4, [2.0] * 4).peak_in_flight
        for name in ("gpipe", "1f1b")
    }
    assert peaks == {"gpipe": (9, 9, 9, 9), "1f1b": (4, 3, 2, 1)}


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (3, 3), (4, 8)])
def test_zero_bubble_waits_for_a_forward_alone_where_1f1b_waits_for_the_backward_too(stages, micro_batches):
    """Forward 1, backward 2, in two parts 1.5 and 1: the last stage waits for forwards, and works without a pause."""
    order = orders("zero-bubble", [1] * stages, micro_batches, training=True)
    timeline = simulate(order, [1.0] * stages, [2.0] * stages)
    ends_s = [max(span.end_s for span in timeline.spans if span.action.stage == stage) for stage in range(stages)]
    assert ends_s[-1] == stages - 1 + (1 + 1.5 + 1) * micro_batches
    assert timeline.peak_in_flight[0] == min(stages, micro_batches)
    assert timeline.peak_in_flight[-1] == 2 * min(stages, micro_batches)


def test_zero_bubble_gains_where_stages_are_many_and_micro_batches_few():
    def step_s(name: str, stages: int, count: int) -> float:
        order = orders(name, [1] * stages, count, training=True)
        return simulate(order, [1.0] * stages, [2.0] * stages).makespan_s

    assert (step_s("1f1b", 4, 4), step_s("zero-bubble", 4, 4)) == (21, 18)
    assert step_s("1f1b", 2, 16) == 17 * 3 < step_s("zero-bubble", 2, 16)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (3, 6), (4, 8)])
def test_interleaving_halves_the_bubble(stages, micro_batches):
    order = orders("interleaved-1f1b", [1] * stages, micro_batches, training=True)
    timeline = simulate(order, [1.0] * stages, [2.0] * stages)
    assert timeline.makespan_s == 3.0 * micro_batches + (stages - 1) * 3.0 / 2
    assert timeline.chunks == 2


def test_a_micro_batch_that_comes_round_again_pays_the_way_back_to_the_first_stage():
    order = orders("interleaved-1f1b", [1, 1], 1, training=False)
    assert simulate(order, [1.0, 1.0], transfer_s=[0.25]).makespan_s == 4 * 0.5 + 3 * 0.25


def test_inference_keeps_nothing_for_a_backward():
    assert simulate(orders("1f1b", [1, 1], 5, training=False), [1.0, 1.0]).peak_in_flight == (1, 1)


def test_replicas_without_a_micro_batch_wait_the_whole_step():
    assert simulate(orders("gpipe", [4], 1, training=False), [1.0], replicas=[4]).bubble == 0.75


def test_a_step_that_takes_no_time_has_no_bubble():
    timeline = simulate(orders("gpipe", [1, 1], 2, training=False), [0.0, 0.0])
    assert (timeline.makespan_s, timeline.bubble) == (0.0, 0.0)


def test_orders_that_wait_for_each_other_are_an_error():
    backward_first = [
        [Action(0, 0, Phase.BACKWARD), Action(0, 0, Phase.FORWARD)],
        [Action(1, 0, Phase.FORWARD), Action(1, 0, Phase.BACKWARD)],
    ]
    with pytest.raises(HeterpsError, match=r"stage 0\b.*B0.*stage 1\b.*\b0\b.*\b4\b"):
        simulate(backward_first, [1.0, 1.0], [1.0, 1.0])
