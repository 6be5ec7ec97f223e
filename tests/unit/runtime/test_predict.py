"""What a run is thought to take on shared cores, on pipelines small enough to work out by hand."""

from dataclasses import replace

import pytest
from plans import PLAN

from heterps_compile.cost.profile import LinkProfile
from heterps_compile.cost.roofline import Phases
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.runtime.pipeline.routes import Route
from heterps_compile.runtime.predict import Messages, Overheads, predict, step_on_cores
from heterps_compile.schedule.micro_batch import MicroBatch


def layout(*widths: int, training: bool = False, schedule: str = "gpipe", micro_batches: int = 4) -> Layout:
    turns = tuple(tuple(i % width for i in range(micro_batches)) for width in widths)
    return Layout(schedule, training, widths, 1, micro_batches, 4 * micro_batches, turns)


def chain(stages: int) -> list[Route]:
    return [Route(i, i, i + 1, (f"v{i}",)) for i in range(stages - 1)]


def times(*forward_s: float, backward_s: float = 0.0) -> list[Phases]:
    return [Phases(each_s, backward_s, backward_s) for each_s in forward_s]


def test_on_cores_of_their_own_ranks_go_at_the_pace_of_the_slowest():
    assert predict(layout(1, 1), chain(2), times(1, 2), 2).step_s == pytest.approx(4 * 2)


def test_on_one_core_a_step_takes_the_work_of_all():
    assert predict(layout(1, 1), chain(2), times(1, 2), 1).step_s == pytest.approx(4 * (1 + 2))
    assert predict(layout(1, 1, 1), chain(3), times(1, 1, 1), 2).step_s == pytest.approx(4 * 3 / 2)


def test_replicas_share_micro_batches():
    assert predict(layout(1, 2), chain(2), times(1, 2), 3).step_s == pytest.approx(4)


def test_the_runtime_adds_to_every_action_and_to_the_loss():
    added = Overheads({"forward": 0.5}, {"forward": 0.25}, together=2.0)
    found = predict(layout(1), [], times(1), 1, overheads=added)
    assert (found.step_s, found.actions_s) == (pytest.approx(4 * 1.75), {(0, "forward"): 1.5})
    crowded = predict(layout(1, 1), chain(2), times(1, 1), 1, overheads=Overheads(crowded=1.5, switched=1.25))
    assert crowded.step_s == pytest.approx(4 * 2 * 1.5)
    assert crowded.actions_s == {(0, "forward"): 1.25, (1, "forward"): 1.25}


def test_a_message_takes_the_time_of_the_link_and_nobody_waits_for_an_empty_one():
    link = LinkProfile(bytes_per_s=10, bytes_per_s_error=0, latency_s=0.25, latency_s_error=0, between="cores")
    training = layout(1, 1, training=True, micro_batches=1)
    there_and_back = predict(training, chain(2), times(1, 1, backward_s=1), 2, messages=Messages(lambda *_: 5, link))
    assert there_and_back.step_s == pytest.approx(4 + 2 * (0.25 + 0.5))
    forwards = Messages(lambda _, back: 0 if back else 5, link)
    no_gradients = predict(training, chain(2), times(1, 1, backward_s=1), 2, messages=forwards)
    assert no_gradients.step_s < 4


def test_a_plan_tells_its_step_on_fewer_cores_where_it_knows_a_micro_batch():
    stages = tuple(replace(s, kind="cpu", times=(MicroBatch(4, 0.1),), backend="torch") for s in PLAN.stages)
    plan = replace(PLAN, stages=stages, batch=16, schedule=replace(PLAN.schedule, micro_batches=4))
    assert step_on_cores(plan, layout(1, 1), 1) == pytest.approx(4 * 0.2)
    assert step_on_cores(plan, layout(1, 1, micro_batches=8), 1) == pytest.approx(1.6)  # as large, twice as many
    assert step_on_cores(replace(plan, batch=32), layout(1, 1), 1) == 0
    assert step_on_cores(plan, layout(1, 1, training=True), 1) == 0
    assert step_on_cores(replace(plan, stages=PLAN.stages), layout(1, 1), 1) == 0
    assert step_on_cores(plan, layout(1, 1, micro_batches=100_000), 1) == 0  # rather than hold up the run
