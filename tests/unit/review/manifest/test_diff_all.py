"""``diff --all git:REV``: every plan of a manifest against a commit, models untouched."""

import subprocess
import sys
from pathlib import Path

import pytest
from plan_changes import drawn

from heterps_compile.cli.main import run
from heterps_compile.plan.file import to_json

OLD = to_json(drawn("1 cpu: a b | 1 v100: c"))
NEW = to_json(drawn("2 cpu: a | 1 v100: b c"))
MANIFEST = "".join(f'[[plan]]\nplan = "{name}"\n' for name in ("same.json", "changed.json", "folder", "new.json"))


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


@pytest.fixture(autouse=True)
def _repository(tmp_path, monkeypatch):
    """Make a repository of four plans, of which one is new since the commit, one is in a folder, and one changed."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for name in ("same.json", "changed.json", "folder/plan.json", "dropped.json"):
        Path(name).write_text(OLD)
    Path("heterps.toml").write_text(MANIFEST + '[[plan]]\nplan = "dropped.json"\n')
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    Path("heterps.toml").write_text(MANIFEST)
    for name in ("changed.json", "new.json"):
        Path(name).write_text(NEW)


def test_every_plan_has_its_line_also_the_new_and_the_dropped(capsys):
    assert run(["diff", "--all", "git:main"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "fine   same.json     the plans are the same",
        "fails  changed.json  changed: placement, replicas; price +1.63 %; cost, steady state +1.63 %; "
        "memory, all units +50 %",
        "fine   folder        the plans are the same",
        "fails  new.json      the plan is new: there is nothing to compare it with",
        "fails  dropped.json  the manifest names the plan no more; its file is still there",
    ]
    assert lines[6] == "5 plans: 2 fine, 3 fail."
    assert "placement  layer b moved from cpu to v100" in lines


def test_the_manifest_says_what_counts(capsys):
    for fail_on, code in (("price>5%", 0), ("placement", 1)):
        old = f'[defaults]\nfail_on = "{fail_on}"\n{MANIFEST}'
        Path("heterps.toml").write_text(old)
        git("commit", "-q", "-am", "limits")
        git("checkout", "-q", "HEAD~1", "--", "changed.json")
        git("commit", "-q", "--allow-empty", "-m", "as before")
        Path("changed.json").write_text(NEW)
        assert run(["diff", "--all", "git:HEAD"]) == code
    assert "fails on placement" in capsys.readouterr().out


def test_a_plan_on_neither_side_could_not_be_judged_and_one_that_is_gone_fails(capsys):
    Path("new.json").unlink()
    assert run(["diff", "--all", "git:main"]) == 2
    out = capsys.readouterr().out
    assert "not judged  new.json      there is no plan, neither here nor at git:main:new.json" in out
    Path("same.json").unlink()
    Path("heterps.toml").write_text('[[plan]]\nplan = "same.json"\n')
    assert run(["diff", "--all", "git:main"]) == 1
    assert "fails  same.json     the plan is gone, which the manifest names" in capsys.readouterr().out


def test_a_broken_plan_stops_no_other(capsys):
    Path("same.json").write_text("<<<<<<< HEAD\n")
    assert run(["diff", "--all", "git:main", "--format", "markdown"]) == 2
    out = capsys.readouterr().out
    assert "| same.json | **not judged** | same.json holds a merge conflict that is not resolved" in out
    assert "| folder | fine | the plans are the same |" in out


def test_from_another_folder_paths_are_still_the_manifests(monkeypatch, capsys):
    Path("ci").mkdir()
    monkeypatch.chdir("ci")
    assert run(["diff", "--manifest", "../heterps.toml", "git:main"]) == 1
    assert "fine   ../folder        the plans are the same" in capsys.readouterr().out


def test_a_manifest_of_then_that_cannot_be_read_is_told(capsys):
    Path("heterps.toml").write_text("[[plan]]\n")
    git("commit", "-q", "-am", "broken")
    Path("heterps.toml").write_text(MANIFEST)
    assert run(["diff", "--all", "git:HEAD"]) == 2
    assert "git:HEAD:heterps.toml" in capsys.readouterr().out
    git("rm", "-q", "--cached", "heterps.toml")
    git("commit", "-q", "-m", "none")
    assert run(["diff", "--all", "git:HEAD"]) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["main"], "'main' is not git:REV, such as git:main"),
        (["git:main:x"], "is not git:REV"),
        (["git:nowhere"], "no such commit"),
        (["git:-x"], "is not git:REV"),
        (["git:main", "new.json"], "The manifest names the plans; leave NEW out, or --all."),
        (["git:main", "--fail-on", "price"], "--fail-on is for two plans, and means nothing for --all"),
    ],
)
def test_wrong_usage_gives_2(words, said, capsys):
    assert run(["diff", "--all", *words]) == 2
    assert said in capsys.readouterr().err


def test_plans_alone_are_reviewed_without_anything_heavy():
    script = (
        "import sys; from heterps_compile.cli.main import run; "
        "codes = run(['diff', '--all', 'git:main']), run(['check', '--all']); "
        "heavy = {'torch', 'onnx', 'onnx_ir', 'onnxruntime', 'jax', 'rich', 'networkx'}; "
        "print(sorted(heavy & set(sys.modules)), *map(int, codes))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[] 1 0"
