"""A number that two outputs share is the same number, printed by the same formatter, under a name that says which.

``tests/quantities.py`` declares the quantities and their names. A number under any other name fails: give it a row
there, or a name that is known.

Left out: the axes of pictures; what a profile or a run measured, which no other output computes.
"""

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from types import MappingProxyType

import pytest
from quantities import (
    OF_A_STAGE,
    QUANTITIES,
    SERVER_USD,
    TOKEN,
    Page,
    check_stages,
    disagreements,
    same_text,
    tables,
    without_tables,
    wrong_keys,
)
from reviewed import CPU, GPU, MODEL, POOL, REQUEST, graph

from heterps_compile.api import choose_backend
from heterps_compile.bench.compare_methods import comparison_of
from heterps_compile.bench.comparison_words import print_comparison
from heterps_compile.cluster.devices import ParameterServer
from heterps_compile.console import make_console
from heterps_compile.cost.problem import MethodResult
from heterps_compile.make_plan import make_plan
from heterps_compile.passes.choose_schedule import ChooseSchedule
from heterps_compile.passes.drafts import Draft, Emitted, Provisioned
from heterps_compile.passes.emit_stages import EmitStages
from heterps_compile.passes.pipeline import run_passes, run_to
from heterps_compile.plan.file import to_json
from heterps_compile.plan.plan import Artifact, Plan
from heterps_compile.plan.plan_view import print_at_a_glance, print_in_full
from heterps_compile.plan.readme import readme
from heterps_compile.plan.total_columns import Summary
from heterps_compile.plan_diff.compare_plans import diff
from heterps_compile.plan_diff.formats import diff_document, diff_markdown, diff_text
from heterps_compile.report.document import to_document
from heterps_compile.report.draft_text import draft_text
from heterps_compile.report.findings import Findings
from heterps_compile.report.html import html_report
from heterps_compile.review.check import check_plan
from heterps_compile.review.check_words import check_document, check_text
from heterps_compile.review.explain import explain_layer
from heterps_compile.review.explain_words import explanation_document, print_explanation
from heterps_compile.review.judge import pricing_of
from heterps_compile.review.moves import outcome_of
from heterps_compile.review.pin_cost import pin_cost
from heterps_compile.review.pose import PosedAgain, pose_again
from heterps_compile.schedule.names import SCHEDULES
from heterps_compile.simulation.plan_steps import best_steps, plan_loads
from heterps_compile.simulation.step_words import print_steps, steps_document
from heterps_compile.units import (
    format_bytes,
    format_percent,
    format_seconds,
    format_share,
    rate_number,
)

FAST = replace(REQUEST, min_throughput=400_000.0)  # more than a unit of a type reaches
TRAINING = replace(REQUEST, mode="training", min_throughput=200.0, min_stages=3, pins=(("emb", "cpu"), ("fc2", "cpu")))
OPEN = replace(graph(), batch_symbol="N", bindings=MappingProxyType({"N": 64}))
ONE = replace(graph(MODEL.replace("64x", "1x").replace("4096x1x", "4096x")), batch=1)
SERVERS = replace(POOL, parameter_server=ParameterServer(SERVER_USD, "made up", "2026", 1e9))
FREE = replace(POOL, device_types=(replace(CPU, price_per_hour=0.0), GPU))
CASES = {
    "inference": (graph(), REQUEST, ""),
    "replicas": (graph(), FAST, ""),
    "several micro-batches": (OPEN, FAST, ""),
    "no floor": (graph(), replace(REQUEST, min_throughput=0.0), ""),
    "fastest": (graph(), replace(REQUEST, objective="throughput", min_throughput=0.0, budget_per_hour=9.0), ""),
    "cheapest hour": (graph(), replace(FAST, objective="price"), ""),
    "latency": (graph(), replace(REQUEST, objective="latency"), ""),
    "training": (graph(), TRAINING, ""),
    "training, several micro-batches": (OPEN, TRAINING, ""),
    "training, interleaved": (OPEN, TRAINING, "interleaved-1f1b"),
    "training through servers": (graph(), replace(TRAINING, synchronisation="parameter-server"), ""),
    "tables on servers": (OPEN, replace(TRAINING, tables="served"), ""),
    "free cores": (graph(), FAST, ""),
    "batch 1": (ONE, replace(REQUEST, min_throughput=300.0), ""),
}


COMPARED = (
    "inference",
    "fastest",
    "latency",
    "training",
    "training through servers",
    "tables on servers",
    "free cores",
)
POOLS = {"training through servers": SERVERS, "tables on servers": SERVERS, "free cores": FREE}


@dataclass(frozen=True)
class Case:
    """A plan, the draft it was made from, and the problem posed again."""

    plan: Plan
    draft: Emitted
    posed: PosedAgain


@cache
def case(name: str) -> Case:
    model, request, schedule = CASES[name]
    pool = POOLS.get(name, POOL)
    draft = run_to(Draft(graph=model, cluster=pool, request=request), Emitted)
    if schedule:
        provisioned = run_to(Draft(graph=model, cluster=pool, request=request), Provisioned)
        draft = run_passes(provisioned, [ChooseSchedule(schedule, 8), EmitStages()], Emitted)
    plan = make_plan(draft, choose_backend(model, None))
    artifacts = tuple((Artifact(f"stage_{stage.index}.onnx", "0" * 64),) for stage in plan.stages)
    plan = replace(plan, artifacts=artifacts, versions={"numpy": "2.0.0"}, total_s=12.3)
    return Case(plan, draft, pose_again(model, replace(plan, bindings={}), cluster=pool))  # a graph has its dimensions


def printed(print_, *args, **options) -> str:
    stream = StringIO()
    print_(make_console(stream, 1500), *args, **options)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def test_the_cases_are_what_they_say():
    plans = {name: case(name).plan for name in CASES}
    assert max(stage.replicas for stage in plans["replicas"].stages) > 1
    assert max(stage.replicas for stage in plans["training"].stages) == 1  # the model's batch cannot be shared
    assert max(stage.replicas for stage in plans["training through servers"].stages) > 1
    step, plan = plans["training"].readings.one_batch_alone, plans["training"]
    assert plan.value == pytest.approx(plan.price_at(step.throughput_samples_per_s))
    assert plans["several micro-batches"].schedule.micro_batches > 1
    assert plans["training, several micro-batches"].schedule.micro_batches > 1
    assert plans["training, interleaved"].schedule.name == "interleaved-1f1b"
    assert plans["batch 1"].batch == 1
    readings = [plan.readings for plan in plans.values()]
    assert all(each.steady_state.batch_s < each.one_batch_alone.batch_s for each in readings)


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed_of_a_plan(name):
    plan, draft = case(name).plan, case(name).draft
    for text in (
        printed(print_at_a_glance, Summary(plan, "out")),
        printed(print_in_full, Summary(plan, "out"), layers=None),
    ):
        (stages,) = tables(text)
        assert check_stages(*stages, plan) == []
        rest = without_tables(text)
        assert rest.count(same_text(plan, "steady rate")) >= 1
        assert disagreements(rest, plan) == []
    written = readme(plan)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in written.splitlines() if line[:1] == "|"]
    assert check_stages(rows[0], rows[2:], plan) == []
    assert disagreements(re.sub(r"^\|.*$", "", written, flags=re.MULTILINE), plan) == []
    dump = draft_text(ChooseSchedule(), draft)
    for stage in plan.stages:
        told = {key: show(value(plan, stage.index)) for key, (show, value) in OF_A_STAGE.items()}
        (line,) = (re.sub(" +", " ", line) for line in dump.splitlines() if f"  stage {stage.index}  " in line)
        reduced = f", all-reduce {told['all-reduce']}" if stage.all_reduce_s else ""
        reduced += f", own work of the rule {told['own work']}" if stage.handling_s else ""
        reduced += f", step of the optimizer {told['update']}" if stage.update_s else ""
        reduced += f", rows of servers {told['push']} one way" if stage.rows is not None else ""
        assert f"x{told['replicas']} compute {told['compute']} data {told['data']}{reduced} in " in line
        assert f" memory {told['memory']} {told['USD/h']} USD/h " in line
    assert disagreements(re.sub(r"^ *stage \d.*$", "", dump, flags=re.MULTILINE), plan) == []
    if " a step" in plan.schedule.reason or " takes " in plan.schedule.reason:
        assert same_text(plan, "alone time") in plan.schedule.reason
    assert wrong_keys(to_document(plan, (), "out"), plan) == []
    assert wrong_keys(to_json(plan), plan) == []


@pytest.mark.parametrize("name", CASES)
def test_the_page(name):
    plan = case(name).plan
    page = Page(html_report(Findings(plan)))
    (stages,) = page.tables
    assert check_stages(stages[0], stages[1:], plan) == []
    assert disagreements("\n".join(page.lines), plan) == []
    told = page.lines and " ".join(page.lines)
    assert same_text(plan, "alone bubble") in told
    assert "time spent" not in told


@pytest.mark.parametrize("name", CASES)
def test_a_simulation(name):
    """The row that is planned is the plan's own step; every other is as the document has it."""
    plan = case(name).plan
    steps = best_steps(plan, plan_loads(plan), [plan.schedule.micro_batches], list(SCHEDULES))
    document = json.loads(steps_document(plan, steps, []))
    text = printed(print_steps, plan, steps, [])
    assert wrong_keys(json.dumps(document), plan) == []
    schedules, memory = tables(text)
    assert disagreements(without_tables(text), plan) == []
    assert schedules[0] == ["one batch alone", "micro-batches", "step", "samples/s", "bubble", "most memory"]
    for row, entry in zip(schedules[1], document["schedules"], strict=True):
        most = max(stage["peak_bytes"] for stage in entry["stages"])
        assert row[1:6] == [
            str(entry["micro_batches"]),
            format_seconds(entry["step_s"]),
            rate_number(entry["samples_per_s"]),
            format_share(entry["bubble"]),
            format_bytes(most),
        ]
        if "planned" in row[-1]:
            own = [same_text(plan, key) for key in ("alone time", "alone rate", "alone bubble")]
            assert row[2:5] == [own[0], own[1].removesuffix(" samples/s"), own[2]]
    assert "planned" in text
    for stage, row in zip(plan.stages, memory[1], strict=True):
        planned = next(i for i, step in enumerate(steps) if step.schedule == plan.schedule.name)
        assert row[2 + planned] == format_bytes(stage.memory.total_bytes)


SHARED_BY_DIFFS = {
    "price": ("price", ""),
    "cost, steady state": ("steady cost", " per million samples"),
    "throughput, steady state": ("steady rate", ""),
    "step, one batch alone": ("alone time", ""),
    "memory, all units": ("memory", ""),
}


@pytest.mark.parametrize(("old", "new"), [("inference", "no floor"), ("training", "training, several micro-batches")])
def test_a_diff(old, new):
    before, after = case(old).plan, case(new).plan
    changes = diff(before, after)
    document = json.loads(diff_document(changes, "old", "new"))["estimates"]
    text, markdown = diff_text(changes), diff_markdown(changes, "old", "new")
    page = Page(html_report(Findings(after, older=before, changes=changes)))
    assert {number.label for number in changes.numbers} == set(SHARED_BY_DIFFS)
    assert [row[0] for row in page.tables[0][1:]] == list(SHARED_BY_DIFFS)
    for label, (name, unit) in SHARED_BY_DIFFS.items():
        was, now = (QUANTITIES[name][1](plan) for plan in (before, after))
        told = [same_text(plan, name) + unit for plan in (before, after)]
        change = 100 * (now / was - 1)
        words = "" if abs(change) < 1e-7 else ("+" if change > 0 else "") + format_percent(change)
        row = re.sub(" +", " ", next(line for line in text.splitlines() if line.startswith(f"{label} ")))
        number, _, of_old = told[0].partition(" ")
        from_ = number if of_old == told[1].partition(" ")[2] else told[0]
        assert row == (f"{label} {from_} → {told[1]} {words}" if words else f"{label} {told[1]} same")
        assert f"| {label} | {told[0]} | {told[1]} | {words} |" in markdown
        assert [label, *told, words] in page.tables[0]
        entry = document[label.split(",")[0]]
        assert (entry["old"], entry["new"]) == (pytest.approx(was), pytest.approx(now))


@pytest.mark.parametrize("name", COMPARED)
def test_a_check_and_a_comparison(name):
    """What they say of the plan is what it says of itself."""
    found = case(name)
    plan = found.plan
    checked = check_plan(found.posed)
    assert checked.changes.is_empty
    assert wrong_keys(check_document(checked, "plan.json"), plan) == []
    assert not TOKEN.search(check_text(checked))
    row = MethodResult("exact", plan.value, 1, 1.0)
    compared = printed(print_comparison, comparison_of(found.draft, [row], found.draft.search))
    value = same_text(plan, "value").removesuffix(" per million samples")
    assert value in compared
    if plan.bound:  # a pool with something free proves nothing of prices that are paid
        assert f"proven bound: {same_text(plan, 'bound')}" in compared


EXPLAINED = ("inference", "training through servers")  # moves take a search each


@pytest.mark.parametrize("name", EXPLAINED)
def test_an_explanation(name):
    """The row that is chosen is the plan as it says of itself."""
    found, plan = case(name), case(name).plan
    value = same_text(plan, "value").removesuffix(" per million samples")
    explained = explain_layer(found.posed, "fc2")
    document, text = explanation_document(explained), printed(print_explanation, explained)
    choices, *_ = tables(text)
    (chosen,) = (row for row in choices[1] if "chosen" in row)
    rate = "alone rate" if plan.request.minimises_step else "steady rate"
    assert chosen[-2] == same_text(plan, rate).removesuffix(" samples/s")
    alone = {f"the layer alone on {choice['device']!r}": choice for choice in json.loads(document)["choices"]}
    for move in json.loads(document)["moves"]:
        if choice := alone.get(move["what"]):
            assert (move["value"], move["throughput_samples_per_s"]) == (
                choice["value"],
                choice["throughput_samples_per_s"],
            )
    assert wrong_keys(document, plan) == []
    assert chosen[4] == value
    placement, problem, pricing = found.posed.fitting(allow_stale=False), found.posed.problem, pricing_of(found.posed)
    assert (pricing.servers is None) == (not plan.parameter_servers.count)
    moved = outcome_of(problem, placement, pricing)  # a move that ended where the plan is
    assert moved.value == pytest.approx(plan.value, rel=1e-6)
    assert moved.price_per_hour == pytest.approx(plan.price_per_hour, rel=1e-6)
    assert moved.servers_price_per_hour == pytest.approx(plan.parameter_servers.price_per_hour, rel=1e-6)


@pytest.mark.parametrize("name", ["training", "training through servers"])
def test_what_pins_cost(name):
    """The plan's row is the plan as it says of itself, its servers counted; only where there are some are they told."""
    found = case(name)
    cost = pin_cost(found.posed, (("emb", "cpu"),))
    assert cost.plan.value == pytest.approx(found.plan.value, rel=1e-6)
    assert cost.plan.price_per_hour == pytest.approx(found.plan.price_per_hour, rel=1e-6)
    assert bool(cost.left_out) == bool(found.plan.parameter_servers.count)
