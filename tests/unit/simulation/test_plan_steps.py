"""A plan simulated: its own step is the one it was chosen for, the other schedules stand beside it."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from large_plan import hostile_findings, large_findings
from light_models import path
from plans import PLAN
from reviewed import device
from trace_format import read_trace

from heterps_compile.api import compile as compile_
from heterps_compile.cli.main import run
from heterps_compile.console import make_console
from heterps_compile.schedule.micro_batch import MicroBatch
from heterps_compile.schedule.names import SCHEDULES
from heterps_compile.simulation.chrome_trace import chrome_trace
from heterps_compile.simulation.plan_steps import (
    best_steps,
    fits,
    plan_loads,
    possible_counts,
    shortest,
    simulate_plan,
)
from heterps_compile.simulation.step_words import print_steps, steps_document
from heterps_compile.units import trace_thread


def test_the_plans_own_step_is_simulated_as_the_compiler_did():
    compiled = compile_(path("resnet50"), method="greedy", verify=False)
    loads = plan_loads(compiled.plan)
    chosen = compiled.plan.schedule
    step = simulate_plan(compiled.plan, loads, chosen.name, chosen.micro_batches)
    assert step.step_s == pytest.approx(chosen.step_s)
    peaks = [stage.memory.total_bytes for stage in compiled.plan.stages if stage.memory]
    assert step.peak_bytes == pytest.approx(peaks, rel=1e-6)


def test_a_step_that_does_not_fit_is_not_the_shortest_and_is_marked():
    small = [device(name, "gpu", 1.0, 1e12, memory_bytes=1e8) for name in ("v100", "cpu-core", "a100")]
    plan = replace(TRAINED, devices=tuple(small))
    steps = best_steps(plan, plan_loads(plan), [32], ["gpipe", "1f1b"])
    assert steps[0].step_s < steps[1].step_s
    assert [fits(plan, step) for step in steps] == [False, True]
    assert shortest(plan, steps) is steps[1]
    assert shortest(plan, steps[:1]) is steps[0]
    told = [entry["fits"] for entry in json.loads(steps_document(plan, steps, []))["schedules"]]
    assert told == [False, True]
    printed = StringIO()
    print_steps(make_console(printed, 200), plan, steps, [])
    rows = {line.split()[0]: line for line in printed.getvalue().splitlines() if line.startswith(("gpipe", "1f1b"))}
    assert rows["gpipe"].rstrip().endswith("does not fit")
    assert rows["1f1b"].rstrip().endswith("shortest")


@pytest.mark.parametrize("micro_batches", [1, 8])
def test_a_plan_alone_knows_its_own_step_whatever_its_times_were_made_from(micro_batches: int):
    stages = tuple(replace(s, times=(MicroBatch(micro_batches, 0.01, 0.03),)) for s in TRAINED.stages)
    schedule = replace(TRAINED.schedule, name="gpipe", micro_batches=micro_batches)
    plan = replace(TRAINED, stages=stages, schedule=schedule)
    step = simulate_plan(plan, plan_loads(plan), "gpipe", micro_batches)
    times_s = {(span.action.phase, round(span.end_s - span.start_s, 9)) for span in step.timeline.spans}
    assert times_s == {("forward", 0.01), ("backward", 0.03)}


def test_a_plan_alone_knows_the_delays_between_its_stages():
    """Forward 0.01 and backward 0.03 of two stages, one micro-batch, 0.002 there and back; 0.005 undivided."""
    stages = tuple(
        replace(
            s,
            index=i,
            replicas=1,
            times=(MicroBatch(1, 0.02, 0.06, delay_s=0.005), MicroBatch(2, 0.01, 0.03, delay_s=0.002)),
        )
        for i, s in enumerate(TRAINED.stages[:2])
    )
    plan = replace(TRAINED, stages=stages, schedule=replace(TRAINED.schedule, name="gpipe", micro_batches=2))
    loads = plan_loads(plan)
    assert simulate_plan(plan, loads, "gpipe", 2).step_s == pytest.approx(0.03 + 0.09 + 2 * 0.002)
    assert simulate_plan(plan, loads, "gpipe", 1).step_s == pytest.approx(2 * 0.08 + 2 * 0.005)


def test_a_plan_alone_adds_the_all_reduce_of_its_last_stage_to_end():
    stages = tuple(
        replace(s, compute_s=0.04, data_s=0.002, replicas=2, sync_s=0.002, sync_hops_s=0.001)
        for s in TRAINED.stages[:1]
    )
    plan = replace(TRAINED, stages=stages)
    step = simulate_plan(plan, plan_loads(plan), "gpipe", 2)
    assert step.step_s == pytest.approx(0.04 + 0.003)  # two replicas take half the batch each
    slices = [
        event for event in json.loads(chrome_trace(plan, step))["traceEvents"] if event.get("cat") == "all-reduce"
    ]
    assert [(event["tid"], event["ts"], event["dur"]) for event in slices] == [
        (trace_thread(i), 4e4, 3e3) for i in (0, 1)
    ]


TRAINED = large_findings(40, 4, training=True).plan


def test_every_schedule_has_its_best_count_of_micro_batches():
    steps = {step.schedule: step for step in best_steps(TRAINED, plan_loads(TRAINED), possible_counts(TRAINED))}
    assert list(steps) == ["gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"]
    assert {step.micro_batches for step in steps.values()} <= set(possible_counts(TRAINED))
    assert max(steps["1f1b"].peak_bytes) < max(steps["gpipe"].peak_bytes)


def test_a_model_that_fixes_its_batch_has_one_micro_batch():
    assert possible_counts(replace(PLAN, bindings={})) == [1]
    assert possible_counts(PLAN)[:4] == [1, 2, 4, 8]


def test_memory_over_time_never_exceeds_the_peak_and_ends_with_what_is_kept():
    step = simulate_plan(TRAINED, plan_loads(TRAINED), "1f1b", 16)
    for (stage, _), points in step.bytes_over_time():
        assert max(size for _, size in points) <= step.peak_bytes[stage] * (1 + 1e-9)
        assert points[-1][1] == step.kept_bytes[stage]
        assert [time_s for time_s, _ in points] == sorted(time_s for time_s, _ in points)


def test_a_trace_has_a_slice_an_action_a_name_a_process_and_times_in_microseconds():
    step = simulate_plan(TRAINED, plan_loads(TRAINED), "zero-bubble", 8)
    trace = json.loads(chrome_trace(TRAINED, step))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == len(step.timeline.spans) == 4 * 8 * 3 - 8  # the backward of the first stage is in one
    assert {event["cat"] for event in slices} == {"forward", "backward", "weight"}
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(step.step_s * 1e6)
    names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert names == {stage.index: f"stage {stage.index}: {stage.device}" for stage in TRAINED.stages}
    threads = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in slices} <= threads
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert {event["pid"] for event in counters} == set(names)
    assert max(event["args"]["bytes"] for event in counters) == max(step.peak_bytes)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("plan", [TRAINED, large_findings(40, 4).plan, hostile_findings().plan], ids=["t", "i", "h"])
def test_a_trace_keeps_every_law_of_the_format(plan, schedule):
    step = simulate_plan(plan, plan_loads(plan), schedule, 8)
    events = read_trace(chrome_trace(plan, step))
    assert {event["ph"] for event in events} == {"M", "X", "C", "s", "f"}


def test_an_arrow_leads_to_every_action_that_reads_from_another_stage():
    step = simulate_plan(TRAINED, plan_loads(TRAINED), "1f1b", 8)
    arrows = [event for event in read_trace(chrome_trace(TRAINED, step)) if event["ph"] == "f"]
    assert sum(event["name"] == "activations" for event in arrows) == 3 * 8
    assert sum(event["name"] == "gradients" for event in arrows) == 3 * 8


@pytest.mark.parametrize(
    "broken",
    [
        {"ph": "B", "name": "a", "pid": 0, "tid": 0, "ts": 0},
        {"ph": "X", "name": "a", "cat": "c", "pid": 0, "tid": 0, "ts": 0.0, "dur": -1.0},
        {"ph": "X", "name": "a", "cat": "c", "pid": 99, "tid": 0, "ts": 0.0, "dur": 1.0},
        {"ph": "X", "name": "a", "cat": "c", "pid": 0, "tid": 0, "ts": 0.0, "dur": 1e12},
        {"ph": "s", "name": "a", "cat": "flow", "pid": 0, "tid": 0, "ts": 0.0, "id": 10**6},
    ],
)
def test_the_laws_of_the_format_find_what_breaks_them(broken):
    document = json.loads(chrome_trace(TRAINED, simulate_plan(TRAINED, plan_loads(TRAINED), "1f1b", 8)))
    document["traceEvents"].insert(-1, broken)
    with pytest.raises((AssertionError, KeyError)):
        read_trace(json.dumps(document))


@pytest.mark.parametrize(("bound", "is_told"), [({"N": 1009}, False), ({}, True)])
def test_a_batch_that_few_numbers_divide_is_not_told_to_be_fixed(monkeypatch, capsys, bound, is_told):
    plan = replace(PLAN, batch=1009, bindings=bound)
    monkeypatch.setattr("heterps_compile.plan.source.read_plan", lambda _: plan)
    assert run(["simulate", "plan.json", "--json", "--allow-stale"]) == 0
    assert ("the model fixes its batch" in capsys.readouterr().out) is is_told
