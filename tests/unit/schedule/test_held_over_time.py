"""What a worker holds over time, and what a step asks of the stages."""

import pytest
from simulated import simulate

from heterps_compile.schedule.load import StageLoad, delayed, held_bytes, occupied, simulate_step
from heterps_compile.schedule.micro_batch import MicroBatch
from heterps_compile.schedule.names import orders
from heterps_compile.schedule.simulate import held_over_time, worker_spans


def held(name: str, stage: int, *, training: bool = True) -> str:
    """Return a stage's counts as they change, of three micro-batches through two stages."""
    times_s = [2.0, 2.0]
    timeline = simulate(orders(name, (1, 1), 3, training=training), times_s, times_s if training else None)
    return " ".join(f"{time_s:g}:{count}" for time_s, count in held_over_time(worker_spans(timeline)[stage, 0]))


def test_gpipe_takes_up_all_before_it_lets_the_first_go():
    assert held("gpipe", 0) == "0:0 0:1 2:2 4:3 12:2 14:1 16:0"


def test_1f1b_lets_each_go_in_its_turn():
    assert held("1f1b", 1) == "0:0 2:1 6:0 6:1 10:0 10:1 14:0"


def test_zero_bubble_holds_on_until_the_gradients_of_the_weights_beside_gradients():
    """Of a backward of 2, the gradients of inputs take 1.5 and those of weights 1."""
    assert held("zero-bubble", 1) == "0:0 2:1 4:2 5.5:3 7.5:4 10:2 10:3 12:4 14.5:2 15.5:0"


def test_inference_holds_only_what_is_being_done():
    assert held("gpipe", 1, training=False) == "0:0 2:1 4:0 4:1 6:0 6:1 8:0"


LOAD = StageLoad(replicas=2, known=(MicroBatch(1, 2.0), MicroBatch(2, 1.125)), activations_bytes=96.0)


def test_every_further_micro_batch_pays_its_launches_again():
    """Half of the batch takes 1/8 s more than half of its time: a fixed part of 1/4 s, and 1.75 s to divide."""
    assert LOAD.again_s == 0.25
    assert [LOAD.micro_batch(count).forward_s for count in (1, 2, 4, 7)] == pytest.approx(
        [2.0, 1.125, 0.25 + 1.75 / 4, 0.5]
    )


def test_where_one_batch_is_known_a_micro_batch_takes_its_part():
    load = StageLoad(1, (MicroBatch(1, 2.0, 6.0),))
    assert (load.micro_batch(4), load.again_s) == (MicroBatch(4, 0.5, 1.5), 0.0)


def test_the_longer_of_computation_and_data_movement_is_shared_as_computation_is():
    assert occupied(4, compute_s=2.0, data_s=1.0, forward_share=0.25) == MicroBatch(4, 0.5, 1.5)
    assert occupied(4, compute_s=2.0, data_s=4.0, forward_share=0.25) == MicroBatch(4, 1.0, 3.0, moving_s=0.5)


def test_a_way_falls_into_what_both_sides_only_move_data_for():
    first, middle, last = MicroBatch(1, 2.0, moving_s=0.5), MicroBatch(1, 2.0, moving_s=1.0), MicroBatch(1, 2.0)
    found = delayed([first, middle, last], [3.0, 0.25])
    assert [each.delay_s for each in found] == [3.0 - 0.5 - 0.5, 0.0, 0.0]


def test_a_chunk_holds_its_half_in_training_and_the_largest_layer_in_inference():
    loads = [LOAD, LOAD]
    peaks = {}
    for training in (True, False):
        timeline = simulate_step("interleaved-1f1b", loads, 8, training=training)
        peaks[training] = [
            (peak, size)
            for peak, size in zip(
                timeline.peak_in_flight, held_bytes(loads, timeline, 8, training=training), strict=True
            )
        ]
    assert peaks[True] == [(peak, peak * 96 / 16) for peak, _ in peaks[True]]
    assert peaks[False] == [(1, 12.0), (1, 12.0)]


def test_steps_of_inference_follow_one_another_and_those_of_training_do_not():
    loads = [StageLoad(1, (MicroBatch(1, 1.0),))] * 3
    assert simulate_step("gpipe", loads, 1, training=False, steps=5).makespan_s == 3 + 4
    assert simulate_step("gpipe", loads, 1, training=True, steps=5).makespan_s == 3
