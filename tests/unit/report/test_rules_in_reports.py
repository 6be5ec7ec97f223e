"""Tables, pictures and the page tell by which rule the replicas of a stage agree, where it is no all-reduce."""

from functools import cache
from io import StringIO

import pytest
from agreeing import agreeing

from heterps_compile.columns.column import Medium, pairs
from heterps_compile.console import make_console
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.total_columns import TOTALS, Summary
from heterps_compile.report.findings import Findings
from heterps_compile.report.html import html_report
from heterps_compile.simulation.chrome_trace import chrome_trace
from heterps_compile.simulation.plan_steps import plan_loads, simulate_plan
from heterps_compile.simulation.step_words import print_steps

RULE = "topk(density=0.01)"


@cache
def plan(sync: str = RULE) -> Plan:
    return agreeing(synchronisation=sync)


def totals(of: Plan) -> dict[str, str]:
    return dict(pairs(TOTALS, Summary(of), Medium.DETAILS, of.currency))


def picture(name: str, of: Plan) -> str:
    return next((drawn.svg for drawn in Findings(of).pictures() if drawn.name == name), "")


def test_the_totals_have_a_row_for_rules_alone():
    told = totals(plan())["agreement"]
    assert told.startswith(f"stage 0: {RULE} (bounded): ")
    assert "; all-reduce 12 MiB, " in told
    assert "agreement" not in totals(plan("all-reduce"))
    assert "USD per million samples" in totals(plan())["proven bound"]  # of plans with rules


def test_bytes_and_exposed_time_are_drawn_beside_those_of_an_all_reduce():
    drawn = picture("rules", plan())
    for words in ("stage 0, topk: bytes", "stage 0, topk: exposed", "12 MiB", ">all-reduce<"):
        assert words in drawn, words
    assert picture("rules", plan("all-reduce")) == ""


def test_what_the_rule_holds_is_a_part_of_the_memory():
    assert ">agreement 8.64 MiB</text>" in picture("memory", plan())


@pytest.mark.parametrize(("sync", "words"), [(RULE, RULE), ("all-reduce", "all-reduce of gradients")])
def test_the_timeline_calls_the_exchange_by_its_rule(sync, words):
    assert f">{words}</text>" in picture("timeline", plan(sync))


def test_the_page_tells_it():
    page = html_report(Findings(plan()))
    assert page.count(RULE) > 1
    assert "What a replica sends in a step, and what the step waits for, by rule" in page


def test_simulate_and_its_trace_name_the_rule():
    made = plan()
    step = simulate_plan(made, plan_loads(made), made.schedule.name, made.schedule.micro_batches)
    stream = StringIO()
    print_steps(make_console(stream, 120), made, [step], [])
    assert f"{RULE} after the last backward of 1 stage" in stream.getvalue()
    assert f'"name": "{RULE}"' in chrome_trace(made, step)
