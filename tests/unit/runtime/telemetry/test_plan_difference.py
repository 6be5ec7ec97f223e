"""Why a run took another time than planned: parts that add up, and the sentence that names the largest."""

from dataclasses import replace
from typing import Any

import pytest
from plans import PLAN

from heterps_compile.cost.served_rows import ServedRows
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_schedule import Schedule
from heterps_compile.runtime.telemetry.events import RankStep
from heterps_compile.runtime.telemetry.plan_difference import (
    DATA,
    OTHER,
    PULL,
    RUNTIME,
    TAKEN,
    MeanStep,
    StageMeans,
    difference_lines,
    mean_step,
    plan_difference,
)
from heterps_compile.runtime.telemetry.rank_recorder import rank_starts
from heterps_compile.runtime.telemetry.step_report import step_report
from heterps_compile.schedule.micro_batch import MicroBatch

MS = 1e-3
PLANNED_S = 27 * MS
"""GPipe, 4 micro-batches: 1 forward in front, 4 forwards of 2 and backwards of 4 in stage 1, one of 2 behind."""


def planned(mode: str = "training", **of_stages: Any) -> Plan:
    times = [(1, 2), (2, 4)] if mode == "training" else [(1, 0), (2, 0)]
    stages = tuple(
        replace(stage, replicas=1, times=(MicroBatch(4, f * MS, b * MS),))
        for stage, (f, b) in zip(PLAN.stages, times, strict=True)
    )
    request = replace(PLAN.request, mode=mode)
    return replace(PLAN, stages=stages, request=request, schedule=Schedule("gpipe", 4, "", PLANNED_S), **of_stages)


def measured(pace_ms: float, first: tuple[float, float], second: tuple[float, float], **more: Any) -> MeanStep:
    means = [StageMeans(f * MS, b * MS, **more.get(f"stage{i}", {})) for i, (f, b) in enumerate((first, second))]
    return MeanStep(pace_ms * MS, dict(enumerate(means)))


def lines(mean: MeanStep, sharing: str = "", mode: str = "training", planned_s: float = PLANNED_S) -> list[str]:
    plan = planned(mode)
    found = plan_difference(plan, planned_s, mean)
    assert found is not None
    assert sum(found.parts_s.values()) + found.unexplained_s == pytest.approx(mean.pace_s - planned_s)
    return difference_lines(plan, mean, found, sharing)


def test_a_slow_stage_is_the_cause_and_parts_add_up():
    # stage 1 takes 9 ms a micro-batch: 1 + 4 * 9 + 2 = 39; data comes 0.5 ms late in front; the optimizer takes 2 ms
    # between steps; 1 ms is left
    mean = measured(42.5, (1, 2), (3, 6), stage0={"own_s": {DATA: 0.5 * MS}, "between_s": {"optimizer": 2 * MS}})
    assert lines(mean, "3 processes share 2 cores") == [
        "57 % slower than planned (a step took 42.5 ms in the mean, planned 27 ms): stage 1 computed 9 ms a "
        "micro-batch, planned 6 ms (+12 ms of +15.5 ms); the optimizer +2 ms; not explained (messages, sums of "
        "gradients) +1 ms; the rest +500 us; 3 processes share 2 cores"
    ]


def test_slow_data_is_the_cause_where_it_makes_the_step_longer():
    # forwards of stage 0 last 1 + 10 ms: the last of four ends at 44 ms, then 2 + 4 * 4 + 2
    mean = measured(64, (1, 2), (2, 4), stage0={"own_s": {DATA: 10 * MS, RUNTIME: 0.0}})
    assert lines(mean) == [
        "2.4 times the planned time (a step took 64 ms in the mean, planned 27 ms): stage 0 waited 10 ms a "
        "micro-batch for data (+37 ms of +37 ms)"
    ]


@pytest.mark.parametrize(
    ("mean", "said"),
    [
        (measured(27.5, (1, 2), (2, 4)), "as planned: a step took 27.5 ms in the mean, planned 27 ms"),
        (
            measured(15, (1, 2), (1, 2)),
            "44 % faster than planned (a step took 15 ms in the mean, planned 27 ms): stage 1 computed 3 ms a "
            "micro-batch, planned 6 ms (-12 ms of -12 ms)",
        ),
        (
            measured(47, (1, 2), (2, 4), stage0={"between_s": {"validation": 20 * MS}}),
            "74 % slower than planned (a step took 47 ms in the mean, planned 27 ms): validations took 20 ms between "
            "two steps (+20 ms of +20 ms)",
        ),
        (
            measured(47, (1, 2), (2, 4), stage1={"own_s": {PULL: 5 * MS}}),
            "stage 1 waited 5 ms a micro-batch for rows of served tables (+20 ms of +20 ms)",
        ),
        (
            measured(47, (1, 2), (2, 4), stage1={"own_s": {RUNTIME: 5 * MS}}),
            "stage 1 spent 5 ms a micro-batch between its actions (+20 ms of +20 ms)",
        ),
        (
            # nothing that a rank did by itself was slower
            measured(37, (1, 2), (2, 4)),
            "no rank's own work explains it, so it is messages, sums of gradients and what is not measured (+10 ms of "
            "+10 ms)",
        ),
    ],
)
def test_each_cause_has_its_words(mean, said):
    (line,) = lines(mean)
    assert line.endswith(said)


def test_waiting_for_rows_stands_in_place_of_the_planned_pull_and_push():
    """Planned: 1 ms in front of stage 0 and 1 ms behind it, 27 + 2; waited: 4.5 ms a micro-batch."""
    plan = planned()
    first = replace(plan.stages[0], rows=ServedRows(network_s=0.0, servers_s=0.0, requests_s=1 * MS))
    plan, planned_s = replace(plan, stages=(first, plan.stages[1])), PLANNED_S + 2 * MS
    mean = measured(40, (1, 2), (2, 4), stage0={"own_s": {PULL: 4.5 * MS}})
    found = plan_difference(plan, planned_s, mean)
    assert found is not None
    assert set(found.parts_s) == {"stage 0", "stage 1", PULL}
    # forwards of stage 0 last 5.5 ms: 4 * 5.5 + 2 + 4 * 4 + 2
    assert found.parts_s[PULL] == pytest.approx(42 * MS - planned_s)
    (line,) = difference_lines(plan, mean, found)
    assert "stage 0 waited 4.5 ms a micro-batch for rows of served tables, planned 2 ms a step" in line


def test_in_inference_the_slowest_stage_is_the_step_and_dividing_is_a_part():
    # 4 micro-batches of 2 ms in stage 1, while the steady state takes 7 ms for whole batches; 3 ms each were measured
    mean = measured(12, (1, 0), (3, 0))
    assert lines(mean, mode="inference", planned_s=7 * MS) == [
        "71 % slower than planned (a step took 12 ms in the mean, planned 7 ms): stage 1 computed 3 ms a micro-batch, "
        "planned 2 ms (+4 ms of +5 ms); dividing the batch into micro-batches +1 ms"
    ]


def test_means_are_of_what_the_ranks_of_a_stage_told():
    starts = {rank: rank_starts(rank, position=s, replica=0, stages=(s,)) for rank, s in enumerate((0, 0, 1))}
    assert mean_step(starts, []) is None
    reports = []
    before_s: dict[int, float] = {}
    for step in range(3):
        ranks = [_told(rank, step) for rank in range(3)]
        reports.append(step_report(starts, ranks, before_s))
        before_s = {rank.rank: rank.ended_s for rank in ranks}
    mean = mean_step(starts, reports)
    assert mean is not None
    assert mean.pace_s == pytest.approx(0.1)
    first, last = mean.stages[0], mean.stages[1]
    # replicas of stage 0 compute 10 and 20 ms forward for 1 and 2 micro-batches, twice as long backward
    assert (first.forward_s, first.backward_s) == (pytest.approx(0.03 / 3), pytest.approx(0.06 / 3))
    assert {name: round(time_s, 9) for name, time_s in first.own_s.items()} == {
        DATA: round(0.002 / 3, 9),
        PULL: 0.0,
        RUNTIME: round((0.06 + 0.05 - 0.09 - 0.002 - 0.01) / 3, 9),
    }
    assert first.between_s == {
        "optimizer": pytest.approx(0.01),
        OTHER: pytest.approx(0.04),
    }  # of the replica that took longest
    assert last.forward_s == pytest.approx(0.03 / 3)


def _told(rank: int, step: int) -> RankStep:
    """Return a step of 60 ms, 40 ms after the one before; on rank 1 of 50, and the optimizer takes 10 ms, not 5."""
    count = rank + 1
    waits = {"data": 0.001, "receive": 0.005}
    told = RankStep(
        rank,
        step,
        0.1 * step + 0.01 * (rank == 1),
        0.1 * step + 0.06,
        8,
        {rank // 2: 0.01 * count},
        {},
        count,
        waits,
        {},
        0,
    )
    optimizer_s = 0.01 if rank == 1 else 0.005
    return replace(told, backward_s={rank // 2: 0.02 * count}, between_s={"optimizer": optimizer_s})


@pytest.mark.parametrize(
    ("share", "computed_ms", "taken_ms"),
    [(0.2, 6, 24), (0.95, 30, 0), (0.0, 30, 0)],
    ids=["taken", "noise", "no clock"],
)
def test_a_busy_machine_is_no_wrong_plan(share, computed_ms, taken_ms):
    """Replicas of stage 0 compute 30 ms a micro-batch by the wall: taken cores count apart, a little noise does not."""
    starts = {rank: rank_starts(rank, position=s, replica=0, stages=(s,)) for rank, s in enumerate((0, 0, 1))}
    reports, before_s = [], {}
    for step in range(3):
        ranks = [
            replace(each, cpu_s={each.rank // 2: share * each.busy_s}) for each in (_told(r, step) for r in range(3))
        ]
        reports.append(step_report(starts, ranks, before_s))
        before_s = {rank.rank: rank.ended_s for rank in ranks}
    mean = mean_step(starts, reports)
    assert mean is not None
    found = mean.stages[0]
    assert (found.forward_s + found.backward_s, found.own_s.get(TAKEN, 0.0)) == pytest.approx(
        (computed_ms * MS, taken_ms * MS)
    )


def test_taken_cores_are_a_cause_of_their_own():
    # stage 1 takes 6 ms a micro-batch, as planned, and its cores are taken for 14: 1 + 4 * 20 + 2 = 83
    mean = measured(83, (1, 2), (2, 4), stage1={"own_s": {TAKEN: 14 * MS}})
    (line,) = lines(mean)
    assert line.endswith(
        "stage 1 computed 20 ms wall, 6 ms of CPU a micro-batch: the cores were taken (+56 ms of +56 ms)"
    )


def test_without_times_in_the_plan_or_of_a_stage_nothing_is_said():
    mean = measured(12, (1, 0), (3, 0))
    untimed = planned()
    untimed = replace(untimed, stages=(replace(untimed.stages[0], times=()), untimed.stages[1]))
    assert plan_difference(untimed, PLANNED_S, mean) is None
    assert plan_difference(planned(), PLANNED_S, MeanStep(1.0, {0: mean.stages[0]})) is None
