"""The choice of micro-batches and schedule, on stages whose times are in sight."""

import math
from dataclasses import replace
from typing import Any

import pytest
from drafts import DRAFT
from profiles import device as profiled
from profiles import layer, point

from heterps_compile.cluster.devices import Cluster, DeviceType, Link
from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.cost.layer_key import layer_keys
from heterps_compile.cost.layer_times import layer_times
from heterps_compile.cost.measured import Measurements
from heterps_compile.cost.memory import MemoryParts
from heterps_compile.cost.profile import LayerPoint
from heterps_compile.ir.graph import Graph, Node, OpKind, Value
from heterps_compile.ir.layers import Layer, LayerGraph
from heterps_compile.passes.choose_schedule import ChooseSchedule
from heterps_compile.passes.drafts import Provisioned, Scheduled, advance
from heterps_compile.passes.pipeline import run_passes
from heterps_compile.plan.planned_schedule import Schedule
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.request import Request
from heterps_compile.schedule import shortest_step
from heterps_compile.schedule.load import micro_batch_counts, training_counts

MIB = 1 << 20


def device(launch_s: float, latency_s: float) -> DeviceType:
    return DeviceType(
        name="any",
        kind="cpu",
        price_per_hour=1.0,
        price_source="made up",
        max_units=100,
        memory_bytes=1e12,
        peak_flops={"float32": 1e12},
        memory_bytes_per_s=1e11,
        network_bytes_per_s=math.inf,
        network_latency_s=latency_s,
        input_bytes_per_s=1e9,
        launch_s=launch_s,
        efficiency=1.0,
        compute_parallel=1.0,
        data_parallel=1.0,
    )


def chosen(*stages: tuple[float, int], **options: Any) -> Schedule:
    """Choose a schedule; the options are those of :func:`scheduled`."""
    return scheduled(*stages, **options).schedule


def scheduled(
    *stages: tuple[float, int],
    batch: int = 64,
    fixed: bool = False,
    mode: str = "inference",
    reading: str | None = None,
    launch_s: float = 0.0,
    latency_s: float = 0.0,
    operations: int = 10,
    measured: tuple[LayerPoint, ...] = (),
    links: tuple[Link, ...] = (),
    sync_s: tuple[float, ...] = (),
    splits: bool = True,
    recompute: str = "never",
) -> Scheduled:
    """Choose for stages of (seconds of a batch, replicas), each one layer of so many operations, or so measured.

    Stages with ``sync_s`` sum gradients for so long, and for half of that wait for messages.
    """
    count = len(stages)
    names = [f"layer{i}" for i in range(count)]
    values = [Value(f"v{i}", "float32", (batch, 1)) for i in range(count + 1)]
    graph = Graph(
        name="chain",
        nodes=tuple(Node(n, "Gemm", OpKind.GEMM, (f"v{i}",), (f"v{i + 1}",)) for i, n in enumerate(names)),
        inputs=("v0",),
        outputs=(f"v{count}",),
        values={value.name: value for value in values},
        parameters={},
        batch_symbol=None if fixed else "batch",
        batch=batch,
    )
    layers = LayerGraph(graph, tuple(Layer(name, OpKind.GEMM, (i,), ()) for i, name in enumerate(names)))
    costs = (LayerCost(1, 0, 0, 1, 1, 2, operations),) * count
    pool = Cluster("pool", "", "USD", (device(launch_s, latency_s),), links=links)
    profile = profiled(replace(layer("a", *measured), keys=(layer_keys(layers)[0],))) if measured else None
    measurements = None if profile is None else Measurements({"any": profile}, "")
    draft = advance(
        DRAFT,
        Provisioned,
        graph=graph,
        cluster=pool,
        request=Request(mode=mode, reading=reading, recompute=recompute),
        splits_backward=splits,
        layers=layers,
        costs=costs,
        measurements=measurements,
        times=layer_times(layers, costs, pool, measurements, training=mode == "training"),
        stages=tuple(
            PlannedStage(
                index=i,
                device="any",
                layers=(names[i],),
                replicas=replicas,
                compute_s=time_s,
                data_s=latency_s * ((i > 0) + (i < count - 1)) + (sync_s[i] / 2 if sync_s else 0),
                sync_s=sync_s[i] / 2 if sync_s else 0,
                sync_hops_s=sync_s[i] / 2 if sync_s else 0,
                received_bytes=int(i > 0),
                sent_bytes=int(i < count - 1),
                memory=MemoryParts(0, 0, 0, 64 * MIB, recompute=recompute),
            )
            for i, (time_s, replicas) in enumerate(stages)
        ),
    )
    return run_passes(draft, [ChooseSchedule()], Scheduled)


def test_without_fixed_costs_the_pipeline_is_cut_as_finely_as_allowed():
    schedule = chosen((1.0, 1), (1.0, 1))
    assert (schedule.name, schedule.micro_batches) == ("gpipe", 32)
    assert schedule.step_s == pytest.approx((32 + 1) / 32)


def test_launches_make_coarser_micro_batches_better():
    """A step takes (M + 1)(1 + 0.04 (M - 1)) / M: 2, 1.56, 1.4, 1.44 for 1, 2, 4, 8."""
    schedule = chosen((1.0, 1), (1.0, 1), launch_s=0.004, operations=10)
    assert schedule.micro_batches == 4
    assert schedule.step_s == pytest.approx(1.4)
    assert schedule.reason == (
        "4 micro-batches: 1.4 s a step, undivided 2 s; forward only, the next batch follows at once"
    )


def test_latency_is_paid_by_every_micro_batch_of_a_stage_bound_by_data():
    """Both stages send or receive once: DT is 0.5 s, and 0.5 s more for each further micro-batch."""
    schedule = chosen((0.1, 1), (0.1, 1), latency_s=0.5)
    assert (schedule.micro_batches, schedule.step_s) == (1, 1.0)


def test_one_stage_has_nobody_to_overlap_with():
    schedule = chosen((1.0, 1), launch_s=1e-3)
    assert (schedule.micro_batches, schedule.step_s) == (1, 1.0)
    assert schedule.reason == (
        "1 micro-batch: 1 s a step, and each further one would pay 10 ms of launches and latency again; "
        "forward only, the next batch follows at once"
    )


def test_a_fixed_batch_is_one_micro_batch_and_says_so():
    schedule = chosen((1.0, 1), (1.0, 1), fixed=True, batch=8)
    assert (schedule.micro_batches, schedule.step_s) == (1, 2.0)
    assert schedule.reason.startswith("1 micro-batch, as the model fixes its batch at 8; ")


def test_a_fixed_batch_and_replicas_say_how_to_train_them_all():
    reason = chosen((1.0, 1), (3.0, 3), mode="training", fixed=True, batch=8).reason
    assert reason.startswith(
        "1 micro-batch, as the model fixes its batch at 8; train with --batch 24 --micro-batches 3, one for every "
        "replica; "
    )
    assert "--micro-batches" not in chosen((1.0, 1), (3.0, 3), fixed=True, batch=8).reason


def test_no_replica_is_without_a_micro_batch_in_training_though_that_were_shorter():
    """Both stages send or receive once, so that every further micro-batch costs half a second.

    The way to the second stage and back takes as long; 0.1 s of it, or 0.13 s, are not within what is occupied.
    """
    stages = ((0.1, 2), (0.1, 1))
    assert chosen(*stages, latency_s=0.5).micro_batches == 1
    schedule = chosen(*stages, latency_s=0.5, mode="training", batch=6, splits=False)
    assert schedule.micro_batches == 2
    assert "2.02 s a step, undivided 1.7 s, which would leave replicas without any" in schedule.reason


def test_training_of_equal_stages_takes_1f1b_which_holds_less():
    schedule = chosen((3.0, 1), (3.0, 1), mode="training", batch=8)
    assert (schedule.name, schedule.micro_batches) == ("1f1b", 8)
    assert schedule.step_s == pytest.approx((8 + 1) / 8 * 3)
    # stages hold 2 and 1 of 8 micro-batches of 8 MiB, against all of both
    assert schedule.reason == (
        "8 micro-batches: 3.38 s a step, undivided 5.5 s; "
        "1f1b takes 3.38 s and holds 24 MiB of activations, gpipe 3.38 s and 128 MiB, zero-bubble 3.62 s and 48 MiB; "
        "interleaved-1f1b would take 3.19 s, but it needs two chunks a stage, another placement"
    )


def test_values_and_gradients_take_their_time_between_stages():
    """Forward 1 and 1, backward 2 and 2, one way there and one back."""
    assert chosen((1.0, 1), (1.0, 1), fixed=True, latency_s=0.25).step_s == pytest.approx(2 + 0.25)
    schedule = chosen((3.0, 1), (3.0, 1), mode="training", fixed=True, latency_s=0.25, splits=False)
    assert schedule.step_s == pytest.approx(6 + 2 * 0.25)


def test_zero_bubble_is_taken_where_it_is_surely_shorter_and_stages_split_their_backwards():
    """Four stages of 3 s, of which a backward is 2: of four micro-batches 1F1B takes 7 x 0.75, zero-bubble 18 / 4."""
    stages = ((3.0, 1),) * 4
    taken = scheduled(*stages, mode="training", batch=4, reading="steady-state")
    assert (taken.schedule.name, taken.schedule.step_s) == ("zero-bubble", pytest.approx(18 / 4))
    assert "zero-bubble takes 4.5 s and holds 400 MiB of activations, gpipe 5.25 s" in taken.schedule.reason
    assert [stage.memory.activations_bytes // MIB for stage in taken.stages if stage.memory] == [64, 96, 112, 128]
    kept = chosen(*stages, mode="training", batch=4, splits=False)
    assert (kept.name, kept.step_s) == ("1f1b", pytest.approx(7 * 3 / 4))
    assert "zero-bubble would take 4.5 s, but the stages do not compute gradients of inputs apart" in kept.reason
    again = chosen(*stages, mode="training", batch=4, recompute="always")
    assert again.name != "zero-bubble"


def test_zero_bubble_that_is_hardly_shorter_gives_way():
    schedule = chosen((0.1, 2), (0.1, 1), latency_s=0.5, mode="training", batch=6)
    assert schedule.name == "1f1b"
    assert "1f1b takes 2.02 s" in schedule.reason
    assert "zero-bubble 1.93 s and 192 MiB, which is less than 5 % shorter" in schedule.reason


def test_long_ways_between_stages_make_gpipe_the_shorter_one():
    """Under GPipe the way there and the way back are paid once: 9 / 8 * 3 + 2 * 0.1; under 1F1B for every two of 8."""
    schedule = chosen((3.0, 1), (3.0, 1), mode="training", batch=8, latency_s=0.1)
    assert (schedule.name, schedule.micro_batches) == ("gpipe", 8)
    assert schedule.step_s == pytest.approx(9 / 8 * 3 + 2 * 0.1)
    assert "gpipe takes 3.58 s and holds 128 MiB of activations, 1f1b 4.18 s and 24 MiB" in schedule.reason


def test_a_step_that_is_hardly_longer_gives_way_to_less_memory():
    schedule = chosen((3.0, 1), (3.0, 1), mode="training", batch=8, latency_s=0.001, reading="steady-state")
    assert schedule.name == "1f1b"
    assert "1f1b takes 3.38 s and holds 24 MiB of activations, gpipe 3.38 s and 128 MiB" in schedule.reason


def test_where_the_step_is_minimised_the_shortest_is_taken():
    assert chosen((3.0, 1), (3.0, 1), mode="training", batch=8, latency_s=0.001).name == "gpipe"


def test_a_link_between_two_types_is_the_way_between_their_stages():
    fast, slow = Link(("any", "any"), 1e9, 0.0), Link(("any", "any"), 256 / 0.5, 0.0)  # 64 samples of 4 bytes
    assert chosen((1.0, 1), (1.0, 1), fixed=True, links=(fast,)).step_s == pytest.approx(2.0)
    assert chosen((1.0, 1), (1.0, 1), fixed=True, links=(slow,)).step_s == pytest.approx(2.5)


def test_where_nothing_is_shorter_no_other_schedule_is_spoken_of():
    assert "would take" not in chosen((3.0, 1), mode="training", batch=8).reason
    assert "would take" not in chosen((3.0, 1), (3.0, 1), batch=8).reason


def test_a_schedule_that_was_decided_is_simulated_and_kept():
    free = scheduled((3.0, 1), (1.0, 1), mode="training", batch=8)
    kept = run_passes(free, [ChooseSchedule("gpipe", 2)], Scheduled)
    assert (kept.schedule.name, kept.schedule.micro_batches) == ("gpipe", 2)
    assert kept.schedule.step_s == pytest.approx(1 / 2 * (3 + 1) + 3 / 2)
    assert kept.schedule.reason == "gpipe with 2 micro-batches was decided before"


def test_training_pays_three_launches_for_every_operation():
    """A step takes (M + 1)(3 + 0.12 (M - 1)) / M: 6, 4.68, 4.2, 4.32 for 1, 2, 4, 8."""
    schedule = chosen((3.0, 1), (3.0, 1), mode="training", launch_s=0.004, operations=10)
    assert (schedule.micro_batches, schedule.step_s) == (4, pytest.approx(4.2))


def test_every_replica_gets_its_share_of_micro_batches():
    schedule = chosen((1.0, 16), (1.0, 1), batch=256)
    assert schedule.micro_batches == 128
    assert schedule.step_s == pytest.approx(16 / 128 + 1.0)


def test_a_batch_no_number_divides_stays_whole_or_falls_into_samples():
    assert micro_batch_counts(31, 1) == [1, 31]
    assert micro_batch_counts(37, 1) == [1]


def test_every_replica_of_a_training_gets_a_micro_batch_of_a_batch_that_few_numbers_divide():
    stages = (3.0, 2), (1.0, 1)
    assert chosen(*stages, mode="training", reading="steady-state", batch=37).micro_batches == 37
    assert chosen(*stages, batch=37).micro_batches == 1
    assert training_counts(37, 1) == [1]
    assert training_counts(74, 3) == [37]
    assert training_counts(2062, 3) == [1, 2]  # its next divisor is 1,031


def test_counts_divide_the_batch_and_stop_at_32_or_8_per_replica():
    assert micro_batch_counts(96, 1) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert micro_batch_counts(96, 12) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96]


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("stages", [((0.7, 3), (0.2, 1), (0.5, 2)), ((1.0, 1), (0.1, 1)), ((0.1, 5), (1.0, 2))])
def test_counts_skipped_by_the_lower_bound_change_nothing(mode, stages, monkeypatch):
    sums = tuple(0.2 * replicas for _, replicas in stages) if mode == "training" else ()
    quick = chosen(*stages, batch=60, mode=mode, launch_s=1e-3, sync_s=sums)
    monkeypatch.setattr(shortest_step, "least_step_s", lambda *_args, **_kwargs: 0.0)
    assert chosen(*stages, batch=60, mode=mode, launch_s=1e-3, sync_s=sums) == quick


def test_gradients_are_summed_once_however_many_micro_batches_there_are():
    alone = chosen((3.0, 2), (3.0, 2), mode="training")
    found = scheduled((3.0, 2), (3.0, 2), mode="training", sync_s=(0.5, 0.25))
    assert found.schedule.micro_batches == alone.micro_batches > 1
    assert found.schedule.step_s == pytest.approx(alone.step_s + 0.5)  # stage 1 sums before stage 0 has ended
    assert [stage.all_reduce_s for stage in found.stages] == [0.5, 0.25]


def test_a_stage_holds_the_activations_of_the_micro_batches_under_way():
    draft = scheduled((1.0, 1), (1.0, 1), mode="training")
    count = draft.schedule.micro_batches
    held = [stage.memory.activations_bytes for stage in draft.stages if stage.memory is not None]
    assert draft.schedule.name == "1f1b"
    assert count > 2
    assert held == [64 * MIB * 2 // count, 64 * MIB // count]  # the first stage runs one ahead of the last


def test_a_measured_fixed_part_makes_coarser_micro_batches_better():
    """Measured, a layer takes 0.04 s and 15 ms a sample: as with launches of 0.04 s, a step of four is the shortest."""
    schedule = chosen((1.0, 1), (1.0, 1), measured=(point(32, 0.52), point(64, 1.0)))
    assert (schedule.micro_batches, schedule.step_s) == (4, pytest.approx(5 * (0.04 + 0.24)))


def test_a_measured_layer_without_a_fixed_part_is_divided_as_finely_as_allowed():
    schedule = chosen((1.0, 1), (1.0, 1), measured=(point(32, 0.5), point(64, 1.0)), launch_s=1e-2)
    assert schedule.micro_batches == 32


def test_forward_and_backward_are_those_that_were_measured():
    """Backward takes as long as forward, and half as long again where it adds to gradients at hand."""
    draft = scheduled((2.0, 1), (2.0, 1), mode="training", batch=4, measured=(point(1, 0.25, 0.25), point(4, 1.0, 1.0)))
    assert draft.schedule.micro_batches == 4
    for stage in draft.stages:
        assert stage.micro_batch(4).forward_s == pytest.approx(0.25)
        assert stage.micro_batch(4).backward_s == pytest.approx((0.25 + 3 * 0.375) / 4)


def test_a_plan_tells_what_the_times_of_its_micro_batches_were_read_off():
    draft = scheduled((2.0, 1), mode="training", measured=(point(8, 0.25, 0.25), point(64, 1.0, 1.0)))
    assert draft.times.micro_batch_notes(["any"], 4) == (
        "micro-batches on 'any': forward and backward as measured, 16 samples read off measured batches of 8, 64",
    )
    (below,) = draft.times.micro_batch_notes(["any"], 16)
    assert below.endswith("they are smaller than all of these, so the first line goes on")
    alone = scheduled((2.0, 1), measured=(point(64, 2.0),)).times
    assert alone is not None
    assert alone.micro_batch_notes(["any"], 4) == (
        "micro-batches on 'any': in proportion to their samples, as one batch alone was measured (64); the part that "
        "does not shrink takes two (heterps-compile profile --batches N,N)",
    )
    assert alone.micro_batch_notes(["any"], 1) == alone.micro_batch_notes(["other"], 4) == ()
    other = scheduled((2.0, 1), measured=(point(32, 2.0),)).times
    assert other is not None
    (told,) = other.micro_batch_notes(["any"], 1)
    assert "one batch alone was measured (32)" in told
