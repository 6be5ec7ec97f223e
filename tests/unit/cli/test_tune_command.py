"""What is wrong with a call of ``tune`` is one sentence, and nothing is written."""

from pathlib import Path

import pytest

from heterps_compile.cli.main import run

BEGIN = ["tune", "space.toml", "--model", "model.py", "--train", "train.py", "--metric", "auc", "--max", "-o", "search"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with the files of a search."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.toml").write_text("[train]\nlr = { float = [0.1, 1.0] }\n")
    (tmp_path / "model.py").write_text("def build(config): ...\n")
    (tmp_path / "train.py").write_text(
        "def loss(outputs, batch): ...\ndef optimizer(parameters): ...\ndef metrics(outputs, batch): ...\n"
        "def data(): ...\ndef validation_data(): ...\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["tune"], 2, "tune needs a space: name its file, SPACE.toml"),
        ([*BEGIN[:-2]], 2, "tune needs -o DIR"),
        ([*BEGIN, "--min"], 2, "--max and --min contradict each other"),
        ([word for word in BEGIN if word != "--max"], 2, "--metric auc does not say which value is the best"),
        (["tune", "--resume"], 2, "--resume means nothing without -o"),
        (["tune", "space.toml", "--show", "search"], 2, "a search that is shown has its space; leave space.toml out"),
        (["tune", "--show", "a", "--resume", "-o", "b"], 2, "-o is for a search that begins and a search that goes on"),
        (["tune", "--resume", "-o", "search"], 1, "is no folder of a search: it has no search.json"),
        ([*BEGIN, "--budget", "5 USD"], 1, "--budget means nothing where all workers are free"),
        ([*BEGIN, "--data", "clicks.parquet"], 1, "leave --data out"),
        ([*BEGIN, "--pool", "none.toml"], 1, "cannot read the cluster file 'none.toml'"),
        (
            [*BEGIN, "--address", "here:1"],
            2,
            "--address names a cluster of Ray, and means nothing without --engine ray",
        ),
        ([*BEGIN, "--report", "none/page.html"], 1, "none"),
    ],
)
def test_a_call_that_makes_no_search_is_one_sentence(folder, capfd, words, code, said):
    before = sorted(folder.iterdir())
    assert run(words) == code
    out, err = capfd.readouterr()
    assert said in err
    assert err.count("Error: ") == 1
    assert "Traceback" not in err
    assert (out, sorted(folder.iterdir())) == ("", before)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("", "the space is empty"),
        ('[train]\na = 1\n[[forbidden]]\n"train.a" = 1\n', "configurations drawn in a row were forbidden"),
        ("\x1b[31m", "no TOML"),
    ],
)
def test_a_space_that_is_empty_or_contradicts_itself_is_one_sentence(folder, capfd, space, said):
    (folder / "space.toml").write_text(space)
    assert run(BEGIN) == 1
    err = capfd.readouterr().err
    assert err.startswith("Error: ")
    assert said in err
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert not (folder / "search").exists()
