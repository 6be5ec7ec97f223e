"""Rules by which replicas agree in problems with given costs: in plans that are predicted, and in those found."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agreeing import BATCH, agreeing, pool

from heterps_compile.cli.main import run
from heterps_compile.errors import InfeasibleError, InputError, UnknownNameError
from heterps_compile.passes.place_given import place_given
from heterps_compile.plan.request import ALONE, make_request
from heterps_compile.prediction.choose_micro_batch import choose_of_rivals, choose_of_steps
from heterps_compile.prediction.predict_step import Prediction, predict_step
from heterps_compile.problem_file.given_plan import FORMAT as PLAN_FORMAT
from heterps_compile.problem_file.given_plan import make_given_plan, plan_document
from heterps_compile.problem_file.given_problem import GivenProblem
from heterps_compile.problem_file.read_problem import FORMAT, make_given
from heterps_compile.simulation.plan_steps import plan_loads, simulate_plan
from heterps_compile.sync_rules.assignment import parse_rule

RULES = (
    "all-reduce", "topk(density=0.01)", "local(steps=4)", "shadow(every=5)", "adasum", "adasum(on=step)",
    "powersgd(rank=2)",
)  # fmt: skip
SHAPE = [1024, 1024]
TIMES = {"device": "gpu", "samples": [1, 64], "forward_s": [0.01, 0.64], "backward_s": [0.02, 1.28]}


def problem(**changes: Any) -> dict[str, Any]:
    """Return two layers of 4 MiB; units of 10 MB/s, so that an all-reduce is what a step waits for; batches of 64."""
    device = {"name": "gpu", "kind": "gpu", "network_bandwidth": "10 MB/s", "memory": "1 GB", "max_units": 8,
              "price": "1 USD/h", "price_source": "made up", "price_date": "2026-11-20"}  # fmt: skip
    layer = {"parameter_bytes": 4 * 1024 * 1024, "shapes": [SHAPE], "times": [TIMES]}
    return {
        "format": FORMAT,
        "version": 1,
        "name": "two",
        "layers": [{"name": "first", **layer}, {"name": "second", **layer}],
        "edges": [{"from": "first", "to": ["second"], "bytes_per_sample": 1}],
        "pool": {"device": [device]},
        "batch": 64,
        **changes,
    }


def plan(sync: str | None = None, count: int = 4, **changes: Any) -> dict[str, Any]:
    stage = {"layers": ["first", "second"], "replicas": [{"device": "gpu", "count": count}]}
    stages = [stage if sync is None else {**stage, "sync": sync}]
    return {"format": PLAN_FORMAT, "version": 1, "micro_batch": 16, "stages": stages, **changes}


def predicted(given: dict[str, Any], asked: dict[str, Any]) -> Prediction:
    read = make_given(given, "the problem")
    return predict_step(read, make_given_plan(asked, read, "the plan"))


def planned(given: GivenProblem, **asked: Any) -> tuple[Any, Any, Prediction]:
    request = make_request("USD", **{**given.asked, **asked})
    placed = place_given(given, request)
    if request.reading == ALONE:
        return choose_of_steps(given, placed, request)
    return choose_of_rivals(given, placed, request.objective)


@pytest.mark.parametrize(
    ("rule", "units_per_machine", "replicas"),
    [(rule, 1 + number % 2, 3 + number // 2 % 2) for number, rule in enumerate(RULES)],
)
def test_the_step_is_that_of_the_compiled_plan(rule: str, units_per_machine: int, replicas: int) -> None:
    """A model of two products compiled with a rule, put in as a problem: one step, whoever says it."""
    cluster = pool(units_per_machine=units_per_machine, inner_bytes_per_s=4e10, inner_latency_s=1e-6)
    cluster = replace(cluster, device_types=(replace(cluster.device_types[0], max_units=replicas),))
    asked = {"objective": "throughput", "min_throughput": 0.0, "budget": 1e6, "max_stages": 1}
    made = agreeing(cluster, synchronisation=rule, **asked)
    (stage,) = made.stages
    assert 1 < stage.replicas <= replicas  # by adasum 2 are faster than 3
    for count in (8, 16):
        step = simulate_plan(made, plan_loads(made), "1f1b", count)
        part = plan_loads(made)[0].micro_batch(count)
        layers = [
            {
                "name": name, "parameter_bytes": 4 * 1024 * 1024, "shapes": [SHAPE],
                "times": [{
                    "device": "gpu", "samples": [BATCH // count],
                    "forward_s": [part.forward_s / 2], "backward_s": [part.backward_s / 2],
                    "update_s": (stage.update_s + stage.handling_s) / 2,
                }],
            }
            for name in stage.layers
        ]  # fmt: skip
        document = {
            "format": PLAN_FORMAT, "version": 1, "micro_batch": BATCH // count,
            "stages": [{
                "layers": list(stage.layers), "replicas": [{"device": "gpu", "count": stage.replicas}], "sync": rule,
            }],
        }  # fmt: skip
        read = make_given({**problem(layers=layers, edges=[], batch=BATCH)}, "the problem", cluster=cluster)
        found = predict_step(read, make_given_plan(document, read, "the plan"))
        assert found.step_s == pytest.approx(step.step_s, rel=1e-9)
        assert found.stages[0].all_reduce_s == pytest.approx(stage.all_reduce_s, rel=1e-9)


def test_a_stage_waits_for_its_rule_and_holds_what_it_holds() -> None:
    usual, ruled = predicted(problem(), plan()), predicted(problem(), plan("topk(density=0.01)"))
    size = 8 * 1024 * 1024
    kept = round(0.01 * size / 4)
    assert usual.parts.all_reduce_s == pytest.approx(2 * 3 / 4 * size / 10e6)
    assert ruled.parts.all_reduce_s == pytest.approx(3 * 8 * 0.01 * size / 4 / 10e6)  # not rounded
    assert ruled.stages[0].held_bytes[0] - usual.stages[0].held_bytes[0] == size + 4 * 8 * kept
    assert predicted(problem(), plan("all-reduce")) == usual


def test_shapes_say_what_factors_have() -> None:
    found = predicted(problem(), plan("powersgd(rank=2)"))
    assert found.parts.all_reduce_s == pytest.approx(2 * 3 / 4 * 2 * 2 * (1024 + 1024) * 4 / 10e6)


def test_a_rule_is_that_of_the_slowest_link_where_replicas_differ() -> None:
    devices = [
        {"name": name, "kind": "gpu", "network_bandwidth": rate, "memory": "1 GB", "max_units": 8}
        for name, rate in (("gpu", "4 MB/s"), ("old", "1 MB/s"))
    ]
    layer = {"parameter_bytes": 4 * 1024 * 1024, "times": [TIMES, {**TIMES, "device": "old"}]}
    layers = [{"name": "first", **layer}, {"name": "second", **layer}]
    mixed = [{"layers": ["first", "second"], "replicas": [{"device": "gpu", "count": 2}, {"device": "old"}],
              "feed": "speed", "sync": "topk(density=0.01)"}]  # fmt: skip
    found = predicted(problem(layers=layers, pool={"device": devices}), plan(stages=mixed))
    assert found.parts.all_reduce_s == pytest.approx(2 * 8 * 0.01 * 2 * 1024 * 1024 / 1e6)


ASKED = (
    {"objective": "cost"},
    {"objective": "cost", "min_throughput": 100.0},
    {"objective": "price", "min_throughput": 100.0},
    {"objective": "throughput"},
    {"objective": "throughput", "reading": "one-batch-alone"},
    {"objective": "cost", "reading": "one-batch-alone"},
)


SEARCHED = (
    *((asked, "topk(density=0.01)") for asked in ASKED),
    *((ASKED[-2], sync) for sync in ("local(steps=4)", "adasum", "powersgd(rank=2)")),
)


@pytest.mark.parametrize(("asked", "sync"), SEARCHED)
def test_every_objective_is_searched_with_rules(asked: dict[str, Any], sync: str) -> None:
    given = make_given(problem(), "the problem")
    placed, found, prediction = planned(given, synchronisation=sync, **asked)
    assert 0 < placed.bound <= placed.value * (1 + 1e-9)
    if asked.get("reading"):
        assert placed.bound == pytest.approx(placed.value, rel=0.05)
    else:
        assert placed.bound == pytest.approx(placed.value, rel=1e-6)
    replicated = [stage.sync for stage in found.stages if stage.width > 1]
    assert replicated or asked["objective"] == "cost"
    assert set(replicated) <= {parse_rule(sync)}
    again = make_given_plan(plan_document(given, found), given, "the plan")
    assert again == found
    assert predict_step(given, again) == prediction


def test_rules_of_the_request_are_those_of_the_file() -> None:
    asked = {"objective": "throughput"}
    own = make_given(problem(request={**asked, "synchronisation": "topk(density=0.01)"}), "the problem")
    ruled, found, _ = planned(own)
    usual, _, _ = planned(make_given(problem(request=asked), "the problem"))
    assert {stage.sync.name for stage in found.stages} == {"topk"}
    assert ruled.value < usual.value


def test_auto_takes_what_is_waited_for_least_of_what_is_allowed() -> None:
    given = make_given(problem(), "the problem")
    asked = {"objective": "throughput", "synchronisation": "auto"}
    values = {}
    for allow, name in (("exact", "all-reduce"), ("bounded", "topk"), ("any", "shadow")):
        placed, found, _ = planned(given, allow=allow, **asked)
        values[allow] = placed.value
        rules = {stage.sync.name for stage in found.stages if stage.width > 1}
        assert rules <= {name}
    assert values["any"] <= values["bounded"] <= values["exact"]
    assert values["bounded"] < values["exact"]


def test_an_entry_is_for_layers_by_name() -> None:
    given = make_given(problem(), "the problem")
    _, found, _ = planned(given, objective="throughput", synchronisation="second=shadow(every=5)", min_stages=2)
    assert [stage.sync.name for stage in found.stages if stage.width > 1][-1:] == ["shadow"]
    with pytest.raises(UnknownNameError, match="'second'"):
        planned(given, synchronisation="secnd=adasum")


@pytest.mark.parametrize(
    ("given", "asked", "message"),
    [
        ({}, plan("tokp(density=0.1)"), r"stage 0\b.*'topk'"),
        ({}, plan("topk(density=7)"), r"stage 0\b.*\b7\b"),
        ({}, plan("servers(staleness=4)"), r"stage 0\b.*count"),
        ({"request": {"mode": "inference"}}, plan("adasum"), "replicas"),
        ({"batch_of": "replica"}, plan("adasum", micro_batch=64), "batches"),
        ({"layers": [{**layer, "shapes": []} for layer in problem()["layers"]]}, plan("powersgd"), "layers.*shapes"),
        ({"layers": [{**layer, "shapes": [[3]]} for layer in problem()["layers"]]}, plan(), r"\b12\b"),
        ({}, plan("local(steps=4, rule=mm)"), r"stage 0\b.*rule=mm"),
    ],
)
def test_what_cannot_be_is_one_sentence(given: dict[str, Any], asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        predicted(problem(**given), asked)


@pytest.mark.parametrize(
    ("given", "asked", "message"),
    [
        ({}, {"synchronisation": "servers"}, "servers"),
        ({}, {"synchronisation": "stage 0=adasum"}, r"stage 0\b"),
        ({"batch_of": "replica"}, {"synchronisation": "adasum"}, "batches"),
        (
            {"layers": [{**layer, "shapes": []} for layer in problem()["layers"]]},
            {"synchronisation": "powersgd"},
            "shapes",
        ),
    ],
)
def test_what_is_not_planned_is_one_sentence(given: dict[str, Any], asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(make_given(problem(**given), "the problem"), objective="throughput", **asked)


def test_timed_all_reduces_are_no_rule_s() -> None:
    timed = [{"device": "gpu", "units": 4, "sizes_bytes": [1, 1e9], "times_s": [0.0, 1.0]}]
    found = predicted(problem(all_reduces=timed), plan("topk(density=0.01)"))
    assert any("all_reduces were timed of all-reduces" in note for note in found.notes)


def test_one_replica_agrees_with_nobody() -> None:
    found = predicted(problem(), plan("topk(density=0.01)", count=1))
    assert found.parts.all_reduce_s == 0
    assert any("has one replica, which agrees with nobody" in note for note in found.notes)


def test_stages_of_several_types_are_found_with_rules() -> None:
    devices = [
        {"name": name, "kind": "gpu", "network_bandwidth": rate, "memory": "1 GB", "max_units": 2}
        for name, rate in (("gpu", "4 MB/s"), ("old", "1 MB/s"))
    ]
    layer = {"parameter_bytes": 4 * 1024 * 1024, "times": [TIMES, {**TIMES, "device": "old"}]}
    given = make_given(problem(layers=[{"name": "first", **layer}], edges=[], pool={"device": devices}), "the problem")
    asked = {"objective": "throughput", "synchronisation": "topk(density=0.01)"}
    plain, mixed = planned(given, **asked)[0], planned(given, mixed_stages=True, **asked)
    assert mixed[0].value < plain.value
    assert len(mixed[1].stages[0].replicas) == 2
    assert mixed[1].stages[0].sync.name == "topk"
    assert mixed[0].bound <= mixed[0].value


def test_the_command_plans_and_predicts_with_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(problem()), "utf-8")
    asked = [str(tmp_path / "problem.json"), "--objective", "throughput", "--quiet", "-o", str(tmp_path / "out")]
    assert run([*asked, "--sync", "topk(density=0.01)"]) == 0
    capsys.readouterr()
    assert run(["predict", asked[0], "--plan", str(tmp_path / "out" / "plan.json")]) == 0
    printed = capsys.readouterr().out
    assert "agrees by" in printed
    assert "topk(density=0.01)" in printed


def test_a_floor_that_rules_keep_from_being_reached_is_told() -> None:
    with pytest.raises(InfeasibleError):
        planned(make_given(problem(), "the problem"), objective="price", min_throughput=1e9)
