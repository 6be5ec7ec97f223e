"""A layer whose name is made up has one title, whatever shows it; the plan keeps it, so no output needs the model."""

from dataclasses import replace
from io import StringIO

import pytest
from reviewed import MODEL, POOL, REQUEST, graph, plan

from heterps_compile.console import make_console
from heterps_compile.passes.drafts import Draft, Emitted
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.plan_view import print_in_full
from heterps_compile.plan.total_columns import Summary
from heterps_compile.plan_diff.compare_plans import diff
from heterps_compile.plan_diff.formats import diff_markdown, diff_text
from heterps_compile.report.findings import Findings
from heterps_compile.report.html import html_report
from heterps_compile.report.layer_columns import layer_table, planned_layer_table
from heterps_compile.report.rows import layer_rows
from heterps_compile.review.explain import explain_layer
from heterps_compile.review.explain_plan import find_layer, print_layer
from heterps_compile.review.explain_words import print_explanation
from heterps_compile.review.pose import pose_again

UNNAMED = MODEL.replace("gemm fc2", "gemm n7")
TITLE = "gemm 4,096 -> 4,096"
PLAN = plan(text=UNNAMED)


def printed(print_, *args, **options) -> str:
    stream = StringIO()
    print_(make_console(stream, 120), *args, **options)
    return stream.getvalue()


def test_the_plan_keeps_the_titles_of_made_up_names_alone():
    assert PLAN.titles == {"n7": TITLE}
    written = to_json(PLAN)
    assert [line for line in written.splitlines() if '"title"' in line] == [
        line for line in written.splitlines() if '"name": "n7"' in line
    ]
    assert from_json(written, "p").titles == PLAN.titles
    assert to_json(from_json(written, "p")) == written


def test_every_output_says_it():
    draft = run_to(Draft(graph=graph(UNNAMED), cluster=POOL, request=REQUEST), Emitted)
    rows = layer_rows(PLAN, draft.layers, draft.costs)
    moved = plan(replace(REQUEST, pins=(("emb", "cpu"), ("n7", "cpu")), min_throughput=100.0), text=UNNAMED)
    changes = diff(PLAN, moved)
    shown = [
        printed(print_in_full, Summary(PLAN), layers=layer_table(rows, 120)),
        printed(print_in_full, Summary(PLAN), layers=planned_layer_table(PLAN, 120)),
        printed(print_layer, find_layer(PLAN, "n7")),
        printed(print_explanation, explain_layer(pose_again(graph(UNNAMED), PLAN, cluster=POOL), "n7")),
        diff_text(changes),
    ]
    assert [TITLE in text and "n7" in text for text in shown] == [True] * len(shown)
    assert TITLE.replace(">", "&gt;") in diff_markdown(changes, "a", "b")
    assert TITLE.replace(">", "&gt;") in html_report(Findings(PLAN))


@pytest.mark.parametrize("title", ["\x1b[31mred", "a|b `c` <b>", "::error::x"])
def test_a_title_is_data(title):
    hostile = replace(PLAN, titles={"n7": title})
    moved = plan(replace(REQUEST, pins=(("emb", "cpu"), ("n7", "cpu")), min_throughput=100.0), text=UNNAMED)
    changes = diff(hostile, replace(moved, titles={"n7": title}))
    shown = printed(print_in_full, Summary(hostile), layers=planned_layer_table(hostile, 120))
    for text in (diff_text(changes), shown):
        assert all(line.isprintable() for line in text.splitlines())
    assert "`c` <b>" not in diff_markdown(changes, "a", "b") + html_report(Findings(hostile))
    assert from_json(to_json(hostile), "p").titles == {"n7": title}
