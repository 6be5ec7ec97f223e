import json
from dataclasses import replace

from plan_changes import drawn
from plans import PLAN

from heterps_compile.plan.file import to_json
from heterps_compile.plan_diff.compare_plans import diff
from heterps_compile.plan_diff.formats import ANNOTATIONS, diff_document, diff_github, diff_markdown, diff_text

OLD = drawn("2 cpu: emb | 1 v100: a b c d | 3 cpu: head out")
NEW = drawn("4 cpu: emb a' | 1 v100: b | 1 t4: c | 1 v100: d new | 3 cpu: out", 0.005)
CHANGES = diff(OLD, NEW)

# what a hostile model may be called: a workflow command, markup, an escape sequence, marks that turn the text around
HOSTILE = "a\n::error::x\r%0A\x1b[31m\u202e<script>alert(1)</script>`*[x](http://e.vil)*`|--"
EVIL = diff(
    OLD, replace(drawn(f"2 cpu: emb {'z'} | 1 v100: a b c d"), stages=tuple(
        replace(s, layers=tuple(HOSTILE if n == "z" else n for n in s.layers), device=HOSTILE)
        for s in drawn("2 cpu: emb z | 1 v100: a b c d").stages))
)  # fmt: skip


def test_the_text_reads_well(golden):
    golden("report/diff.txt", diff_text(CHANGES, ["placement"]))


def test_the_markdown_reads_well(golden):
    golden("report/diff.md", diff_markdown(CHANGES, "git:main:plan.json", "plan.json", ["placement"]))


def test_the_annotations_read_well(golden):
    golden("report/diff_github.txt", diff_github(CHANGES, "plans/plan.json", to_json(NEW), ["placement"]))


def test_the_document_says_all_of_it(golden):
    golden("report/diff.json", diff_document(CHANGES, "old", "new", ["placement"]))


def test_options_that_are_amounts_have_their_units():
    asked = replace(OLD.request, min_throughput=80_000.0, budget_per_hour=5.0, time_limit_s=None)
    text = diff_text(diff(OLD, replace(OLD, request=asked)))
    assert "settings  min throughput is 80,000 samples/s, was 1,000 samples/s\n" in text
    assert "settings  budget per hour is 5.00 an hour, was none\n" in text
    assert "settings  time limit s is none, was 2.5 s\n" in text


def test_nothing_changed_is_said_in_every_format():
    same = diff(PLAN, PLAN)
    assert diff_text(same) == "The plans are the same.\n"
    assert "The plans are the same." in diff_markdown(same, "a", "b")
    assert diff_github(same, "plan.json", "") == ""
    assert json.loads(diff_document(same, "a", "b"))["is_same"] is True


def test_an_annotation_stands_at_the_line_of_its_layer():
    text = to_json(NEW)
    (line,) = (number for number, line in enumerate(text.splitlines(), 1) if '"name": "c"' in line)
    assert f"file=p.json,line={line},title=placement::layer c moved" in diff_github(CHANGES, "p.json", text)


def test_an_annotation_is_one_line_whatever_the_names():
    lines = diff_github(EVIL, "a,b:c%\n.json", "").splitlines()
    assert lines
    assert {line.split(" ")[0] for line in lines} == {"::warning"}
    assert {line.split(" ")[1].split(",")[0] for line in lines} == {"file=a%2Cb%3Ac%25\\n.json"}
    assert all("%0A\\x1b" not in line and line.isprintable() for line in lines)
    assert any("%250A" in line for line in lines)


def test_more_changes_than_github_shows_are_counted():
    many = diff(OLD, drawn(" | ".join(f"1 cpu: layer{i} | 1 v100: other{i}" for i in range(20))))
    lines = diff_github(many, "plan.json", "").splitlines()
    assert len(lines) == ANNOTATIONS
    assert "more changes; heterps-compile diff lists them" in lines[-1]


def test_no_name_reaches_the_terminal_or_the_page_as_it_is():
    text, markdown = diff_text(EVIL), diff_markdown(EVIL, HOSTILE, "new")
    assert all(line.isprintable() for line in (text + markdown).split("\n"))
    assert "<script>" in text
    assert "<script>" not in markdown
    assert "&lt;script&gt;" in markdown
    assert "\\[x\\](http:\\//" in markdown


def test_a_change_from_nothing_has_no_percentage():
    free = replace(OLD, stages=tuple(replace(stage, price_per_hour=0.0) for stage in OLD.stages))
    price = json.loads(diff_document(diff(free, OLD), "a", "b"))["estimates"]["price"]
    assert (price["old"], price["change_percent"]) == (0.0, None)
