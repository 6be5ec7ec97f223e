"""``heterps-compile show`` and ``explain``: what they print, and how they end."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from light_models import path
from plans import PLAN, version_1, with_stage

import heterps_compile
from heterps_compile.cli.main import run
from heterps_compile.plan.file import to_json
from heterps_compile.plan.schema import VERSION, published_schema

MODEL = str(path("squeezenet"))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text(to_json(PLAN), "ascii")


def test_an_older_plan_is_shown_as_todays(capsys):
    Path("old.json").write_text(json.dumps(version_1()))
    assert run(["show", "old.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == VERSION


def test_the_schema_is_printed_for_other_tools(capsys):
    assert run(["show", "--schema"]) == 0
    assert capsys.readouterr().out == published_schema()


def test_names_do_not_reach_the_terminal_as_they_are(capsys):
    evil = "a\x1b[31m\u202e\nb"
    plan = replace(with_stage(PLAN, 0, layers=(evil,)), model=evil, cluster=evil, notes=(evil,))
    Path("plan.json").write_text(to_json(replace(plan, versions={evil: evil})), "ascii")
    assert run(["show", "plan.json", "-v"]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_many_plans_are_checked_without_a_word(capsys):
    Path("other.json").write_text(to_json(PLAN), "ascii")
    assert run(["show", "-q", "plan.json", "other.json"]) == 0
    assert capsys.readouterr() == ("", "")
    Path("other.json").write_text(to_json(PLAN).replace('"replicas": 12', '"replicas": 13'), "ascii")
    assert run(["show", "-q", "plan.json", "other.json"]) == 1
    assert "other.json: estimates.stages[0].price_per_hour: 0.48 for 13 units" in capsys.readouterr().err


def test_showing_needs_neither_torch_nor_onnx():
    script = (
        "import sys; from heterps_compile.cli.main import run; code = run(['show', 'plan.json']); "
        "print(sorted({'torch', 'onnx', 'onnx_ir', 'onnxruntime'} & set(sys.modules)), code)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[] 0"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show"], 2, "Name a plan (one for --json), or give --schema alone."),
        (["show", "missing.json"], 1, "there is no plan at 'missing.json'"),
        (["explain"], 2, "Name one LAYER, or give --pin with a --plan, or --infeasible alone."),
        (["explain", "--infeasible"], 2, "Name the model that no plan is found for (--model)."),
        (["explain", "a"], 2, "Name the plan that is asked about (--plan)."),
        (["explain", "n1", "--plan", "plan.json"], 1, "unknown layer 'n1'"),
        (["explain", "a", "--plan", "plan.json", "--cluster", "edge"], 2, "means nothing for a LAYER of a plan alone"),
        (
            ["explain", "--infeasible", "--model", MODEL, "--plan", "plan.json"],
            2,
            "--plan is for a LAYER with its --model, a LAYER of a plan alone and pins of a plan, and means nothing",
        ),
        (
            ["explain", "a", "--model", MODEL, "--plan", "plan.json", "--batch", "2"],
            2,
            "--batch is for --infeasible, and means nothing for a LAYER",
        ),
        (["explain", "a", "--model", MODEL, "--plan", "plan.json"], 1, "the model changed, the plan was made at"),
        (["explain", "--infeasible", "--model", "missing.onnx"], 1, "missing.onnx"),
    ],
)
def test_what_cannot_be_shown_is_one_clear_error(capsys, arguments, code, said):
    assert run(arguments) == code
    assert said in capsys.readouterr().err


def test_a_layer_of_a_real_model_is_explained(capsys):
    plan = heterps_compile.compile(MODEL, method="greedy", min_stages=2, verify=False).plan
    Path("plan.json").write_text(to_json(plan), "ascii")
    layer = plan.stages[0].layers[0]
    assert run(["explain", layer, "--model", MODEL, "--plan", "plan.json"]) == 0
    assert capsys.readouterr().out.startswith(
        f"{layer}, {plan.titles[layer]}, stage 0, on {plan.stages[0].device}\nWhy: "
    )
    assert run(["explain", layer, "--model", MODEL, "--plan", "plan.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layer"] == layer


@pytest.mark.slow  # searches three times
def test_what_pins_of_a_real_model_cost_is_told(capsys):
    plan = heterps_compile.compile(MODEL, method="greedy", min_stages=2, verify=False).plan
    Path("plan.json").write_text(to_json(plan), "ascii")
    asked = ["explain", "--pin", "conv=cpu-core", "--model", MODEL, "--plan", "plan.json", "--time-limit", "5"]
    assert run(asked) == 0
    assert capsys.readouterr().out.startswith("With conv=cpu-core: ")
    assert run([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pins"] == [["conv", "cpu-core"]]


def test_a_floor_that_nothing_reaches_is_explained(capsys):
    assert run(["explain", "--infeasible", "--model", MODEL, "--min-throughput", "1e9"]) == 0
    assert capsys.readouterr().out.startswith(
        "No plan that keeps these 26 layers in this order exists: a throughput of 1,000,000,000 samples/s"
    )
