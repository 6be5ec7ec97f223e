"""The command on a small model: what it prints and writes, and how it behaves among other commands."""

import json
import os
import pty
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from commands import cold_heterps, everything_in, heterps
from onnx_files import click_model, save

import heterps_compile

HEAVY = {"torch", "onnx", "onnx_ir", "onnxruntime", "jax", "networkx", "numpy", "pydantic", "rich"}
COMPILE = ("model.onnx", "--batch", "8", "--min-stages", "2", "--method", "greedy")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compile once; give the folder it was done in, and the finished process."""
    folder = tmp_path_factory.mktemp("compiled")
    save(click_model(), folder / "model.onnx")
    return folder, heterps(*COMPILE, cwd=folder)


@pytest.fixture
def workplace(tmp_path):
    save(click_model(), tmp_path / "model.onnx")
    return tmp_path


def test_help_loads_nothing_heavy():
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "heterps_compile", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "heterps_compile.cli.main" in loaded
    assert loaded & HEAVY == set()
    assert "machines" in run.stdout


def test_the_console_script_is_the_command():
    script = Path(sys.executable).parent / "heterps-compile"
    run = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"heterps-compile {heterps_compile.__version__}\n"


def test_a_model_compiles_with_no_word_too_much(compiled):
    folder, run = compiled
    assert (run.returncode, run.stderr) == (0, "")
    for text in ("layers", "replicas", "samples/s", "USD/h", "per million samples", "verified"):
        assert text in run.stdout
    assert "written to       model.heterps" in run.stdout
    assert sorted(os.listdir(folder)) == ["model.heterps", "model.onnx"]


def test_the_folder_has_a_plan_a_readme_and_an_artefact_per_stage(compiled):
    folder, _ = compiled
    plan = json.loads((folder / "model.heterps" / "plan.json").read_text())
    files = [artifact["file"] for stage in plan["artifacts"] for artifact in stage]
    assert len(plan["artifacts"]) == len(plan["decisions"]["stages"]) >= 2
    assert sorted(os.listdir(folder / "model.heterps")) == sorted(
        ["plan.json", "README.md", ".heterps-compile", *files]
    )


def test_the_stages_give_what_the_model_gives(compiled):
    folder, _ = compiled
    rng = np.random.default_rng(1)
    inputs = {
        "ids": rng.integers(0, 100, (8, 4)),
        "dense": rng.standard_normal((8, 16)).astype(np.float32),
    }
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    (found,) = heterps_compile.load(folder / "model.heterps").run(**inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_json_is_one_document_and_nothing_else(workplace):
    run = heterps(*COMPILE, "--json", cwd=workplace)
    document = json.loads(run.stdout)
    assert (run.returncode, run.stderr) == (0, "")
    assert {
        "method", "seed", "objective", "bound", "gap", "throughput_samples_per_s", "price_usd_per_hour",
        "usd_per_million_samples", "stages", "verification", "search_s", "total_s",
    } <= set(document)  # fmt: skip
    assert {"name", "value", "unit"} <= set(document["objective"])
    assert {"max_abs", "max_rel"} <= set(document["verification"])
    for stage in document["stages"]:
        assert {"device", "replicas", "layers", "time_s", "memory_bytes", "artifact"} <= set(stage)
        assert (workplace / "model.heterps" / stage["artifact"]).is_file()
    assert [layer["name"] for layer in document["layers"]] == [
        n for stage in document["stages"] for n in stage["layers"]
    ]


@pytest.mark.slow  # a fresh process imports everything
def test_the_same_twice_gives_the_same_bytes(workplace, compiled):
    other = workplace / "deep" / "er"
    other.mkdir(parents=True)
    shutil.copy(workplace / "model.onnx", other)
    assert cold_heterps(*COMPILE, cwd=other, PYTHONHASHSEED="4711").returncode == 0
    assert everything_in(other / "model.heterps") == everything_in(compiled[0] / "model.heterps")


def test_a_second_run_replaces_its_own_folder(workplace):
    assert heterps(*COMPILE, cwd=workplace).returncode == 0
    run = heterps(*COMPILE, "--seed", "5", "-q", cwd=workplace)
    assert (run.returncode, run.stdout, run.stderr) == (0, "model.heterps\n", "")
    plan = json.loads((workplace / "model.heterps" / "plan.json").read_text())
    assert plan["request"]["seed"] == 5


def test_drafts_are_printed_on_demand(workplace):
    run = heterps(*COMPILE, "--print-after", "group-layers", "--print-after", "provision", cwd=workplace)
    assert run.returncode == 0
    assert "after group-layers\n  3 layers of 7 nodes\n" in run.stdout
    assert "after provision\n" in run.stdout


@pytest.mark.slow  # a fresh process imports everything
def test_a_closed_pipe_is_quiet(workplace):
    line = f"{sys.executable} -m heterps_compile {' '.join(COMPILE)} --print-after pose-problem -v | head -n 1"
    run = subprocess.run(["bash", "-c", line], cwd=workplace, capture_output=True, text=True, check=True)
    assert run.stdout == "after pose-problem\n"
    assert run.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (" ".join(COMPILE), "cannot print the plan (the folder 'model.heterps' is written all the same)"),
        pytest.param(
            *(" ".join(COMPILE) + " --print-after group-layers", "cannot print the draft after group-layers"),
            marks=pytest.mark.slow,
        ),
        ("clusters", "cannot print the pools"),
    ],
)
def test_a_full_disk_under_stdout_is_one_clear_line(workplace, words, said):
    line = f"{sys.executable} -m heterps_compile {words} > /dev/full"
    run = subprocess.run(["bash", "-c", line], cwd=workplace, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (1, f"Error: {said}: No space left on device\n")


@pytest.mark.slow  # a fresh process imports everything
def test_progress_shows_on_a_terminal_alone(workplace):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "heterps_compile", *COMPILE],
        cwd=workplace,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end of a pty is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert b"place-layers" in shown
    assert shown.endswith(b"\r\x1b[K"), "the line is gone at the end"
    assert b"place-layers" not in out


INTERRUPT_WHILE_WRITING = """
    import os, signal, sys
    from heterps_compile.cli.main import run
    from heterps_compile.plan import folder

    def interrupted(_path):
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()

    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a script's background it is ignored
    folder._sha256 = interrupted
    sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("had_folder", [pytest.param(False, marks=pytest.mark.slow), True])
def test_ctrl_c_while_writing_leaves_what_was_there(workplace, had_folder):
    if had_folder:
        assert heterps(*COMPILE, cwd=workplace).returncode == 0
    before = everything_in(workplace)
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPT_WHILE_WRITING), *COMPILE, "--seed", "5"],
        cwd=workplace,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (130, "")
    assert run.stderr.strip() == "Interrupted."
    assert everything_in(workplace) == before
