"""Every line that a command prints on a terminal fits it; in a pipe a sentence is one line.

Left out: lines that are copied as a whole (``launch``), documents for programs and for pages.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from plans import PLAN, with_stage
from test_tiny import tiny_onnx

from heterps_compile.cli.main import command, run
from heterps_compile.fit_lines import cells, fit_lines
from heterps_compile.plan.file import to_json

POOL = Path(__file__).parents[3] / "heterps_compile/cluster/pools/heterps-paper.toml"
LONG = "a_layer_of_a_model_that_somebody_gave_a_name_as_long_as_this_one/and_a_path_in_front_of_it/weight"
SEARCHED = (
    "tiny.onnx --force --batch 64 --method greedy --min-throughput 1000000",
    "-v tiny.onnx --force --batch 64 --method greedy",
    "tiny.onnx --batch 64 --min-throughput 1e12",
    "check tiny.onnx --against tiny.heterps",
    "check tiny.onnx --against tiny.heterps --cluster dear.toml",
    "check tiny.onnx --against plan.json --cluster dear.toml",
    "explain fc --plan tiny.heterps --model tiny.onnx",
    "explain --pin emb=v100 --plan tiny.heterps --model tiny.onnx",
    "explain --infeasible --model tiny.onnx --batch 64 --min-throughput 1e12",
    "check --all",
    "update --all",
    "advise tiny.onnx --gpu v100 --speed-up 2 --batch 64",
)
READ = (
    "check --against plan.json",
    "check --against other.json --cluster edge",
    "diff plan.json other.json --fail-on price>1%",
    "diff plan.json plan.json",
    "show -v plan.json",
    "show -v other.json",
    "show nothing.json",
    "show --schena",
    "explain fc --plan plan.json",
    f"explain {LONG} --plan other.json",
    "simulate plan.json",
    "simulate other.json",
    "clusters",
    "clusters show cloud-mix",
    "clusters check dear.toml",
    "offers",
    "offers --gpu b100",
    "ops --backend onnxruntime",
    "nothing.onnx --cluster no-pool",
)
MANIFEST = """
[[plan]]
plan = "tiny.heterps"
model = "tiny.onnx"
cluster = "dear.toml"
tolerance = 0.0
[[plan]]
plan = "nothing.json"
"""


@pytest.fixture
def _here(tmp_path, monkeypatch):
    """Work in a folder with a model, its plan, another with long names, a dearer pool, and a manifest."""
    monkeypatch.chdir(tmp_path)
    tiny_onnx(tmp_path / "tiny.onnx")
    other = with_stage(PLAN, 0, layers=(LONG, *(f"{LONG}_{i}" for i in range(20))))
    Path("plan.json").write_text(to_json(PLAN), "ascii")
    Path("other.json").write_text(to_json(replace(other, fingerprints={}, notes=(f"of {LONG}",))), "ascii")
    Path("heterps.toml").write_text(MANIFEST)
    Path("dear.toml").write_text(POOL.read_text("utf-8").replace("0.04 USD/h", "4 USD/h"))


def misfits(capsys, monkeypatch, commands, columns):
    """Return the lines of commands that are wider than so many columns, or end in spaces."""
    monkeypatch.setenv("COLUMNS", str(columns))
    found = []
    for words in commands:
        run(words.split())
        lines = "".join(capsys.readouterr()).splitlines()
        assert lines, words
        wide = (line for line in lines if cells(line) > columns and " " in line.strip())  # one word is not broken
        found += [(words, line) for line in (*wide, *(line for line in lines if line.endswith(" ")))]
    return found


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_what_commands_print_of_plans_and_pools_fits(capsys, monkeypatch, columns):
    assert misfits(capsys, monkeypatch, READ, columns) == []


@pytest.mark.usefixtures("_here")
def test_what_commands_print_of_models_fits(capsys, monkeypatch):
    assert misfits(capsys, monkeypatch, SEARCHED, 80) == []


@pytest.mark.parametrize("name", command.commands)
def test_help_fits(capsys, monkeypatch, name):
    assert misfits(capsys, monkeypatch, [f"{name} --help"], 80) == []


@pytest.mark.usefixtures("_here")
def test_in_a_pipe_a_sentence_is_one_line(capsys):
    run(["explain", "fx", "--plan", "other.json"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: unknown layer 'fx'")
    assert len(line) > 200
    run(["show", "other.json"])
    assert f"note: of {LONG}" in capsys.readouterr().out.splitlines()


TEXT = "note: the plan uses 5 GiB of memory"


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        (f"{TEXT}s, and {TEXT}", 40, [f"{TEXT}s,", "      and note: the plan uses 5 GiB of", "      memory"]),
        ("at most and whatever follows it 1,000 MiB/s", 40, ["at most and whatever follows it", "1,000 MiB/s"]),
        (TEXT, None, [TEXT]),
        (TEXT, 10, [TEXT]),  # 40 columns at least
        ("stage  " + "word " * 9, 40, ["stage  " + "word " * 5 + "word", "       word word word"]),
        ("see " + "x" * 50 + " here", 40, ["see", "x" * 50, "here"]),
        ("層" * 15 + " " + "層" * 10, 40, ["層" * 15, "層" * 10]),
    ],
)
def test_lines_break_between_words_and_not_before_a_unit(text, width, lines):
    assert fit_lines(text, width).splitlines() == lines
