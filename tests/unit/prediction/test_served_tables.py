"""A given plan that puts tables on servers: pull, push and what moves beside computation, with the answers in sight."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import heterps_compile
from heterps_compile.cli.main import run
from heterps_compile.cluster.load import make_cluster
from heterps_compile.errors import InputError
from heterps_compile.examples import EXAMPLES
from heterps_compile.passes.place_given import place_given
from heterps_compile.plan.request import make_request
from heterps_compile.prediction.predict_step import Prediction, predict_step
from heterps_compile.problem_file.given_plan import FORMAT as PLAN_FORMAT
from heterps_compile.problem_file.given_plan import make_given_plan, plan_document
from heterps_compile.problem_file.read_problem import FORMAT, make_given
from heterps_compile.simulation.plan_steps import plan_loads, simulate_plan

TIMES = {"device": "gpu", "samples": [1, 2], "forward_s": [1.0, 2.0], "backward_s": [2.0, 4.0], "update_s": 0.5}
ITEMS = {"name": "items", "size_bytes": 8e9, "rows_bytes_per_sample": 1e9}
SERVER = {"bandwidth": "1 GB/s", "memory": "16 GB", "per_table": "10 ms", "price": "free", "price_source": "not told"}
SERVED = {"tables": ["items"], "servers": 2}


def problem(**changes: Any) -> dict[str, Any]:
    """Return a table of 8 GB among 10 GB, a dense layer behind it; units of 2 GB/s, servers of 1 GB/s; batches of 4."""
    device = {"name": "gpu", "kind": "gpu", "network_bandwidth": "2 GB/s", "memory": "64 GB"}
    return {
        "format": FORMAT,
        "version": 1,
        "name": "items",
        "layers": [
            {"name": "embed", "parameter_bytes": 10e9, "tables": [ITEMS], "times": [TIMES]},
            {"name": "head", "parameter_bytes": 1e9, "times": [TIMES]},
        ],
        "edges": [{"from": "embed", "to": ["head"], "bytes_per_sample": 0}],
        "pool": {"device": [device], "parameter_server": SERVER},
        "batch": 4,
        **changes,
    }


def plan(*counts: int, **changes: Any) -> dict[str, Any]:
    """Return a plan of one stage, or of one for each layer, with so many replicas each."""
    layers = [["embed", "head"]] if len(counts) == 1 else [["embed"], ["head"]]
    stages = [
        {"layers": names, "replicas": [{"device": "gpu", "count": count}]}
        for names, count in zip(layers, counts, strict=True)
    ]
    return {"format": PLAN_FORMAT, "version": 1, "micro_batch": 1, "stages": stages, "served": SERVED, **changes}


def predicted(given: dict[str, Any], asked: dict[str, Any]) -> Prediction:
    read = make_given(given, "the problem")
    return predict_step(read, make_given_plan(asked, read, "the plan"))


def test_a_stage_pulls_before_its_first_forward_and_pushes_behind_its_last_backward() -> None:
    step = predicted(problem(), plan(1))
    # 4 GB of rows in 2 s over the network as through two servers, a fourth of them for the first micro-batch
    assert step.stages[0].pull_s == pytest.approx(2 / 4 + 0.01)
    assert step.stages[0].push_s == pytest.approx(2 + 0.01)
    assert step.parts.rows_s == pytest.approx(0.51 + 2.01)
    assert step.parts.busiest_s == 4 * 6
    # the optimiser of the stage updates a fifth of the one layer, and all of the other
    assert step.parts.update_s == pytest.approx(0.2 * 0.5 + 0.5)
    assert step.step_s == pytest.approx(24 + 2.52 + 0.6)


def test_servers_that_are_slower_than_the_networks_are_waited_for() -> None:
    step = predicted(problem(), plan(1, served={**SERVED, "servers": 1}))
    assert step.stages[0].push_s == pytest.approx(4 + 0.01)


def test_replicas_divide_the_rows_and_sum_what_does_not_lie_on_servers() -> None:
    step = predicted(problem(), plan(2, served={**SERVED, "servers": 8}))
    assert step.stages[0].push_s == pytest.approx(1 + 0.01)
    assert step.stages[0].pull_s == pytest.approx(2 * 1 / 4 + 0.01)
    assert step.parts.all_reduce_s == pytest.approx(2 * 1 / 2 * 3 / 2, rel=1e-6)  # of 3 GB at 2 GB/s


def test_a_network_divides_its_rows_no_more_than_the_type_divides_data() -> None:
    given = problem()
    given["pool"]["device"][0]["data_parallel"] = 0.5
    assert predicted(given, plan(2, served={**SERVED, "servers": 8})).stages[0].push_s == pytest.approx(1.5 + 0.01)


def test_a_micro_batch_takes_as_long_as_the_rows_of_the_next_move() -> None:
    quick = {**TIMES, "forward_s": [0.01, 0.02], "backward_s": [0.02, 0.04], "update_s": 0.0}
    given = problem(layers=[{**layer, "times": [quick]} for layer in problem()["layers"]])
    step = predicted(given, plan(1))
    # three of four micro-batches are pulled beside computation, 0.5 s of rows and 10 ms of a request each
    assert step.parts.busiest_s == pytest.approx(4 * 3 / 4 * 0.51)
    assert step.stages[0].forward_s * 2 == pytest.approx(step.stages[0].backward_s)


def test_another_stage_works_while_rows_are_pushed() -> None:
    step = predicted(problem(), plan(1, 1))
    assert [each.pull_s > 0 for each in step.stages] == [True, False]
    assert [each.push_s > 0 for each in step.stages] == [True, False]
    assert step.step_s == pytest.approx(sum(vars_of(step).values()))


def vars_of(step: Prediction) -> dict[str, float]:
    names = ("busiest_s", "fill_s", "transfers_s", "rows_s", "all_reduce_s", "update_s", "overhead_s")
    return {name: getattr(step.parts, name) for name in names}


def test_inference_pulls_and_pushes_nothing() -> None:
    step = predicted(problem(request={"mode": "inference"}), plan(1))
    assert step.stages[0].pull_s == pytest.approx(0.51)
    assert step.stages[0].push_s == 0
    assert step.parts.rows_s == pytest.approx(0.51)


def test_stages_hold_no_table_of_servers_which_hold_it_with_its_states() -> None:
    held, served = predicted(problem(), plan(1, served=None)), predicted(problem(), plan(1))
    assert held.stages[0].held_bytes[0] - served.stages[0].held_bytes[0] == 4 * 8e9
    assert held.servers is None
    assert served.servers is not None
    assert served.servers.held_bytes == pytest.approx(1.2 * 3 * 8e9 / 2)  # with Adam's two states
    assert served.fits
    full = predicted(problem(), plan(1, served={**SERVED, "servers": 1}))
    assert not full.fits
    assert full.notes == ("each of 1 server holds 26.8 GiB of tables and has 14.9 GiB: they do not fit",)


def test_a_table_looked_up_as_a_whole_moves_no_more_than_itself() -> None:
    given = problem()
    given["layers"][0]["tables"] = [{**ITEMS, "size_bytes": 1e9}]
    assert predicted(given, plan(1)).stages[0].push_s == pytest.approx(0.5 + 0.01)


@pytest.mark.parametrize(("memory", "servers", "stages"), [("400 kB", 1, 1), ("200 kB", 2, 2), ("100 kB", 4, 1)])
def test_the_step_is_that_of_the_compiled_plan(memory: str, servers: int, stages: int) -> None:
    """Stages, tables, servers and pool of a compiled CTRDNN, put in as a problem: one step, whoever says it."""
    rates = {"network_bandwidth": "10 Gbit/s", "input_bandwidth": "1e17 B/s", "network_latency": "1 us"}
    device = {"name": "cpu", "kind": "cpu", "memory": "64 GiB", "max_units": 2, "price": "free", "price_source": "none"}
    of_type = {"launch": "1 us", "efficiency": 1.0, "compute_parallel": 1.0, "data_parallel": 1.0}
    peak = {"peak": {"float32": "2e7 FLOP/s"}, "memory_bandwidth": "10 GB/s"}
    server = {**SERVER, "per_table": "108 us", "memory": memory}
    pool = {"device": [{**device, **rates, **of_type, **peak}], "parameter_server": server}
    with torch.device("meta"):
        model, inputs = EXAMPLES["ctrdnn"](batch=64, rows=1000, fields=3, width=8, hidden=(16, 16))
    asked: dict[str, Any] = {"mode": "training", "objective": "throughput", "verify": False}
    asked |= {"min_stages": stages, "max_stages": stages, "tables": "served"}
    plan = heterps_compile.compile(model, inputs, cluster=make_cluster(pool, "the pool", "the pool"), **asked).plan
    assert plan.tables is not None
    assert (plan.tables.servers, len(plan.stages)) == (servers, stages)
    layers, of_plan = [], []
    for index, stage in enumerate(plan.stages):
        own = [n for n, layer in zip(plan.tables.names, plan.tables.layers, strict=True) if layer in stage.layers]
        tables = [{"name": name, "size_bytes": 1000 * 8 * 4, "rows_bytes_per_sample": 8 * 4} for name in own]
        known = stage.times[::-1]
        times = {"device": "cpu", "samples": [64 // each.count for each in known]}
        times |= {"forward_s": [each.forward_s for each in known], "backward_s": [each.backward_s for each in known]}
        size = len(own) * 1000 * 8 * 4
        dense = max(size, 1000)  # as much again, which the optimizer of the stage updates
        times["update_s"] = stage.update_s * (size + dense) / dense
        layers.append({"name": f"stage {index}", "parameter_bytes": size + dense, "tables": tables, "times": [times]})
        of_plan.append({"layers": [f"stage {index}"], "replicas": [{"device": "cpu"}]})
    sent = plan.stages[0].sent_bytes / 64
    edges = [{"from": "stage 0", "to": ["stage 1"], "bytes_per_sample": sent}] if stages == 2 else []
    given = {
        "format": FORMAT, "version": 1, "name": "ctrdnn", "batch": 64, "pool": pool, "layers": layers, "edges": edges
    }  # fmt: skip
    for count in (1, 2, 4, 8):
        step = simulate_plan(plan, plan_loads(plan), "1f1b", count)
        served = {"tables": list(plan.tables.names), "servers": servers}
        asked_of = {
            "format": PLAN_FORMAT, "version": 1, "micro_batch": 64 // count, "stages": of_plan, "served": served
        }  # fmt: skip
        found = predicted(given, asked_of)
        assert found.step_s == pytest.approx(step.step_s, rel=1e-9)
        assert found.parts.rows_s > 0
        held = predicted(given, {**asked_of, "served": None})
        assert held.parts.rows_s == 0
        assert held.step_s - held.parts.update_s < found.step_s - found.parts.update_s


@pytest.mark.parametrize(
    ("changes", "served", "said"),
    [
        ({}, {"tables": ["users"], "servers": 1}, "the tables of problem 'items' are: 'items'"),
        ({}, {"tables": ["items", "items"], "servers": 1}, "names the table 'items' 2 times"),
        ({}, {"tables": [], "servers": 1}, "served"),
        ({}, {"tables": ["items"], "servers": 0}, "servers"),
        ({}, {"tables": ["items"]}, "servers"),
        ({"pool": {"device": problem()["pool"]["device"]}}, SERVED, "has none; give it a [parameter_server]"),
        ({"batch_of": "replica"}, SERVED, "leave served out"),
    ],
)
def test_what_no_servers_can_hold_is_one_sentence(changes: dict[str, Any], served: Any, said: str) -> None:
    with pytest.raises(InputError) as raised:
        predicted(problem(**changes), plan(1, micro_batch=4, served=served))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ([ITEMS, ITEMS], "2 tables are called 'items'; names must differ"),
        ([{**ITEMS, "size_bytes": 11e9}], "parameter_bytes has the tables in it"),
        ([{**ITEMS, "size_bytes": -1.0}], "size_bytes"),
        ([{**ITEMS, "rows": 5}], "rows"),
        ([{"name": "items", "size_bytes": 1e9}], "rows_bytes_per_sample"),
    ],
)
def test_a_table_that_is_none_is_one_sentence(tables: list[Any], said: str) -> None:
    given = problem()
    given["layers"][0]["tables"] = tables
    with pytest.raises(InputError) as raised:
        make_given(given, "the problem")
    assert said in str(raised.value)


def test_a_plan_is_written_as_it_is_read() -> None:
    read = make_given(problem(), "the problem")
    given = make_given_plan(plan(1, 2), read, "the plan")
    assert make_given_plan(plan_document(read, given), read, "the plan") == given
    assert "served" not in plan_document(read, replace(given, served=None))


def test_a_search_holds_tables_and_says_so() -> None:
    placed = place_given(make_given(problem(), "the problem"), make_request("USD", mode="training"))
    assert placed.plan.served is None
    assert any("1 table that servers could hold" in note for note in placed.notes)


def test_the_command_tells_rows_servers_and_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, document in (("problem", problem()), ("plan", plan(1))):
        (tmp_path / f"{name}.json").write_text(json.dumps(document), "utf-8")
    asked = ["predict", str(tmp_path / "problem.json"), "--plan", str(tmp_path / "plan.json")]
    assert run(asked) == 0
    printed = capsys.readouterr().out
    assert "rows of tables" in printed
    assert "1 table on 2 servers, 13.4 GiB each; stage 0 pulls 510 ms and pushes 2.01 s" in printed
    assert run([*asked, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["servers"] == {"count": 2, "tables": 1, "held_bytes": 14_400_000_000}
    assert said["parts"]["rows_s"] == pytest.approx(2.52)
    assert (said["stages"][0]["pull_s"], said["stages"][0]["push_s"]) == pytest.approx((0.51, 2.01))
