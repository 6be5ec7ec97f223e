"""A measured trace has the tracks of the simulated one, and an arrow for every message."""

import json
from dataclasses import replace

import pytest
from plans import PLAN
from told_runs import BYTES, RANKS, SLOT_S, told_run
from trace_format import read_trace

from heterps_compile.runtime.telemetry.events import Ran, RankSpans, RankStart, Received
from heterps_compile.runtime.telemetry.follow import RunFollower
from heterps_compile.runtime.telemetry.measured_trace import beside, measured_trace
from heterps_compile.simulation.chrome_trace import chrome_trace
from heterps_compile.simulation.plan_steps import plan_loads, simulate_plan

SLOT_US = SLOT_S * 1e6
TWO_REPLICAS = replace(
    PLAN,
    stages=(replace(PLAN.stages[0], replicas=2), PLAN.stages[1]),
    schedule=replace(PLAN.schedule, micro_batches=2),
    request=replace(PLAN.request, mode="training"),
)


@pytest.fixture
def trace(tmp_path) -> dict:
    told_run(tmp_path, steps=2, trace_steps=range(1))
    follower = RunFollower(tmp_path, len(RANKS))
    reports = follower.poll()
    text = measured_trace(TWO_REPLICAS, follower.starts, follower.spans, reports[:1])
    read_trace(text)
    return json.loads(text)


def replica(event: dict) -> int:
    return event["tid"] - 1  # thread 0 is another one to Perfetto


def slices(trace: dict, category: str) -> list[tuple]:
    return sorted(
        (event["pid"], replica(event), round(event["ts"] / SLOT_US), event["name"], round(event["dur"] / SLOT_US))
        for event in trace["traceEvents"]
        if event["ph"] == "X" and (event["cat"] == category)
    )


def test_actions_lie_where_they_ran(trace):
    assert slices(trace, "forward") == [(0, 0, 0, "F0", 1), (0, 1, 1, "F1", 1), (1, 0, 1, "F0", 1), (1, 0, 2, "F1", 1)]
    assert slices(trace, "backward") == [(0, 0, 4, "B0", 1), (0, 1, 5, "B1", 1), (1, 0, 3, "B0", 1), (1, 0, 4, "B1", 1)]


def test_waits_lie_between_them(trace):
    assert (0, 0, 1, "wait: receive", 3) in slices(trace, "wait")
    assert (1, 0, 5, "wait: reduce", 1) in slices(trace, "wait")


def test_an_arrow_runs_from_the_maker_to_the_reader_of_every_message(trace):
    ends = {kind: {} for kind in "sf"}
    for event in trace["traceEvents"]:
        if event["ph"] in ends:
            place = (event["pid"], replica(event), round(event["ts"] / SLOT_US, 3))
            ends[event["ph"]][event["id"]] = place
    arrows = sorted((ends["s"][number], ends["f"][number]) for number in ends["s"])
    assert arrows == [
        ((0, 0, 1.0), (1, 0, 1.0)),  # F0 of replica 0 to F0 of stage 1
        ((0, 1, 2.0), (1, 0, 2.0)),
        ((1, 0, 4.0), (0, 0, 4.0)),  # B0 back
        ((1, 0, 5.0), (0, 1, 5.0)),
    ]
    received = {
        (event["pid"], event["name"]): event["args"]["received_bytes"]
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["cat"] != "wait"
    }
    assert {key for key, size in received.items() if size == BYTES} == {(1, "F0"), (1, "F1"), (0, "B0"), (0, "B1")}


def test_arrows_begin_and_end_inside_slices(trace):
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] != "wait"]
    for end in (event for event in trace["traceEvents"] if event["ph"] in "sf"):
        assert any(
            span["ts"] < end["ts"] < span["ts"] + span["dur"]
            for span in spans
            if (span["pid"], span["tid"]) == (end["pid"], end["tid"])
        )


def test_servers_of_tables_have_a_track_beside_stage_0(tmp_path):
    told_run(tmp_path, steps=1)
    follower = RunFollower(tmp_path, len(RANKS))
    follower.poll()
    server = replace(follower.starts[0], rank=9, position=-1)
    told = json.loads(measured_trace(TWO_REPLICAS, {**follower.starts, 9: server}, []))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in told if event["name"] == "process_name"}
    assert min(names) == 0  # Perfetto takes a number below 0 for 0
    assert list(names.values()) == ["parameter servers", "stage 0: cpu", "stage 1: v100"]


def test_tracks_are_those_of_the_simulated_trace(trace):
    step = simulate_plan(TWO_REPLICAS, plan_loads(TWO_REPLICAS), "gpipe", 2)
    simulated = json.loads(chrome_trace(TWO_REPLICAS, step))
    for kind in ("process_name", "process_sort_index", "thread_name"):
        ours, theirs = (
            [(event["pid"], event["tid"], event["args"]) for event in content["traceEvents"] if event["name"] == kind]
            for content in (trace, simulated)
        )
        assert ours == theirs
    named = [
        {(event["pid"], event["tid"], event["name"]) for event in content["traceEvents"] if event["ph"] == "X"}
        for content in (trace, simulated)
    ]
    assert {entry for entry in named[0] if not entry[2].startswith("wait")} == named[1]


def test_the_simulated_trace_lies_beside_the_measured_one(trace):
    step = simulate_plan(TWO_REPLICAS, plan_loads(TWO_REPLICAS), "gpipe", 2)
    text = beside(json.dumps(trace), chrome_trace(TWO_REPLICAS, step))
    read_trace(text)
    both = json.loads(text)
    names = {event["pid"]: event["args"]["name"] for event in both["traceEvents"] if event["name"] == "process_name"}
    assert names == {
        0: "stage 0: cpu",
        1: "stage 1: v100",
        1000: "simulated stage 0: cpu",
        1001: "simulated stage 1: v100",
    }
    assert both["otherData"]["source"] == "measured by heterps-compile"
    assert both["otherData"]["simulated_source"] == "simulated by heterps-compile"


def test_memory_is_a_counter(trace):
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert {(event["pid"], event["name"]) for event in counters} == {
        (0, "memory of replica 0"),
        (0, "memory of replica 1"),
        (1, "memory of replica 0"),
    }
    assert all(event["args"]["bytes"] > 0 for event in counters)


def test_clocks_of_machines_are_tied_by_the_clock_on_the_wall():
    starts = {
        0: RankStart(0, 0, 0, (0,), "here", 1, clock_s=10.0, unix_s=1000.0),
        1: RankStart(1, 1, 0, (1,), "there", 1, clock_s=500.0, unix_s=1000.5),
    }
    spans = [
        RankSpans(0, 0, (Ran(0, 0, "forward", 11.0, 12.0),)),
        RankSpans(1, 0, (Ran(1, 0, "forward", 502.0, 503.0),)),  # 2 s after 1000.5
    ]
    trace = json.loads(measured_trace(PLAN, starts, spans))
    assert [event["ts"] for event in trace["traceEvents"] if event["ph"] == "X"] == [0.0, 1.5e6]


def test_messages_that_nobody_traced_make_no_arrow():
    starts = {0: RankStart(0, 0, 0, (0,), "m", 1, 0.0, 0.0)}
    messages = (
        Received(7, 10, 0.5, 1.0, before=0),  # from a rank that tells nothing
        Received(0, 10, 0.5, 1.0, before=0),  # from itself, which made nothing before
        Received(0, 10, 2.5, 3.0, before=1),  # after the last action
    )
    trace = json.loads(measured_trace(PLAN, starts, [RankSpans(0, 0, (Ran(0, 0, "forward", 1.0, 2.0),), messages)]))
    assert [event["ph"] for event in trace["traceEvents"] if event["ph"] in "sf"] == []


def test_an_empty_run_has_a_trace():
    assert json.loads(measured_trace(PLAN, {}, []))["traceEvents"] == []
