"""The two readings of a plan, as the module draws them, and in words."""

from simulated import simulate

from heterps_compile.schedule.names import orders
from heterps_compile.schedule.readings import (
    alone_words,
    busy_time,
    idle_share,
    one_batch_alone,
    steady_state,
    steady_words,
)

SLOTS = [1.0, 2.0, 1.0]  # of a micro-batch in every stage of the drawing; a batch has four


def test_the_drawn_steady_state():
    steady = steady_state(4, [4 * slot for slot in SLOTS], [1, 1, 1])
    assert (steady.batch_s, steady.throughput_samples_per_s) == (8.0, 0.5)
    assert steady.bubble == 1 - 16 / 24


def test_the_drawn_batch_alone():
    timeline = simulate(orders("gpipe", [1, 1, 1], 4, training=False), SLOTS)
    alone = one_batch_alone(4, 16.0, [1, 1, 1], timeline.makespan_s)
    assert (alone.batch_s, alone.throughput_samples_per_s) == (10.0, 0.4)
    assert alone.bubble == timeline.bubble == 1 - 16 / 30


def test_replicas_wait_as_units():
    assert steady_state(8, [1.0, 0.5], [3, 1]).bubble == 1 / 8


def test_what_takes_no_time_waits_for_nothing():
    assert idle_share(0.0, 3, 0.0) == 0.0
    assert steady_state(8, [0.0], [1]).to_json() == {"batch_s": 0.0, "throughput_samples_per_s": None, "bubble": 0.0}


def test_a_stage_works_undivided_where_its_micro_batches_are_not_known():
    assert busy_time(4, 0.5, 1.0) == 2.0
    assert busy_time(4, 0.0, 1.0) == 1.0


def test_the_words():
    assert steady_words(steady_state(1000, [0.5, 0.25], [1, 1])) == "2,000 samples/s, a batch every 500 ms, bubble 25 %"
    assert alone_words(one_batch_alone(1000, 0.75, [1, 1], 0.75)) == "1,333 samples/s, step 750 ms, bubble 50 %"
