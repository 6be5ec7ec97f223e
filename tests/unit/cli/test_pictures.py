"""What a compilation draws: refused before the long work where it cannot be written."""

import json

import pytest
from click.testing import CliRunner
from light_models import path

from heterps_compile.cli.main import command
from heterps_compile.cli.pictures import Drawings
from heterps_compile.errors import InputError


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (Drawings(report="out/plan.html"), "--report 'out/plan.html' lies in the output folder 'out'"),
        (Drawings(plots="out/pictures"), "--plots 'out/pictures' lies in the output folder 'out'"),
        (Drawings(trace="no/step.json"), "--trace 'no/step.json': its folder does not exist; make it first"),
        (Drawings(report="there"), "--report 'there' is a folder; expected a file"),
    ],
)
def test_what_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch, asked, fault):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError) as raised:
        asked.check("out")
    assert fault in str(raised.value)


def test_a_workload_has_no_report(tmp_path):
    done = CliRunner().invoke(command, ["w.json", "--objective", "max-load", "--report", str(tmp_path / "r.html")])
    assert done.exit_code == 2
    assert "--report is for an ONNX model, and means nothing for a workload file" in done.output


def test_the_page_tells_the_changes_against_the_plan_it_began_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, quick = str(path("squeezenet")), ["--method", "greedy", "--no-verify", "-q", "-o", "out"]
    runner = CliRunner()
    assert runner.invoke(command, [model, *quick], catch_exceptions=False).exit_code == 0
    again = [model, *quick, "--warm-start", "out", "--min-throughput", "500", "--report", "plan.html"]
    assert runner.invoke(command, again, catch_exceptions=False).exit_code == 0
    page = (tmp_path / "plan.html").read_text("utf-8")
    assert "Changes against the older plan" in page
    assert "<b>replicas</b>" in page or "<b>placement</b>" in page


def test_a_trace_alone_needs_no_search(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def never(*_args, **_options):
        raise AssertionError("searched")

    monkeypatch.setattr("heterps_compile.report.pictures.pareto.pareto", never)
    words = [str(path("squeezenet")), "--method", "greedy", "--no-verify", "-q", "-o", "out", "--trace", "step.json"]
    assert CliRunner().invoke(command, words, catch_exceptions=False).exit_code == 0
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
