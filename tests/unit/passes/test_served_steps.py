"""A plan whose tables lie on servers: its step has pull and push, and everyone says the same of it."""

import json
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
import torch

import heterps_compile
from heterps_compile.cli.main import run
from heterps_compile.errors import PlanError
from heterps_compile.examples import EXAMPLES
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.plan import Plan
from heterps_compile.simulation.plan_steps import plan_loads, simulate_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Return a training of a small CTRDNN in two stages, its three tables on servers."""
    with torch.device("meta"):
        model, inputs = EXAMPLES["ctrdnn"](batch=64, rows=1000, fields=3, width=8)
    asked = {"mode": "training", "tables": "served", "verify": False, "min_stages": 2}
    return heterps_compile.compile(model, inputs, **asked).plan


def read_plan(folder: Path) -> Plan:
    return from_json((folder / "plan.json").read_text("utf-8"), "the plan")


@pytest.fixture
def folder(plan: Plan, tmp_path: Path) -> Path:
    (tmp_path / "plan.json").write_text(to_json(plan), "utf-8")
    return tmp_path


def test_the_step_begins_with_a_pull_and_ends_with_a_push(plan: Plan):
    """Three tables of 8 floats a row, 64 ids each: 108 us a table, and the rows over the core's network."""
    count = plan.schedule.micro_batches
    rows = sum(stage.rows.requests_s for stage in plan.stages if stage.rows is not None)
    assert rows == pytest.approx(3 * 108e-6)
    first = plan.stages[0]
    assert first.rows is not None
    assert first.rows.network_s == pytest.approx(64 * 8 * 4 * round(first.rows.requests_s / 108e-6) / (2.5e9 / 8))
    least_s = first.pull_s(count) + first.push_s + first.micro_batch(count).whole_s
    assert plan.schedule.step_s >= least_s > first.pull_s(count) > 0


def test_plan_file_simulation_and_search_say_one_step(plan: Plan, folder: Path):
    read = read_plan(folder)
    assert read.stages == plan.stages
    for one in (plan, read):
        schedule = one.schedule
        step = simulate_plan(one, plan_loads(one), schedule.name, schedule.micro_batches)
        assert step.step_s == pytest.approx(schedule.step_s)
        assert step.estimate.bubble == pytest.approx(one.readings.one_batch_alone.bubble)
    assert plan.value == pytest.approx(plan.price_at(plan.batch / plan.schedule.step_s))
    assert plan.bound <= plan.value


def test_simulate_tells_pull_and_push_in_table_json_and_trace(folder: Path, plan: Plan, capsys):
    trace = folder / "trace.json"
    assert run(["simulate", str(folder), "--trace", str(trace)]) == 0
    printed = capsys.readouterr().out
    assert "pull of rows on servers before the first forward of " in printed
    assert run(["simulate", str(folder), "--json"]) == 0
    schedules = json.loads(capsys.readouterr().out)["schedules"]
    for schedule in schedules:
        pulls_s = [stage.pull_s(schedule["micro_batches"]) for stage in plan.stages]
        assert [stage["pull_s"] for stage in schedule["stages"]] == pytest.approx(pulls_s)
        assert [stage["push_s"] for stage in schedule["stages"]] == [stage.push_s for stage in plan.stages]
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    moved = [event for event in events if event.get("cat") in ("pull", "push")]
    assert len(moved) == 2 * sum(stage.replicas for stage in plan.stages if stage.rows is not None)
    last = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    shortest_s = min(schedule["step_s"] for schedule in schedules)
    assert last == pytest.approx(shortest_s * 1e6, abs=2e-3)


def test_a_plan_of_before_keeps_the_step_it_was_made_with(plan: Plan, folder: Path):
    """Without ``rows`` all traffic overlaps, as it was planned then."""
    document = json.loads((folder / "plan.json").read_text("utf-8"))
    for stage in document["estimates"]["stages"]:
        stage.pop("rows", None)
    for reading in ("one_batch_alone", "steady_state"):
        document["estimates"].pop(reading)
    (folder / "plan.json").write_text(json.dumps(document), "utf-8")
    read = read_plan(folder)
    assert [stage.rows for stage in read.stages] == [None] * len(plan.stages)
    assert run(["simulate", str(folder)]) == 0


COMMANDS = (
    ["show", "{}"],
    ["simulate", "{}"],
    ["simulate", "{}", "--trace", "{}/trace.json"],
    ["simulate", "{}", "--json"],
    ["diff", "{}", "{}"],
)


def test_a_number_of_rows_that_nobody_means_is_one_sentence(folder: Path, capfd):
    """Every number of every field, each with one of the commands in turn."""
    document = json.loads((folder / "plan.json").read_text("utf-8"))
    rows, commands = document["estimates"]["stages"][0]["rows"], cycle(COMMANDS)
    for name in ("network_s", "servers_s", "requests_s", "overlapped_s"):
        for number in ("1e300", "1e14", "-1.0", "NaN", "1e400", '"2"', "null"):
            right, rows[name] = rows[name], "HERE"
            (folder / "plan.json").write_text(json.dumps(document).replace('"HERE"', number), "utf-8")
            rows[name] = right
            words = [word.format(folder) for word in next(commands)]
            assert run(words) in (1, 2), (words, name, number)
            _, said = capfd.readouterr()
            assert said.startswith("Error: "), (words, name, number)
            assert "Traceback" not in said
            assert said.strip().count("\n") <= 3  # a sentence, folded


def test_rows_stand_beside_tables_of_their_stage_and_inside_their_step(plan: Plan):
    def faults(changed: Plan) -> str:
        with pytest.raises(PlanError) as raised:
            from_json(to_json(changed), "the plan")
        return str(raised.value)

    stage = plan.stages[0]
    assert stage.rows is not None
    rest = plan.stages[1:]
    inference = replace(stage, rows=replace(stage.rows, is_pushed=False))
    assert "is_pushed" in faults(replace(plan, stages=(inference, *rest)))
    long = replace(stage, rows=replace(stage.rows, servers_s=2 * plan.schedule.step_s))
    assert "in a step of" in faults(replace(plan, stages=(long, *rest)))
