"""``heterps-compile diff``: exit codes, formats, where plans are read from."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plan_changes import drawn
from plans import PLAN
from wording import names

import heterps_compile
from heterps_compile.cli.main import run
from heterps_compile.plan.file import to_json
from heterps_compile.plan.plan import Plan

OLD = drawn("1 cpu: a b | 1 v100: c")
NEW = drawn("2 cpu: a | 1 v100: b c")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("old.json", OLD)
    save("new.json", NEW)


def save(name: str, plan: Plan) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(to_json(plan), "ascii")


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository() -> None:
    """Make this folder a repository whose last commit has the old plan as a file and in a folder."""
    save("model.heterps/plan.json", OLD)
    save("odd: name/plan.json", OLD)
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    save("model.heterps/plan.json", NEW)


@pytest.mark.parametrize(
    ("fail_on", "code"),
    [("placement", 1), ("stages", 0), ("price>5%", 0), ("price>1%,stages", 1), ("throughput<-2%", 0)],
)
def test_what_counts_as_changed_is_a_choice(capsys, fail_on, code):
    assert run(["diff", "old.json", "new.json", "--fail-on", fail_on]) == code
    assert ("fails on" in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["old.json"], "Missing argument 'NEW'"),
        (["old.json", "new.json", "--format", "xml"], "'xml' is not one of"),
        (["old.json", "new.json", "--fail-on", "prize>5%"], "unknown change to fail on 'prize'; did you mean 'price'?"),
        (["old.json", "missing.json"], "there is no plan at 'missing.json'"),
        (["empty", "new.json"], "there is no plan at 'empty'"),
        (["broken.json", "new.json"], "broken.json is not JSON"),
        (["old.json", "binary.json"], "cannot read the plan 'binary.json': it is no UTF-8 text"),
        (["a\0b", "new.json"], "cannot read the plan 'a\\x00b'"),
    ],
)
def test_what_cannot_be_compared_gives_2(capsys, arguments, said):
    Path("empty").mkdir()
    Path("broken.json").write_text(to_json(OLD)[:-9])
    Path("binary.json").write_bytes(b"\xff\xfe")
    assert run(["diff", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("repository")
def test_a_plan_may_be_read_from_a_commit(capsys):
    for old in (
        "git:HEAD:model.heterps",
        "git:main:model.heterps/plan.json",
        "git:HEAD:odd: name",
        "git:HEAD:./old.json",
    ):
        assert run(["diff", old, "model.heterps"]) == 1
        assert run(["diff", old, "old.json"]) == 0
    capsys.readouterr()


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("git:HEAD", "is not git:REV:PATH"),
        ("git::plan.json", "is not git:REV:PATH"),
        ("git:--output=x:plan.json", "is not git:REV:PATH"),
        ("git:nowhere:plan.json", "no such commit"),
        ("git:$(touch pwned):plan.json", "no such commit"),
        ("git:HEAD:plan.json; touch pwned", "has no plan at"),
        ("git:HEAD:--help", "has no plan at"),
        ("git:HEAD:missing.json", "the commit 'HEAD' has no plan at 'missing.json'"),
    ],
)
def test_a_commit_without_a_plan_gives_2_and_nothing_is_run(capsys, old, said):
    assert run(["diff", old, "new.json"]) == 2
    assert said in capsys.readouterr().err
    assert not Path("pwned").exists()


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(("fail_on", "code"), [([], 1), (["--fail-on", "placement"], 0)])
def test_a_plan_that_its_path_in_the_commit_does_not_have_is_new(capsys, fail_on, code):
    save("fresh.json", NEW)
    assert run(["diff", "git:HEAD:fresh.json", "./fresh.json", *fail_on]) == code
    assert "fresh.json  the plan is new: there is nothing to compare it with\n" in capsys.readouterr().out
    assert run(["diff", "git:HEAD:fresh.json", "fresh.json", *fail_on, "--format", "json"]) == code
    assert json.loads(capsys.readouterr().out)["plans"][0]["changed"]
    assert run(["diff", "git:HEAD:fresh.json", "fresh.json", *fail_on, "--report", "page.html"]) == code
    assert names(capsys.readouterr().err, "note: 'page.html'")
    assert run(["diff", "git:HEAD:frsh.json", "fresh.json", *fail_on]) == 2  # misspelled
    assert names(capsys.readouterr().err, "'HEAD'", "'frsh.json'")


@pytest.mark.usefixtures("repository")
def test_a_link_in_a_commit_is_not_followed(capsys):
    os.symlink("/etc/passwd", "link.json")
    git("add", "link.json")
    git("commit", "-q", "-m", "link")
    assert run(["diff", "git:HEAD:link.json", "new.json"]) == 2
    assert names(capsys.readouterr().err, "'link.json'")


def test_outside_a_repository_that_is_said(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert run(["diff", "git:HEAD:plan.json", "new.json"]) == 2
    assert names(capsys.readouterr().err, "git repository")


@pytest.mark.parametrize("form", ["json", "markdown", "github"])
def test_other_formats_are_printed_alone(capsys, form):
    assert run(["diff", "old.json", "new.json", "--format", form]) == 1
    out = capsys.readouterr().out
    assert out.startswith({"json": "{", "markdown": "### Placement plan", "github": "::warning file=new.json,"}[form])
    if form == "json":
        assert json.loads(out)["moved"][0]["layer"] == "b"


def test_a_page_shows_both_plans_and_what_changed(capsys):
    assert run(["diff", "old.json", "new.json", "--report", "changes.html"]) == 1
    page = Path("changes.html").read_text("utf-8")
    assert "layer b moved from cpu to v100" in capsys.readouterr().out
    assert "layer b moved from cpu to v100" in page
    for section in ("changes", "layers", "layers-before", "numbers", "timeline", "memory", "price", "stages"):
        assert f'<section id="{section}"' in page
    assert (
        page.count('class="layer"') == 2 * 3
    )  # those of the new plan can be chosen, in the wide and the narrow picture
    assert "b: was on cpu" in page
    assert "b: moved to v100" in page


@pytest.mark.parametrize(
    ("report", "said"),
    [("no/changes.html", "its folder does not exist; make it first"), (".", "is a folder; expected a file to write")],
)
def test_a_page_that_cannot_be_written_gives_2_before_anything_is_printed(capsys, report, said):
    assert run(["diff", "old.json", "new.json", "--report", report]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_comparing_imports_nothing_heavy():
    script = (
        "import sys; from heterps_compile.cli.main import run; code = run(['diff', 'old.json', 'new.json']); "
        "heavy = {'torch', 'onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'rich', 'networkx'}; "
        "print(sorted(heavy & set(sys.modules)), code)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[] 1"


def test_the_library_compares_plans_and_paths_alike():
    assert heterps_compile.diff("old.json", NEW) == heterps_compile.diff(OLD, Path("new.json"))
    assert heterps_compile.diff(PLAN, PLAN).is_empty
