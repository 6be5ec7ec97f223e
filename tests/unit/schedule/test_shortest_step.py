"""The bound on a step against the steps themselves, and what fits a unit."""

from dataclasses import replace

import numpy as np
import pytest

from heterps_compile.cost.roofline import Phases
from heterps_compile.cost.served_rows import ServedRows
from heterps_compile.schedule.load import StageLoad, StageWhole
from heterps_compile.schedule.micro_batch import MicroBatch, mean_micro_batch
from heterps_compile.schedule.shortest_step import (
    INFERENCE_SCHEDULES,
    TRAINING_SCHEDULES,
    PassTimes,
    Step,
    Turns,
    best_step,
    least_step_s,
    step_under,
)
from heterps_compile.schedule.step_length import step_length_s
from heterps_compile.schedule.zero_bubble import INPUT_PART, ZERO_BUBBLE


def drawn_load(draw: np.random.Generator, *, training: bool) -> StageLoad:
    """Draw a stage of up to four replicas."""
    part = MicroBatch(
        1, draw.uniform(0.1, 2.0), draw.uniform(0.1, 4.0) if training else 0.0, delay_s=float(draw.choice([0, 0, 0.7]))
    )
    rows = None
    if draw.random() < 0.3:  # its tables lie on servers
        rows = ServedRows(draw.uniform(0.0, 3.0), draw.uniform(0.0, 3.0), draw.uniform(0.0, 1.0), is_pushed=training)
    sync_s = float(draw.choice([0.0, 3.0])) if training else 0.0
    return StageLoad(int(draw.integers(1, 5)), (part,), sync_s=sync_s, rows=rows)


def same_times(load: StageLoad, count: int) -> StageLoad:
    part = load.known[0]
    known = MicroBatch(count, part.forward_s, part.backward_s, delay_s=part.delay_s)
    return StageLoad(load.replicas, (known,), sync_s=load.sync_s, rows=load.rows)


def is_tight(loads: list[StageLoad], count: int, *, training: bool) -> bool:
    """Hold the steps of all schedules to their bound; tell whether one reaches it."""
    bound_s = least_step_s(loads, count, training=training)
    schedules = TRAINING_SCHEDULES if training else INFERENCE_SCHEDULES
    shortest_s = min(step_under(name, loads, count, training=training).step_s for name in schedules)
    assert bound_s <= shortest_s * (1 + 1e-12)
    return bound_s >= shortest_s * (1 - 1e-9)


def test_zero_bubble_is_no_shorter_than_its_bound_nor_than_the_steady_state_or_its_part_of_1f1b():
    """The others are what the bound of a plan is where zero-bubble is taken."""
    draw, tight, gains = np.random.default_rng(5), 0, 0
    for _ in range(300):
        count = int(draw.integers(1, 10))
        loads = [same_times(drawn_load(draw, training=True), count) for _ in range(int(draw.integers(1, 5)))]
        step_s = step_under(ZERO_BUBBLE, loads, count, training=True).step_s
        shortest_s = min(step_under(name, loads, count, training=True).step_s for name in TRAINING_SCHEDULES)
        bound_s = least_step_s(loads, count, training=True, splits=True)
        assert max(bound_s, INPUT_PART * shortest_s) <= step_s * (1 + 1e-12)
        busiest_s = max(load.dealt(count, training=True).busiest_s for load in loads)
        assert busiest_s <= step_s * (1 + 1e-12)  # which the steady state waits for
        tight, gains = tight + (bound_s >= step_s * 0.9), gains + (step_s < shortest_s)
    assert tight > 100
    assert gains > 20


def test_zero_bubble_is_taken_though_a_step_that_has_no_memory_is_hardly_longer():
    steps = [
        Step(schedule, count, step_s, 1.0, (1,), (1.0,), fits, (False,))
        for schedule, count, step_s, fits in (
            ("1f1b", 6, 6.7, False),
            ("1f1b", 12, 6.9, True),
            (ZERO_BUBBLE, 12, 6.5, True),
        )
    ]
    for order in (steps, steps[::-1]):
        assert best_step(order) == steps[-1]


def test_no_step_is_shorter_than_its_bound_and_many_reach_it():
    draw, tight = np.random.default_rng(0), 0
    for number in range(300):
        training = number % 2 == 0
        count = int(draw.integers(1, 10))
        loads = [same_times(drawn_load(draw, training=training), count) for _ in range(int(draw.integers(1, 5)))]
        tight += is_tight(loads, count, training=training)
    assert tight > 100


def test_neither_schedule_is_shorter_than_what_its_replicas_wait_for():
    """Up to 32 micro-batches and 12 replicas a stage, which are as fast as their number, or not."""
    draw, tighter, reached = np.random.default_rng(2), 0, 0
    for number in range(400):
        count, stages = int(draw.integers(1, 33)), int(draw.integers(2, 6))
        replicas = draw.integers(1, 13, stages)
        of_one_s = draw.uniform(0.8, 1.2, stages) * (replicas if number % 2 else 1.0)
        parts = [
            MicroBatch(count, time_s, ratio * time_s, delay_s=float(draw.choice([0, 0, 0.3])))
            for time_s, ratio in zip(of_one_s, draw.uniform(0.5, 3.0, stages), strict=True)
        ]
        loads = [StageLoad(int(k), (part,)) for k, part in zip(replicas, parts, strict=True)]
        bounds_s = bounds_of_schedules_s(loads, count)
        steps_s = [step_length_s(name, loads, count, training=True) for name in TRAINING_SCHEDULES]
        assert np.all(bounds_s <= np.array(steps_s) * (1 + 1e-12))
        reached += (bounds_s >= np.array(steps_s) * 0.98).sum()
        tighter += bounds_s.min() > least_step_s(loads, count, training=True) * 1.01
    assert tighter > 80
    assert reached > 500  # of 800, to two per cent


def bounds_of_schedules_s(loads: list[StageLoad], count: int, more: int = 0) -> np.ndarray:
    """Return [2], the bounds of GPipe and 1F1B; where stages may have so many replicas more, of all of these."""
    own = [load.micro_batch(count) for load in loads]
    forward_s, backward_s, delay_s = np.array([(one.forward_s, one.backward_s, one.delay_s) for one in own]).T
    begin_s, end_s = np.zeros((2, len(loads)))
    for stage, load in enumerate(loads):
        begin_s[stage], end_s[stage] = load.pull_s(count), load.push_s + load.sync_s + load.own_s
        if stage:
            begin_s[stage] = max(begin_s[stage], begin_s[stage - 1] + forward_s[stage - 1] + delay_s[stage - 1])
            end_s[stage] = max(end_s[stage], end_s[stage - 1] + backward_s[stage - 1] + delay_s[stage - 1])
    times = PassTimes(begin_s, forward_s, backward_s, forward_s + backward_s, np.append(delay_s[:-1], 0.0), end_s)
    fewest = np.array([float(load.replicas) for load in loads])
    return Turns.of(count, fewest, fewest + more).least_steps_s(times)


def test_the_bound_of_some_replicas_holds_for_all_with_as_many_rounds():
    draw, compared = np.random.default_rng(4), 0
    for _ in range(300):
        count, stages = int(draw.integers(4, 33)), int(draw.integers(2, 5))
        fewest = draw.integers(1, 9, stages)
        most = np.array([max(k for k in range(few, 34) if -(-count // k) == -(-count // few)) for few in fewest])
        loads = [same_times(drawn_load(draw, training=True), count) for _ in fewest]
        loads = [replace(load, replicas=int(k), rows=None) for load, k in zip(loads, fewest, strict=True)]
        more = int((most - fewest).min())
        bounds_s = bounds_of_schedules_s(loads, count, more)
        for k in {0, more}:
            wider = [replace(load, replicas=load.replicas + k) for load in loads]
            steps_s = [step_length_s(name, wider, count, training=True) for name in TRAINING_SCHEDULES]
            assert np.all(bounds_s <= np.array(steps_s) * (1 + 1e-12))
            compared += k > 0
    assert compared > 20


def test_a_first_backward_waits_for_the_forwards_that_a_slower_stage_passes_on():
    """Of 1F1B the second stage begins its first backward after two forwards of the first and one of its own, at 8.5.

    A backward, a forward and two backwards of it follow, and one of the first stage: 8.5 + 6 + 0.5 + 2 x 6 + 1.
    """
    loads = [StageLoad(1, (MicroBatch(3, f, b),)) for f, b in ((4.0, 1.0), (0.5, 6.0), (0.5, 0.5))]
    assert bounds_of_schedules_s(loads, 3).tolist() == [32.5, 28.0]
    assert [step_length_s(name, loads, 3, training=True) for name in TRAINING_SCHEDULES] == [32.5, 28.0]


def test_what_a_replica_waits_for_is_that_of_the_drawing():
    """Four micro-batches, forward and backward equally long, as ``one_f_one_b.py`` draws them: twelve."""
    one, fill = np.ones(3), np.arange(3.0)
    turns = Turns.of(4, one, one)
    assert (turns.own.tolist(), turns.ahead.tolist()) == ([4, 4, 4], [[3, 3, 3], [2, 1, 0]])
    assert turns.passed.tolist() == [[3, 3, 3], [2, 1, 0]]
    assert turns.least_steps_s(PassTimes(fill, one, one, 2 * one, 0 * one, fill)).tolist() == [12, 12]


def of_two_types(load: StageLoad, slower: float) -> StageLoad:
    """Return a stage with as many replicas of a type that takes longer besides."""
    (part,) = load.known
    other = replace(part, forward_s=part.forward_s * slower, backward_s=part.backward_s * slower)
    own, others = (StageLoad(load.replicas, (each,)) for each in (part, other))
    mean = mean_micro_batch([part, other], [slower / (1 + slower), 1 / (1 + slower)])
    return replace(load, replicas=2 * load.replicas, known=(mean,), types=(own, others))


@pytest.mark.parametrize("training", [True, False])
def test_no_step_with_stages_of_two_types_is_shorter_than_its_bound(training):
    draw, tight = np.random.default_rng(3), 0
    for _ in range(100):
        count = int(draw.integers(1, 10))
        loads = [same_times(drawn_load(draw, training=training), count) for _ in range(int(draw.integers(1, 4)))]
        mixed = int(draw.integers(len(loads)))
        loads[mixed] = of_two_types(loads[mixed], float(draw.uniform(1.0, 4.0)))
        tight += is_tight(loads, count, training=training)
    assert tight > 20


@pytest.mark.parametrize("training", [True, False])
def test_of_one_micro_batch_the_bound_is_the_step(training):
    """It goes through all stages and back, with every delay on its way; nothing waits for anything else."""
    draw = np.random.default_rng(2)
    for _ in range(30):
        loads = [
            replace(same_times(drawn_load(draw, training=training), 1), sync_s=0.0, rows=None)
            for _ in range(int(draw.integers(1, 6)))
        ]
        assert least_step_s(loads, 1, training=training) == pytest.approx(
            step_under("gpipe", loads, 1, training=training).step_s
        )


def test_a_first_stage_that_takes_longest_waits_for_the_way_there_and_back():
    """Four forwards of 4 s, for the last of them every delay twice and 1 s in each of two stages, and its backward.

    Messages of 10 s are a queue: the first forward and four of them come before that.
    """
    for delay_s, queue_s in ((3.0, 4 * 4.0), (10.0, 4.0 + 3 * 10.0)):
        loads = [StageLoad(1, (MicroBatch(4, *each, delay_s=delay_s),)) for each in ((4, 1), (0.5, 0.5), (0.5, 0.5))]
        assert least_step_s(loads, 4, training=True) == pytest.approx(queue_s + 2 * 2 * delay_s + 2 * 1.0 + 1.0)


def test_among_steps_that_are_hardly_longer_the_one_that_holds_least_is_taken():
    """gpipe and 1f1b are equally long where values take no time to pass; gpipe holds all that is under way."""
    loads = [StageLoad(1, (MicroBatch(4, 1.0, 2.0),), activations_bytes=8.0)] * 2
    steps = [step_under(name, loads, 4, training=True) for name in TRAINING_SCHEDULES]
    assert steps[0].step_s == pytest.approx(steps[1].step_s)
    assert steps[0].held_bytes > steps[1].held_bytes
    for longer, taken in ((0.0, "1f1b"), (0.01, "1f1b"), (0.03, "gpipe")):
        gpipe, other = steps[0], replace(steps[1], step_s=steps[1].step_s * (1 + longer))
        assert best_step([gpipe, other]).schedule == best_step([other, gpipe]).schedule == taken


@pytest.mark.parametrize("training", [True, False])
def test_times_of_a_part_are_in_the_unit_of_what_they_are_made_of(training):
    """A thousandth of every time is a thousandth of the part; a fourth is forward, in inference all."""
    part_of = [
        StageWhole(2, 6.0 * unit, 4.0 * unit, Phases(4.0 * unit, 12.0 * back, 12.0 * back), 0.0).part(
            4, Phases(1.0 * unit, 3.0 * back, 3.0 * back), training=training
        )
        for unit, back in ((1.0, 1.0 * training), (1e-3, 1e-3 * training))
    ]
    assert part_of[1].forward_s == pytest.approx(part_of[0].forward_s / 1000)
    assert part_of[1].backward_s == pytest.approx(part_of[0].backward_s / 1000)
    whole_s = part_of[0].forward_s + part_of[0].backward_s
    assert part_of[0].forward_s == pytest.approx(whole_s / 4 if training else whole_s)


def test_a_step_that_has_no_room_gives_way_to_one_that_has():
    """Eight micro-batches of 1 byte: gpipe holds all of them, 1f1b two and one, and is longer by two delays."""
    part = MicroBatch(8, 1.0, 2.0, delay_s=0.5)
    loads = [StageLoad(1, (part,), activations_bytes=8.0, kept_bytes=1.0, unit_bytes=4.0, safety_factor=1.0)] * 2
    steps = [step_under(name, loads, 8, training=True) for name in TRAINING_SCHEDULES]
    assert [step.replica_bytes for step in steps] == [(9.0, 9.0), (3.0, 2.0)]
    assert [step.fits for step in steps] == [False, True]
    assert steps[0].step_s < steps[1].step_s / 1.05
    assert best_step(steps).schedule == "1f1b"


def test_where_nothing_has_room_the_shortest_step_is_told():
    loads = [StageLoad(1, (MicroBatch(1, 1.0, 2.0),), kept_bytes=2.0, unit_bytes=1.0)]
    assert best_step([step_under("gpipe", loads, 1, training=True)]).step_s == pytest.approx(3.0)


def test_a_stage_recomputes_exactly_where_it_does_not_fit_otherwise_and_that_helps():
    """Four micro-batches of 2 bytes, a quarter of which enters: gpipe holds 8 or 1 + 2, 1f1b 4 and 2, or 0.5 + 2."""
    part = MicroBatch(4, 1.0, 2.0)

    def step(schedule: str, unit_bytes: float, recompute: str = "auto"):
        load = StageLoad(
            1, (part,), 8.0, unit_bytes=unit_bytes, safety_factor=1.0, inputs_bytes=1.0, recompute=recompute
        )
        return step_under(schedule, [load] * 2, 4, training=True)

    assert step("gpipe", 8.0).recomputes == (False, False)
    gpipe, one_f_one_b = step("gpipe", 3.0), step("1f1b", 3.0)
    assert (gpipe.recomputes, gpipe.replica_bytes, gpipe.fits) == ((True, True), (3.0, 3.0), True)
    assert (one_f_one_b.recomputes, one_f_one_b.replica_bytes) == ((True, False), (2.5, 2.0))
    assert gpipe.step_s == pytest.approx(5 * (1.0 + 3.0))
    assert one_f_one_b.step_s > step("1f1b", 4.0).step_s
    assert step("1f1b", 1.0).recomputes == (True, False)  # where one is under way it would hold more
    assert not step("1f1b", 3.0, "never").fits


def test_what_moves_beside_the_computation_hides_a_repeated_forward():
    """A second of forward, of which 0.6 s move alone: its 0.4 s of computation find 1.2 s to hide in the backward."""
    assert MicroBatch(1, 1.0, 2.0, moving_s=0.6).recomputed().backward_s == 2.0
    assert MicroBatch(1, 1.0, 2.0, moving_s=0.1).recomputed().backward_s == pytest.approx(2.7)


def test_the_length_alone_is_that_of_the_simulation():
    draw = np.random.default_rng(1)
    for number in range(200):
        training, count = number % 3 > 0, int(draw.integers(1, 13))
        loads = [same_times(drawn_load(draw, training=training), count) for _ in range(int(draw.integers(1, 6)))]
        for name in TRAINING_SCHEDULES if training else INFERENCE_SCHEDULES:
            told_s = step_under(name, loads, count, training=training).step_s
            assert step_length_s(name, loads, count, training=training) == pytest.approx(told_s, rel=1e-12)
