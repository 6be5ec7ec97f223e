from dataclasses import replace

import pytest
from plans import PLAN

from heterps_compile.errors import RunError, UnknownNameError
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_schedule import Schedule
from heterps_compile.plan.planned_stage import TypeReplicas
from heterps_compile.runtime.pipeline.layout import Layout, StepShape, make_layout
from heterps_compile.schedule.micro_batch import MicroBatch
from heterps_compile.schedule.order import Action, Phase


def plan_of(*replicas: int, micro_batches: int = 4, batch: int = 64, backend: str = "torch") -> Plan:
    stages = tuple(
        replace(PLAN.stages[0], index=index, replicas=count, backend=backend) for index, count in enumerate(replicas)
    )
    schedule = Schedule("1f1b", micro_batches, "made up", 0.1)
    return replace(PLAN, stages=stages, schedule=schedule, batch=batch)


def drawn(layout: Layout) -> list[str]:
    return [" ".join(map(str, layout.actions(rank))) for rank in range(layout.world_size)]


def test_ranks_are_numbered_position_by_position_replica_by_replica():
    layout = make_layout(plan_of(2, 1, 3), training=True)
    assert layout.world_size == 6
    assert [layout.position_of(rank) for rank in range(6)] == [0, 0, 1, 2, 2, 2]
    assert [layout.replica_of(rank) for rank in range(6)] == [0, 1, 0, 0, 1, 2]
    assert [layout.ranks_of(stage) for stage in range(3)] == [(0, 1), (2,), (3, 4, 5)]
    assert layout.describe(4) == "stage 2, replica 1 (rank 4)"


def test_interleaving_puts_two_stages_at_a_position():
    layout = make_layout(plan_of(2, 1, 2, 1), training=True, step=StepShape(schedule="interleaved-1f1b"))
    assert layout.widths == (2, 1)
    assert [layout.stages_of(rank) for rank in range(3)] == [(0, 2), (0, 2), (1, 3)]
    assert layout.ranks_of(2) == (0, 1)
    assert layout.describe(2) == "stages 1 and 3, replica 0 (rank 2)"


def test_micro_batches_take_turns_and_the_order_is_the_schedule_s():
    layout = make_layout(plan_of(2, 1), training=True)
    assert drawn(layout) == ["F0 F2 B0 B2", "F1 F3 B1 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    assert [layout.owner(0, i) for i in range(4)] == [0, 1, 0, 1]


def test_speeds_deal_in_proportion():
    layout = make_layout(plan_of(2, 1), training=True, speeds=[[3, 1], [1]], step=StepShape(schedule="gpipe"))
    assert drawn(layout) == ["F0 F1 F2 B0 B1 B2", "F3 B3", "F0 F1 F2 F3 B0 B1 B2 B3"]


def test_what_is_given_goes_before_the_plan():
    layout = make_layout(
        plan_of(2, 1), training=True, replicas=[1, 1], step=StepShape(schedule="gpipe", micro_batches=2, batch=10)
    )
    assert (layout.widths, layout.schedule, layout.micro_batches, layout.micro_batch_size) == ((1, 1), "gpipe", 2, 5)


def test_inference_runs_as_many_batches_in_a_step_as_keep_every_replica_busy():
    layout = make_layout(plan_of(5, 3, micro_batches=2, batch=8), training=False)
    assert (layout.micro_batches, layout.batch, layout.micro_batch_size) == (6, 24, 4)


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        (plan_of(1, 1, backend="jax"), {"schedule": "zero-bubble"}, r"'zero-bubble'.*stage 1\b.*'jax'.*1f1b"),
        (
            replace(plan_of(1, 1), stages=tuple(replace(s, recompute=True) for s in plan_of(1, 1).stages)),
            {"schedule": "zero-bubble"},
            r"'zero-bubble'.*stage 1\b.*again.*--schedule 1f1b",
        ),
        (plan_of(1, 1, 1), {"schedule": "interleaved-1f1b"}, r"\b2\b.*position.*\b3\b.*1f1b"),
        (plan_of(2, 1, 1, 1), {"schedule": "interleaved-1f1b"}, r"\b0\b.*\b2\b.*0.*they.*\b2\b.*\b1\b"),
        (plan_of(1, 1), {"replicas": [1, 1, 1]}, r"\b3\b.*\[1, 1, 1\].*\b2\b"),
        (plan_of(1, 1), {"replicas": [0, 1]}, r"stage 0\b.*\b0\b replicas"),
        (plan_of(1, 1), {"micro_batches": 5}, r"\b64\b.*\b5\b.*--micro-batches 1\b.*\b2\b.*\b4\b.*8.*60"),
        (plan_of(1, 1), {"batch": 0}, r"\b0\b samples.*\b4\b"),
        (
            plan_of(3, 1),
            {"micro_batches": 2},
            r"\b3\b replicas.*2.*replica 2\b.*--micro-batches 4\b",
        ),
        (plan_of(5, 1, batch=4), {}, r"replica 4\b.*--batch.*\b4\b.*--replicas"),
        (
            replace(plan_of(2, 3, batch=8, micro_batches=1), bindings={}),
            {},
            r"replica 1\b.*--batch 24\b --micro-batches 3\b.*--replicas",
        ),
        (plan_of(2, 1), {"speeds": [[1], [1]]}, r"stage 0\b.*\b2\b.*\b1\b speeds"),
        (plan_of(2, 1), {"speeds": [[1, 0], [1]]}, "positive"),
        (plan_of(2, 1), {"speeds": [[1, float("nan")], [1]]}, "positive"),
        (
            replace(plan_of(1, 1), bindings={}),
            {},
            r"\b64\b.*\b4\b.*\b64\b.*\b16\b.*--batch 256",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_a_way_out(plan, options, message):
    of_step = {name: value for name, value in options.items() if name in ("schedule", "micro_batches", "batch")}
    others = {name: value for name, value in options.items() if name not in of_step}
    with pytest.raises(RunError, match=message):
        make_layout(plan, training=True, **others, step=StepShape(**of_step))


def test_orders_that_wait_for_each_other_in_a_circle_are_refused(monkeypatch):
    def circle(name, replicas, micro_batches, *, training):
        first = [Action(0, 0, Phase.FORWARD), Action(0, 0, Phase.BACKWARD), Action(0, 1, Phase.FORWARD)]
        return (*first, Action(0, 1, Phase.BACKWARD)), tuple(
            Action(1, i, phase) for phase in (Phase.FORWARD, Phase.BACKWARD) for i in range(2)
        )

    monkeypatch.setattr("heterps_compile.runtime.pipeline.layout.orders", circle)
    with pytest.raises(RunError, match=r"rank 0\b.*B0.*rank 1\b.*F1"):
        make_layout(plan_of(1, 1, micro_batches=2), training=True)


def test_an_unknown_schedule_is_told_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="'gpipe'"):
        make_layout(plan_of(1, 1), training=True, step=StepShape(schedule="gpip"))


def several_types(*micro_batch_s: float, counts: tuple[int, ...] = (1, 1)) -> Plan:
    names = [(f"type {i}", "gpu" if i else "cpu") for i in range(len(counts))]
    mixed = tuple(
        TypeReplicas(name, kind, count, 1 / len(counts), 1.0, 0.0, 1.0, (MicroBatch(8, time_s / 3, time_s * 2 / 3),))
        for (name, kind), count, time_s in zip(names, counts, micro_batch_s, strict=True)
    )
    plan = plan_of(sum(counts), 1, micro_batches=8)
    first = replace(plan.stages[0], device="type 0", kind="cpu", mixed=mixed)
    return replace(plan, stages=(first, plan.stages[1]))


def test_replicas_of_several_types_are_dealt_micro_batches_by_their_planned_speed():
    layout = make_layout(several_types(1.0, 3.0, counts=(1, 2)), training=True)
    assert layout.assignment[0].count(0) == 6  # 6 in 6 s, and one of 3 s on each of the others
    assert set(layout.assignment[0]) == {0, 1, 2}
    assert layout.assignment[1] == (0,) * 8
    told = make_layout(several_types(1.0, 3.0), training=True, speeds=[[1, 1], [1]])
    assert told.assignment[0].count(0) == 4


@pytest.mark.parametrize(
    "asked", [{"replicas": [3, 1]}, {"replicas": [2], "step": StepShape(schedule="interleaved-1f1b")}]
)
def test_other_replicas_of_such_a_stage_are_refused(asked):
    with pytest.raises(RunError, match=r"stage 0\b.*\b1\b.*\b0\b.*\b1\b.*\b1\b"):
        make_layout(several_types(1.0, 3.0), training=True, **asked)
