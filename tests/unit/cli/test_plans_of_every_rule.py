"""Plans of every rule, read by every command that reads a plan's file: none is silent about the rule."""

import json
from functools import cache
from pathlib import Path

import pytest
from agreeing import agreeing

from heterps_compile.cli.main import run
from heterps_compile.plan.file import to_json
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rules import RULES

WRITTEN = (
    "all-reduce",
    "topk(density=0.01, feedback=false)",
    "powersgd",
    "adasum(on=step)",
    "shadow(every=5, rule=bmuf)",
    "servers(staleness=4)",
    "local(steps=4, rule=mm, blocks=2, block_steps=8)",
    "adsaga(batches=10, delay=2)",
)
QUICK = ("topk", "local")  # the others are printed by the same lines
READING = {
    "show": ("show", "plan.json"),
    "show --json": ("show", "plan.json", "--json"),
    "explain": ("explain", "fc1", "--plan", "plan.json"),
    "explain --json": ("explain", "fc1", "--plan", "plan.json", "--json"),
    "diff": ("diff", "usual.json", "plan.json"),
    "diff to all-reduce": ("diff", "plan.json", "usual.json"),
    "simulate": ("simulate", "plan.json"),
    "simulate --json": ("simulate", "plan.json", "--json"),
    "simulate --trace": ("simulate", "plan.json", "--trace", "trace.json"),
}


@cache
def plan_text(rule: str) -> str:
    return to_json(agreeing(synchronisation=rule, max_stages=1, min_throughput=0.0, objective="throughput"))


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("usual.json").write_text(plan_text("all-reduce"), "ascii")


def test_every_rule_is_tried():
    assert {parse_rule(rule).name for rule in WRITTEN} == set(RULES)


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=() if rule.startswith(QUICK) else pytest.mark.slow) for rule in WRITTEN]
)
def test_every_command_that_reads_a_plan_says_its_rule(rule, capsys):
    Path("plan.json").write_text(plan_text(rule), "ascii")
    silent = []
    for name, words in READING.items():
        code = run(list(words))
        said = capsys.readouterr()
        assert (code, said.err) in ((0, ""), (1, "") if words[0] == "diff" else (0, "")), (name, said.err)
        if rule not in " ".join(said.out.split()) and rule != "all-reduce":
            silent.append(name)
    assert silent == []
    assert run(["check", "--against", "plan.json"]) in (0, 1)
    assert "Error" not in capsys.readouterr().err
    assert json.loads(Path("trace.json").read_text())


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("words", [*READING.values(), ("check", "--against", "plan.json")], ids=" ".join)
def test_a_rule_whose_package_is_not_installed_is_told_with_where_it_comes_from(words, capsys):
    document = json.loads(plan_text("topk(density=0.01)"))
    document["decisions"]["stages"][0]["sync"] = "half(bits=8)"
    Path("plan.json").write_text(json.dumps(document), "ascii")
    assert run(list(words)) in (1, 2)
    said = " ".join(capsys.readouterr().err.split())
    assert "plan.json: decisions.stages[0].sync: unknown synchronisation rule 'half'" in said
    assert "by the entry points 'heterps_compile.sync_rules', and none that is installed has this one" in said
