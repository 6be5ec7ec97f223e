import pytest
from plans import PLAN

from heterps_compile.cli.main import run
from heterps_compile.cluster.load import load_cluster, pool_text
from heterps_compile.conflict_markers import unmerged
from heterps_compile.cost.profile_file import read_profile
from heterps_compile.errors import InputError, PlanError
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.problem_file.workload_file import read_workload
from heterps_compile.review.manifest.manifest_file import read_manifest
from heterps_compile.runtime.launch.training_file import parse_training_file

SIDES = ["<<<<<<< HEAD", '  "version": 2,', "=======", '  "version": 1,', ">>>>>>> other"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> other\n", "'<<<<<<< HEAD' at line 2, and 2 more markers below"),
        ("=======\n>>>>>>> a\n", "'=======' at line 1, and 1 more marker below"),
        (">>>>>>> \x1b[2J", r"'>>>>>>> \x1b[2J' at line 1;"),
    ],
)
def test_the_first_marker_is_named_with_its_line(text, said):
    assert said in unmerged(text)


@pytest.mark.parametrize("text", ["", "{}", '"<<<<<<< HEAD"', " <<<<<<< HEAD", "======== title", "<<<<<<<HEAD"])
def test_what_git_does_not_write_is_none(text):
    assert unmerged(text) == ""


READERS = {
    "plan.json": (to_json(PLAN), lambda path: from_json(path.read_text(), path.name)),
    "pool.toml": (pool_text("heterps-paper"), load_cluster),
    "heterps.toml": ('[[plan]]\nplan = "p.json"\n', lambda path: read_manifest(str(path))),
    "profile.json": ("{\n}", read_profile),
    "workload.json": ("{\n}", read_workload),
    "profile.txt": ("node1 -- a\n", lambda path: read_workload(path, accelerators=1)),
    "train.py": ("def loss(outputs, batch):\n    return 0\n", parse_training_file),
}
"""Every kind of text file that people write, or keep in a repository, with what reads it."""


@pytest.mark.parametrize("name", READERS)
def test_every_reader_names_the_marker_and_its_line(name, tmp_path):
    text, read = READERS[name]
    first, *rest = text.split("\n")
    path = tmp_path / name
    path.write_text("\n".join([first, *SIDES, *rest]))
    path.chmod(0o600)
    with pytest.raises((InputError, PlanError), match=r"conflict.*resolved.*line 2\b"):
        read(path)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["show", "bad.json"], 1),
        (["diff", "bad.json", "good.json"], 2),
        (["check", "m.onnx", "--against", "bad.json"], 2),
        (["explain", "fc1", "--model", "m.onnx", "--plan", "bad.json"], 1),
        (["simulate", "bad.json"], 1),
        (["simulate", "good.json", "--cluster", "bad.toml"], 1),
        (["clusters", "check", "bad.toml"], 1),
    ],
)
def test_every_command_that_reads_such_a_file_names_it(words, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    good = to_json(PLAN)
    (tmp_path / "good.json").write_text(good)
    (tmp_path / "bad.json").write_text("\n".join(["{", *SIDES, *good.splitlines()[2:]]))
    (tmp_path / "bad.toml").write_text(pool_text("heterps-paper") + "\n".join(["", *SIDES]))
    assert run(words) == code
    said = capsys.readouterr().err
    line = 2 if "bad.json" in said else pool_text("heterps-paper").count("\n") + 2
    assert f"holds a merge conflict that is not resolved: '<<<<<<< HEAD' at line {line}, and 2 more" in said
