"""The reference simulator obeys what follows from its law by hand."""

from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given
from reference_problem import pipeline_of
from reference_step import GPIPE, ONE_F_ONE_B, Boundary, Pipeline, Stage, Value, bundled, simulate

from heterps_compile.prediction.predict_step import predict_step
from heterps_compile.problem_file.given_plan import make_given_plan
from heterps_compile.problem_file.read_problem import make_given
from heterps_compile.schedule.load import StageLoad, simulate_step
from heterps_compile.schedule.micro_batch import MicroBatch
from heterps_compile.schedule.step_length import step_length_s

# Halves add up without rounding, so that equal times compare equal.
HALVES = st.integers(0, 20).map(lambda halves: halves / 2)
SCHEDULES = st.sampled_from((GPIPE, ONE_F_ONE_B))


def chain(stages, micro_batches, sizes=(), *, schedule=GPIPE, rate=1.0, latency=0.0, training=True):
    """Connect stages by boundaries of one rate, and neighbours by values [S - 1] if there are sizes."""
    values = tuple(Value(left, (left + 1,), size) for left, size in enumerate(sizes))
    boundaries = (Boundary(rate, latency),) * (len(stages) - 1)
    return Pipeline(tuple(stages), boundaries, values, micro_batches, schedule, training)


def least_work_s(*stages):
    """Return what the shortest actions of stages take together, the most that a message can overlap with."""
    return sum(min(*stage.forward_s, *stage.backward_s) for stage in stages)


@st.composite
def pipelines(draw):
    count = draw(st.integers(1, 4))
    training = draw(st.booleans())
    stages = []
    for _ in range(count):
        width = draw(st.integers(1, 3))
        times = st.lists(HALVES, min_size=width, max_size=width).map(tuple)
        ends = [draw(HALVES) if training else 0.0 for _ in range(3)]
        stages.append(Stage(draw(times), draw(times), ends[0], ends[1], draw(HALVES), ends[2], 1.0, 1.0))
    values = []
    for maker in range(count - 1):
        for _ in range(draw(st.integers(0, 2))):
            readers = draw(st.sets(st.integers(maker + 1, count - 1), min_size=1))
            values.append(Value(maker, tuple(sorted(readers)), draw(HALVES)))
    boundaries = tuple(
        Boundary(draw(st.sampled_from((0.5, 1.0, 4.0))), draw(HALVES), min(draw(HALVES), least_work_s(left, right)))
        for left, right in pairwise(stages)
    )
    return Pipeline(
        tuple(stages), boundaries, tuple(values), draw(st.integers(1, 6)), draw(SCHEDULES), training, draw(HALVES)
    )


@given(pipelines())
def test_no_step_is_shorter_than_the_steady_batch(pipeline):
    step = simulate(pipeline)
    assert step.steady_s <= step.step_s
    ends = [s.push_s + s.synchronise_s + s.update_s for s in pipeline.stages] if pipeline.training else [0.0]
    assert max(ends) + pipeline.overhead_s <= step.step_s


@given(pipelines(), st.integers(1, 3))
def test_steps_of_loads_are_simulated_as_the_law_says(pipeline, width):
    """Stages of one width, so that every replica talks to one other."""
    stages = tuple(
        Stage(each.forward_s[:1] * width, each.backward_s[:1] * width, each.synchronise_s) for each in pipeline.stages
    )
    values, count = bundled(pipeline.values), pipeline.micro_batches
    pipeline = replace(pipeline, stages=stages, values=values, overhead_s=0.0)
    ways_s = [0.0] * len(stages)
    for value in values:
        boundary = pipeline.boundaries[value.maker]
        ways_s[value.maker] = boundary.latency_s + value.size_bytes / boundary.bytes_per_s
    overlaps_s = [min(each.overlap_s, way_s) for each, way_s in zip(pipeline.boundaries, ways_s, strict=False)]
    training, loads = pipeline.training, []
    for stage, way_s, overlap_s in zip(stages, ways_s, [*overlaps_s, 0.0], strict=True):
        of_way = {"delay_s": way_s - overlap_s, "overlap_s": overlap_s}
        each = MicroBatch(count, stage.forward_s[0], training * stage.backward_s[0], **of_way)
        loads.append(StageLoad(width, (each,), sync_s=stage.synchronise_s))
    expected_s = pytest.approx(simulate(pipeline).step_s, rel=1e-9)
    assert simulate_step(pipeline.schedule, loads, count, training=training).makespan_s == expected_s
    assert step_length_s(pipeline.schedule, loads, count, training=training) == expected_s


@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (1, 5), (3, 1), (3, 8), (4, 6)])
def test_equal_stages_take_one_time_for_each_micro_batch_and_for_each_stage_but_one(schedule, stages, micro_batches):
    equal = [Stage((1.0,), (2.0,))] * stages
    assert simulate(chain(equal, micro_batches, schedule=schedule)).step_s == (micro_batches + stages - 1) * 3.0
    inference = simulate(chain(equal, micro_batches, schedule=schedule, training=False))
    assert (inference.step_s, inference.steady_s) == (micro_batches + stages - 1, micro_batches)


def test_messages_of_one_boundary_follow_one_another():
    """64 messages of 10 MB at 10 MB/s; first forward 1 ms, last forward 1 ms."""
    stage = Stage((0.001,))
    step = simulate(chain([stage] * 2, 64, [1e7], rate=1e7, latency=1e-6, training=False))
    assert step.step_s == pytest.approx(0.001 + 64 * 1.000001 + 0.001)
    assert step.steady_s == pytest.approx(64 * 1.000001)


def test_a_value_that_skips_a_stage_occupies_both_boundaries():
    """16 micro-batches: 1 kB to each next stage, 4 MB to the stage after the next, at 1 GB/s."""
    stages = (Stage((0.001,), (0.002,)),) * 3
    values = (Value(0, (1,), 1e3), Value(1, (2,), 1e3), Value(0, (2,), 4e6))
    boundaries = (Boundary(1e9),) * 2
    skipping = simulate(Pipeline(stages, boundaries, values, 16))
    assert skipping.steady_s == pytest.approx(16 * 0.004001)
    # Forward: the first forward, 16 long messages, one more over the second boundary, the last forward.
    # Backward: the last stage's first backward, 16 messages, one more over the first boundary, the last backward.
    assert skipping.step_s == pytest.approx((1 + 16 * 4.001 + 4 + 1 + 2 + 16 * 4.001 + 4 + 2) / 1e3)
    one_message = simulate(Pipeline(stages, boundaries, bundled(values), 16))
    assert one_message.steady_s == pytest.approx(skipping.steady_s)
    # The second boundary's message also waits for the stage between, which adds one forward and one backward.
    assert one_message.step_s == pytest.approx((1 + 16 * 4.001 + 1 + 4.001 + 1 + 2 + 16 * 4.001 + 2 + 4.001 + 2) / 1e3)


def test_gradients_cross_beside_values():
    """Drawn by hand, f: values, g: gradients, all of 3 s; the first gradient crosses while the second value does.

    stage 0   F0 F1 .. .. .. .. .. .. .. B0 F2 .. B1 F3 .. .. .. .. .. B2 .. .. B3
    values       f0 f0 f0 f1 f1 f1 .. .. .. .. f2 f2 f2 f3 f3 f3
    stage 1   .. .. .. .. F0 B0 .. F1 B1 .. .. .. .. .. F2 B2 .. F3 B3
    gradients .. .. .. .. .. .. g0 g0 g0 g1 g1 g1 .. .. .. .. g2 g2 g2 g3 g3 g3
    """
    stages = [Stage((1.0,), (1.0,)), Stage((1.0,), (1.0,))]
    step = simulate(chain(stages, 4, [3.0], schedule=ONE_F_ONE_B))
    assert (step.steady_s, step.step_s) == (4 * 3.0, 23.0)


def test_replicas_take_turns_and_share_one_port_of_the_next_stage():
    """Two replicas send at the same time; the next stage has one port: 4 messages of 2 s behind the first forward."""
    step = simulate(chain([Stage((4.0, 4.0)), Stage((1.0,))], 4, [2.0], training=False))
    assert step.step_s == 4 + 4 * 2 + 1  # messages end at 6, 8, 10 and 12
    assert step.steady_s == 8.0


def test_rows_synchronisation_and_update_lengthen_the_ends():
    """Pull 5, then four forwards of 1 that wait for pulls of 5 each; after the backwards push, sum, update."""
    stage = Stage((1.0,), (2.0,), synchronise_s=7.0, update_s=1.0, pull_s=5.0, push_s=3.0)
    assert simulate(chain([stage], 4)).step_s == 4 * 5 + 1 + 4 * 2 + 3 + 7 + 1
    assert simulate(chain([stage], 4)).steady_s == 20.0


@pytest.mark.parametrize(
    ("schedule", "widths", "under_way"),
    [
        (GPIPE, (1, 1, 1), ((8,), (8,), (8,))),
        (ONE_F_ONE_B, (1, 1, 1), ((3,), (2,), (1,))),
        (ONE_F_ONE_B, (2, 1), ((2, 2), (1,))),
        (ONE_F_ONE_B, (1, 2), ((3,), (1, 1))),
    ],
)
def test_memory_holds_the_micro_batches_under_way(schedule, widths, under_way):
    stages = [Stage((1.0,) * k, (1.0,) * k, held_bytes=10.0, kept_bytes=2.0) for k in widths]
    step = simulate(chain(stages, 8, schedule=schedule))
    assert step.under_way == under_way
    assert step.memory_bytes == tuple(tuple(10.0 + 2.0 * most for most in stage) for stage in under_way)


@st.composite
def given_plans(draw):
    """Draw a problem of one to four layers on two types and a plan of it, with values only between single replicas."""
    training, names = draw(st.booleans()), [f"l{i}" for i in range(draw(st.integers(1, 4)))]
    most_replicas = draw(st.sampled_from((1, 3)))
    size_bytes = st.sampled_from((0, 1e4, 1e5, 1e6))
    edges = [
        {
            "from": name,
            "to": sorted(draw(st.sets(st.sampled_from(names[i:]), min_size=1))),
            "bytes_per_sample": draw(size_bytes),
        }
        for i, name in enumerate(names[:-1], start=1)
    ]

    def times(device):
        samples = draw(st.sampled_from([[1], [1, 4], [2, 8]]))
        forward_s = [draw(st.sampled_from((0.001, 0.003))) * size**0.8 for size in samples]
        backwards = {"backward_s": [2 * each for each in forward_s], "update_s": draw(st.sampled_from((0.0, 0.003)))}
        return {"device": device, "samples": samples, "forward_s": forward_s, **(backwards if training else {})}

    layers = [
        {"name": name, "parameter_bytes": draw(size_bytes), "activation_bytes_per_sample": draw(size_bytes),
         "times": [times("a"), times("b")]}
        for name in names
    ]  # fmt: skip
    device = {"kind": "gpu", "network_latency": "100 us", "compute_parallel": draw(st.sampled_from((1.0, 0.9)))}
    pool = [
        {"name": "a", "network_bandwidth": "1 MB/s", **device},
        {"name": "b", "network_bandwidth": "10 MB/s", **device},
    ]
    document = {
        "format": "heterps-compile problem",
        "version": 1,
        "name": "drawn",
        "layers": layers,
        "edges": edges if most_replicas == 1 else [],
    }
    problem = make_given({**document, "pool": {"device": pool}, "batch": 16}, "drawn")
    ends = sorted({*draw(st.sets(st.integers(1, len(names)))), len(names)})
    stages = []
    for first, end in zip([0, *ends], ends, strict=False):
        replicas = [{"device": draw(st.sampled_from("ab")), "count": draw(st.integers(1, most_replicas))}]
        replicas += draw(st.sampled_from(([], [], [{"device": "a"}]))) * (most_replicas > 1)
        stages.append({"layers": names[first:end], "replicas": replicas})
    plan = {"format": "heterps-compile given plan", "version": 1, "stages": stages, "schedule": draw(SCHEDULES)}
    return problem, make_given_plan({**plan, "micro_batch": draw(st.sampled_from((1, 2, 4, 8)))}, problem, "drawn")


@given(given_plans())
def test_plans_of_problem_files_are_predicted_as_the_law_says(drawn):
    """A card that carries both directions longer than the whole step makes the step longer."""
    problem, plan = drawn
    pipeline = pipeline_of(problem, plan)
    pipeline = replace(pipeline, values=bundled(pipeline.values))
    predicted, step = predict_step(problem, plan), simulate(pipeline)
    sent_bytes = [
        sum(value.size_bytes for value in pipeline.values if s in (value.maker, value.maker + 1))
        for s in range(len(plan.stages))
    ]
    rates = [problem.known_pool.device_type(stage.replicas[0].device).network_bytes_per_s for stage in plan.stages]
    batches = plan.micro_batches * problem.directions
    card_s = max(batches * size / rate for size, rate in zip(sent_bytes, rates, strict=True))
    if card_s <= step.step_s:
        assert predicted.step_s == pytest.approx(step.step_s, rel=1e-9)
    assert predicted.step_s >= step.step_s * (1 - 1e-9)
    held_bytes = [max(stage.held_bytes) for stage in predicted.stages]
    assert held_bytes == pytest.approx([max(each) for each in step.memory_bytes])
