"""``check --all`` and ``update --all`` on real, tiny models: what is judged, what is read, what is written."""

import json
from functools import wraps
from pathlib import Path

import pytest
from small_inputs import write_small_inputs

from heterps_compile.cli.main import run
from heterps_compile.cluster.load import pool_text
from heterps_compile.passes.place_layers import PlaceLayers
from heterps_compile.plan.file import from_json
from heterps_compile.plan.folder import read_folder
from heterps_compile.review import shared_inputs

HEAD = '[defaults]\nrequest = { method = "greedy" }\nbatch = 2\nshapes = { rows = 4 }\n'
ONE = '[[plan]]\nplan = "one.json"\nmodel = "m.onnx"\n'
TWO = '[[plan]]\nplan = "two.json"\nmodel = "m.onnx"\nrequest = { method = "greedy", min_stages = 2 }\n'
LOST = '[[plan]]\nplan = "lost.json"\nmodel = "lost.onnx"\n'


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_small_inputs(tmp_path)
    Path("heterps.toml").write_text(HEAD + ONE + TWO)


def test_plans_are_written_first_and_then_they_hold(capsys):
    assert run(["check", "--all"]) == 2
    assert "not judged  one.json  there is no plan at 'one.json'" in capsys.readouterr().out
    assert run(["update", "--all"]) == 0
    assert "fine  one.json  written: the manifest names it, and there was none\n" in capsys.readouterr().out
    plan = from_json(Path("two.json").read_text(), "two.json")
    assert (plan.batch, plan.request.min_stages, plan.request.method) == (2, 2, "greedy")
    before = Path("one.json").stat().st_mtime_ns
    assert run(["update", "--all"]) == 0
    assert "fine  one.json  kept: the plan holds" in capsys.readouterr().out
    assert Path("one.json").stat().st_mtime_ns == before
    assert run(["check", "--all"]) == 0
    assert capsys.readouterr().out.endswith("\n2 plans: 2 fine.\n")


def test_one_that_cannot_be_judged_stops_no_other_and_the_worst_is_the_exit_code(capsys):
    run(["update", "--all"])
    Path("heterps.toml").write_text(
        HEAD + LOST + ONE.replace("m.onnx", 'm.onnx"\nrequest = { method = "greedy", min_stages = 2 }#') + TWO
    )
    Path("lost.json").write_text(Path("one.json").read_text())
    capsys.readouterr()
    assert run(["check", "--all"]) == 2
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("not judged  lost.json  ")
    assert "lost.onnx does not exist" in lines[0]
    assert lines[1].startswith(
        "fails       one.json   the plan does not hold any more: the plan has fewer or more stages"
    )
    assert lines[2].startswith("fine        two.json   the plan holds")
    assert lines[4] == "3 plans: 1 fine, 1 fails, 1 not judged."
    assert "\none.json:\n" in out
    assert "settings" in out


def test_what_the_manifest_asks_for_must_be_what_the_plan_was_made_for(capsys):
    run(["update", "--all"])
    Path("heterps.toml").write_text(HEAD.replace('"greedy"', '"greedy", min_throughput = 1.5') + ONE)
    capsys.readouterr()
    assert run(["check", "--all"]) == 1
    said = "it was made for another request: min throughput is 1.5 samples/s, was 0 samples/s"
    assert said in capsys.readouterr().out
    assert run(["update", "--all"]) == 0
    assert run(["check", "--all"]) == 0
    Path("heterps.toml").write_text(ONE)  # no request: that of the plan
    assert run(["check", "--all"]) == 0


def test_what_plans_share_is_read_once(monkeypatch, capsys):
    Path("mine.toml").write_text(pool_text("heterps-paper"))
    Path("heterps.toml").write_text(HEAD + 'cluster = "mine.toml"\n' + ONE + TWO)
    run(["update", "--all"])
    read: list[str] = []

    def noting(name):
        inner = getattr(shared_inputs, name)

        def call(what, *arguments, **options):
            read.append(str(what))
            return inner(what, *arguments, **options)

        return call

    for name in ("as_pool", "read_model"):
        monkeypatch.setattr(shared_inputs, name, noting(name))
    assert run(["check", "--all"]) == 0
    assert sorted(read) == ["m.onnx", "mine.toml"]


def test_a_plan_without_a_model_is_only_read_and_that_is_told(capsys):
    run(["update", "--all"])
    Path("heterps.toml").write_text('[[plan]]\nplan = "one.json"\n')
    capsys.readouterr()
    assert run(["check", "--all"]) == 0
    assert "the file is sound; the manifest names no model to check it against" in capsys.readouterr().out
    assert run(["update", "--all"]) == 2


def test_a_folder_is_compiled_anew_as_a_whole():
    Path("heterps.toml").write_text(HEAD + ONE.replace("one.json", "one.heterps"))
    assert run(["update", "--all"]) == 0
    plan, files = read_folder("one.heterps")
    assert len(plan.stages) == len(files)
    Path("heterps.toml").write_text(HEAD + TWO.replace("two.json", "one.heterps"))
    assert run(["update", "--all"]) == 0
    assert len(read_folder("one.heterps")[0].stages) == 2


@pytest.mark.parametrize("form", ["json", "markdown", "github"])
def test_other_formats_are_one_comment_or_document(form, capsys, monkeypatch, tmp_path):
    run(["update", "--all"])
    Path("heterps.toml").write_text(HEAD + ONE + LOST.replace("lost.json", "a|b.json"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    capsys.readouterr()
    assert run(["check", "--all", "--format", form]) == 2
    out = capsys.readouterr().out
    if form == "json":
        document = json.loads(out)
        assert (document["exit_code"], [one["verdict"] for one in document["plans"]]) == (2, ["fine", "not judged"])
        assert document["plans"][0]["found"]["passes"] is True
    elif form == "markdown":
        assert out.startswith("### Placement check\n\n2 plans: 1 fine, 1 not judged.\n")
        assert "| a\\|b.json | **not judged** | there is no plan" in out
    else:
        assert out.startswith("::error file=a|b.json,line=1,title=Placement check::there is no plan")
        assert (tmp_path / "summary.md").read_text().startswith("### Placement check")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "--all", "m.onnx"], "The manifest names the models; leave MODEL.onnx out, or --all."),
        (["check"], "Name a MODEL.onnx and its plan (--against), or take those of a manifest (--all)."),
        (["update", "m.onnx"], "Missing option '--against'"),
        (["check", "--manifest", "no.toml"], "there is no manifest 'no.toml'"),
        (["update", "--all", "--against", "one.json"], "--against is for an ONNX model, and means nothing for --all"),
    ],
)
def test_wrong_usage_gives_2(words, said, capsys):
    assert run(words) == 2
    assert said in capsys.readouterr().err


def test_a_plan_that_is_new_is_searched_for_once(monkeypatch):
    searched = []
    inner = PlaceLayers.__call__

    @wraps(inner)  # whose annotations say which step it is
    def noting(step, draft):
        searched.append(draft.graph.name)
        return inner(step, draft)

    monkeypatch.setattr(PlaceLayers, "__call__", noting)
    Path("heterps.toml").write_text(HEAD + ONE + TWO.replace("two.json", "two.heterps"))
    assert run(["update", "--all"]) == 0
    assert len(searched) == 2
    assert read_folder("two.heterps")[0].request.min_stages == 2
