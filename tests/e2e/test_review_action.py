"""The GitHub Action, the pre-commit hooks and the documented recipe, on a real git repository; no network."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from light_models import path
from plan_changes import drawn
from wording import names

import heterps_compile
from heterps_compile.plan.file import to_json
from heterps_compile.plan.plan import Plan

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
RECIPE = (ROOT / "docs" / "review.md").read_text()
MODEL = str(path("squeezenet"))
BIN = str(Path(sys.executable).parent)

OLD = drawn("1 cpu: a b | 1 v100: c")
NEW = drawn("2 cpu: a | 1 v100: b c")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository whose first commit has the old plan, and whose work tree has the new one, committed too."""
    folder = tmp_path / "it's $(touch pwned) here"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, OLD, "first")
    commit(folder, NEW, "second")
    return folder


def commit(folder: Path, plan: Plan, message: str) -> None:
    (folder / "plan.json").write_text(to_json(plan), "ascii")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", message)


def step(folder: Path, name: str, **inputs: str) -> tuple[int, str, str, str]:
    """Run a step as the runner does: inputs become environment, scripts run in bash; give what came out."""
    (found,) = (step for step in ACTION["runs"]["steps"] if step["name"] == name)
    values = {key: str(given.get("default", "")) for key, given in ACTION["inputs"].items()} | inputs
    variables = {
        key: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda m: values[m[1]], text)
        for key, text in found["env"].items()
    }
    written = {key: folder.parent / key for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in written.values():
        file.write_text("")
    environment = os.environ | variables | {key: str(file) for key, file in written.items()}
    environment["PATH"] = f"{BIN}:{environment['PATH']}"
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", found["run"]]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert not (folder / "pwned").exists()
    output, summary = (file.read_text() for file in written.values())
    return done.returncode, done.stdout + done.stderr, output, summary


def test_no_input_is_pasted_into_a_script():
    assert [step["name"] for step in ACTION["runs"]["steps"] if "${{" in step["run"]] == []


def test_the_action_installs_itself_unless_told_otherwise(tmp_path):
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "python").write_text('#!/bin/sh\necho "ran $*"\n')
    (fake / "python").chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GITHUB_ACTION_PATH", "/the/action")
        patch.setattr(f"{__name__}.BIN", str(fake))
        assert step(folder, "Install heterps-compile")[:2] == (0, "ran -m pip install --quiet /the/action\n")
        with_model = step(folder, "Install heterps-compile", model="m.onnx")
        assert with_model[:2] == (0, "ran -m pip install --quiet /the/action[onnx,torch]\n")
        assert step(folder, "Install heterps-compile", install="x==1")[:2] == (0, "ran -m pip install --quiet x==1\n")
        assert step(folder, "Install heterps-compile", install="--index-url=http://e.vil")[0] == 2


def test_a_changed_plan_is_annotated_and_summed_up(repository):
    code, log, output, summary = step(repository, "Compare the plan with the base", base="HEAD~1")
    assert (code, output) == (0, "changed=true\n")
    assert "::warning file=plan.json,line=" in log
    assert "- **placement**: layer b moved from cpu to v100" in summary


@pytest.mark.parametrize("fail_on", [pytest.param("", marks=pytest.mark.slow), "placement"])
def test_a_page_is_written_where_one_is_asked_for(repository, fail_on):
    inputs = {"base": "HEAD~1", "report": "changes $(touch pwned).html", "fail-on": fail_on}
    assert step(repository, "Compare the plan with the base", **inputs)[0] == int(bool(fail_on))
    assert "layer b moved from cpu to v100" in (repository / inputs["report"]).read_text("utf-8")
    assert step(repository, "Compare the plan with the base", base="HEAD~1", report="no/x.html")[0] == 2


def test_a_plan_that_is_the_same_is_quiet(repository):
    assert step(repository, "Compare the plan with the base", base="HEAD") == (
        0,
        "",
        "changed=false\n",
        "### Placement plan\n\nFrom git:HEAD:plan.json to plan.json.\n\nThe plans are the same.\n\n",
    )


def test_a_shallow_checkout_fetches_the_base(repository, tmp_path):
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    base = git(repository, "rev-parse", "HEAD~1")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", str(clone))
    code, log, output, _ = step(clone, "Compare the plan with the base", base=base)
    assert (code, output) == (0, "changed=true\n")
    assert "layer b moved" in log


@pytest.mark.parametrize(
    ("inputs", "expected", "said"),
    [
        ({"base": "0" * 40}, 0, "No commit to compare plan.json with."),
        ({"base": "--upload-pack=touch pwned"}, 2, "the base is no commit"),
        ({"base": "HEAD~1", "fail-on": "price>$(touch pwned)"}, 2, "is nothing to fail on"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ({"base": "HEAD", "plan": "new/plan.json"}, 0, "new/plan.json is new"),
                ({"base": "", "plan": "nowhere/plan.json"}, 2, "no plan to review at nowhere/plan.json"),
                ({"base": "HEAD", "plan": "broken.json"}, 2, "no plan to review at broken.json"),
                ({"base": "HEAD~1", "plan": "$(touch pwned)"}, 2, "no plan to review at $(touch pwned)"),
            )
        ),
    ],
)
def test_odd_inputs_end_well(repository, inputs, expected, said):
    (repository / "new").mkdir()
    (repository / "new" / "plan.json").write_text(to_json(NEW), "ascii")
    (repository / "broken.json").write_text("{}", "ascii")
    code, log, _, _ = step(repository, "Compare the plan with the base", **inputs)
    assert code == expected, log
    assert said in log


@pytest.mark.slow  # a compilation and two checks, cold
def test_the_plan_is_checked_against_its_model(tmp_path):
    plan = heterps_compile.compile(MODEL, method="greedy", min_stages=2, verify=False).plan
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "plan.json").write_text(to_json(plan), "ascii")
    code, log, _, summary = step(tmp_path / "work", "Check the plan against the model", model=MODEL)
    assert (code, log) == (0, "")
    assert "The plan holds" in summary
    code, log, _, summary = step(tmp_path / "work", "Check the plan against the model", model=str(path("shufflenet")))
    assert code == 1
    assert "::error file=plan.json,line=1,title=placement check::the plan does not hold any more" in log


BOTH = "Compare and check the plans of the manifest"


@pytest.mark.parametrize(
    ("limits", "base", "code", "changed"),
    [
        ("", "HEAD~1", 1, "changed=true\n"),
        pytest.param('[defaults]\nfail_on = "nothing"\n', "HEAD~1", 0, "changed=true\n", marks=pytest.mark.slow),
        ("", "--upload-pack=touch pwned", 2, ""),
    ],
)
def test_every_plan_of_a_manifest_is_compared_and_checked(repository, limits, base, code, changed):
    (repository / "heterps.toml").write_text(f'{limits}[[plan]]\nplan = "plan.json"\n')
    found, log, output, summary = step(repository, BOTH, manifest="heterps.toml", base=base)
    assert (found, output) == (code, changed), log
    if base == "HEAD~1":
        assert "layer b moved from cpu to v100" in summary
        assert "the file is sound; the manifest names no model" in summary
        assert ("::error file=plan.json" if code else "::notice file=plan.json") in log


def hook(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a hook as pre-commit does: its entry, its arguments, and the files where it takes any."""
    (found,) = (hook for hook in HOOKS if hook["id"] == name)
    pattern = re.compile(found["files"])
    listed = git(folder, "ls-files").splitlines()
    files = [file for file in listed if pattern.search(file)] if found.get("pass_filenames", True) else []
    command = [*found["entry"].split(), *arguments, *files]
    return subprocess.run(
        [f"{BIN}/{command[0]}", *command[1:]], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_hook_for_sound_plans_finds_a_contradiction(repository):
    assert hook(repository, "heterps-compile-plan").returncode == 0
    document = json.loads((repository / "plan.json").read_text())
    document["decisions"]["stages"][1]["layers"][0]["name"] = "a"
    (repository / "plan.json").write_text(json.dumps(document))
    done = hook(repository, "heterps-compile-plan")
    assert done.returncode == 1
    assert names(done.stderr, "plan.json: decisions.stages[1].layers[0]", "'a'", "stage 0")


def test_the_hook_for_changes_compares_with_the_last_commit(repository):
    arguments = ("git:HEAD:plan.json", "plan.json", "--fail-on", "placement")
    assert hook(repository, "heterps-compile-diff", *arguments).returncode == 0
    (repository / "plan.json").write_text(to_json(OLD), "ascii")
    assert hook(repository, "heterps-compile-diff", *arguments).returncode == 1


@pytest.mark.slow  # commands in processes of their own
def test_the_recipe_for_any_other_ci_runs_as_it_stands(repository):
    (script,) = re.findall(r"```sh\n# any CI\n(.*?)```", RECIPE, re.DOTALL)
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "BASE": "HEAD~1"}
    command = ["sh", "-eu", "-c", script]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "layer b moved from cpu to v100" in done.stdout
    assert "fails on placement" in done.stdout
    git(repository, "checkout", "-q", "HEAD~1", "--", "plan.json")
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "The plans are the same.\n")


def test_every_workflow_in_the_recipe_is_sound_and_uses_inputs_that_exist():
    workflows = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", RECIPE, re.DOTALL)]
    uses = [
        s
        for w in workflows
        for job in w.get("jobs", {}).values()
        for s in job["steps"]
        if "heterps" in s.get("uses", "")
    ]
    assert uses
    assert {key for used in uses for key in used["with"]} <= set(ACTION["inputs"])
    named = {hook["id"] for w in workflows for repo in w.get("repos", []) for hook in repo["hooks"]}
    assert named == {hook["id"] for hook in HOOKS}
