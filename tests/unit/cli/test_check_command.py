"""``heterps-compile check`` on a real model: exit codes, formats, what ``--update`` writes."""

import json
from pathlib import Path

import pytest
from light_models import path
from wording import names

import heterps_compile
from heterps_compile.cli.main import run
from heterps_compile.cluster.load import pool_text
from heterps_compile.plan.file import to_json
from heterps_compile.plan.folder import read_folder
from heterps_compile.plan.plan import Plan

MODEL = str(path("squeezenet"))


@pytest.fixture(scope="module")
def committed() -> Plan:
    return heterps_compile.compile(MODEL, method="greedy", min_stages=2, verify=False).plan


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch, committed):
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text(to_json(committed), "ascii")


def spoil() -> None:
    """Let the plan rent a unit too many, as an edit by hand might; its estimates agree with that."""
    document = json.loads(Path("plan.json").read_text())
    stage, estimate = document["decisions"]["stages"][0], document["estimates"]["stages"][0]
    unit = estimate["price_per_hour"] / stage["replicas"]
    stage["replicas"] += 5
    estimate["price_per_hour"] += 5 * unit
    estimates = document["estimates"]
    paid = sum(part["price_per_hour"] for part in estimates["stages"])
    estimates["value"] = paid / 3600 / estimates["throughput_samples_per_s"] * 1e6
    estimates["steady_state"] = estimates["one_batch_alone"] = None  # who edits by hand leaves out what follows
    Path("plan.json").write_text(json.dumps(document), "ascii")


def test_the_plan_of_this_very_model_passes(capsys):
    assert run(["check", MODEL, "--against", "plan.json"]) == 0
    assert capsys.readouterr().out == (
        "The plan holds, and the search finds no plan of these 26 layers that is cheaper.\n"
    )


def test_a_plan_that_costs_more_than_it_must_fails_until_it_is_updated(capsys):
    good = Path("plan.json").read_text()
    spoil()
    assert run(["check", MODEL, "--against", "plan.json"]) == 1
    out = capsys.readouterr().out
    assert "cheaper exists" in out
    assert "replicas" in out
    assert run(["check", MODEL, "--against", "plan.json", "--tolerance", "90%"]) == 0
    assert run(["check", MODEL, "--against", "plan.json", "--update"]) == 0
    assert Path("plan.json").read_text() == good
    assert run(["check", MODEL, "--against", "plan.json"]) == 0


def test_a_page_shows_the_committed_plan_beside_the_one_found(capsys):
    spoil()
    assert run(["check", MODEL, "--against", "plan.json", "--report", "check.html"]) == 1
    page = Path("check.html").read_text("utf-8")
    assert '<section id="layers-before"' in page
    assert "replicas, had" in page or "replica, had" in page
    assert run(["check", MODEL, "--against", "plan.json", "--report", "no/check.html"]) == 2
    assert names(capsys.readouterr().err, "no/check.html")


def test_a_compiled_folder_is_compiled_anew(committed):
    assert run([MODEL, "-o", "out", "--method", "greedy", "--min-stages", "2", "--no-verify", "-q"]) == 0
    (text,) = [Path("out/plan.json").read_text()]
    Path("plan.json").write_text(text, "ascii")
    spoil()
    Path("out/plan.json").write_text(Path("plan.json").read_text(), "ascii")
    assert run(["check", MODEL, "--against", "out/plan.json", "--update"]) == 0
    plan, files = read_folder("out")
    assert len(files) == len(plan.stages)
    assert plan.value <= committed.value * (1 + 1e-9)


def test_another_model_fails_and_says_what_changed(capsys):
    assert run(["check", str(path("shufflenet")), "--against", "plan.json"]) == 1
    assert "The plan does not hold any more: the model changed: " in capsys.readouterr().out


@pytest.mark.parametrize("form", ["json", "markdown", "github"])
def test_other_formats_are_printed_alone(capsys, form):
    spoil()
    assert run(["check", MODEL, "--against", "plan.json", "--format", form]) == 1
    out = capsys.readouterr().out
    assert out.startswith({"json": "{", "markdown": "### Placement check", "github": "::error file=plan.json,"}[form])
    if form == "json":
        found = json.loads(out)
        assert (found["passes"], found["unit"]) == (False, "USD per million samples")


@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        (["check", MODEL], (2, "Missing option '--against'")),
        (["check", MODEL, "--against", "plan.json", "--tolerance", "1"], (2, "is no share in percent")),
        (["check", MODEL, "--against", "git:HEAD:plan.json", "--update"], (2, "cannot read 'git:HEAD:plan.json'")),
        (["check", MODEL, "--against", "missing.json"], (2, "there is no plan at 'missing.json'")),
        (["check", "missing.onnx", "--against", "plan.json"], (2, "missing.onnx")),
        (["check", MODEL, "--against", "plan.json", "--cluster", "nowhere"], (2, "unknown cluster 'nowhere'")),
    ],
)
def test_what_cannot_be_checked_is_one_clear_error(capsys, monkeypatch, tmp_path, arguments, ends):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    code, said = ends
    assert run(arguments) == code
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_a_plan_that_cannot_be_written_is_told(capsys, monkeypatch):
    spoil()

    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    before = Path("plan.json").read_text()
    assert run(["check", MODEL, "--against", "plan.json", "--update"]) == 2
    assert names(capsys.readouterr().err, "'plan.json'", "No space left on device")
    assert Path("plan.json").read_text() == before


def test_the_plans_own_pool_needs_no_file_and_a_file_that_changed_is_told(capsys):
    pool = pool_text("heterps-paper")
    Path("mine.toml").write_text(pool)
    plan = heterps_compile.compile(MODEL, cluster="mine.toml", method="greedy", min_stages=2, verify=False).plan
    Path("plan.json").write_text(to_json(plan), "ascii")
    Path("mine.toml").unlink()
    assert run(["check", MODEL, "--against", "plan.json"]) == 0
    assert run(["simulate", "plan.json"]) == 0
    assert run(["explain", plan.stages[0].layers[0], "--model", MODEL, "--plan", "plan.json"]) == 0
    assert "pool changed" not in capsys.readouterr().out
    price = next(line for line in pool.splitlines() if line.startswith("price = "))
    Path("mine.toml").write_text(pool.replace(price, 'price = "0.06 USD/h"', 1))
    run(["check", MODEL, "--against", "plan.json", "--cluster", "mine.toml"])
    assert "note: the pool changed: price of cpu-core is 0.06 USD/h, was 0.04 USD/h\n" in capsys.readouterr().out
