"""Every bad input: one clear line on stderr, exit code 1, no traceback, nothing written."""

import os
from pathlib import Path

import pytest
from commands import everything_in, heterps
from onnx_files import click_model, cyclic, save, undefined_value, unknown_domain, unknown_op, with_external_weight
from wording import names

BATCH = ("--batch", "8")


def refused(folder: Path, *words: str | Path) -> str:
    """Run the command, which must refuse; give its message."""
    before = everything_in(folder)
    method = () if "--method" in words else ("--method", "greedy")  # quick: it needs no torch
    run = heterps(*words, *method, cwd=folder)
    assert run.returncode == 1, run.stderr
    assert run.stdout == ""
    assert run.stderr.startswith("Error: ")
    assert run.stderr.count("\n") == 1
    assert everything_in(folder) == before
    return run.stderr.removeprefix("Error: ").rstrip("\n")


def test_a_missing_file(tmp_path):
    assert "nowhere.onnx does not exist" in refused(tmp_path, "nowhere.onnx")


def test_a_folder(tmp_path):
    (tmp_path / "models").mkdir()
    assert "models is a directory" in refused(tmp_path, "models")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "empty"), (b"#!/bin/sh\necho hello\n", "ONNX"), (b"\x00" * 1000, "ONNX"), (b"\x89PNG\r\n\x1a\n", "ONNX")],
)
def test_a_file_that_is_no_model(tmp_path, content, said):
    (tmp_path / "model.onnx").write_bytes(content)
    message = refused(tmp_path, "model.onnx")
    assert "model.onnx" in message
    assert said in message


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_truncated_file(tmp_path, part):
    whole = click_model().SerializeToString()
    (tmp_path / "model.onnx").write_bytes(whole[: int(len(whole) * part)])
    assert "model.onnx" in refused(tmp_path, "model.onnx", *BATCH)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (cyclic(), ("cycl", "one")),
        (undefined_value(), ("ghost", "haunted")),
        (unknown_op(), ("Sigmoyd", "typo", "Sigmoid")),
        (unknown_domain(), ("com.nobody", "Magic", "spell")),
        (with_external_weight(click_model(), "weights.bin"), ("weights.bin", "table")),
        (with_external_weight(click_model(), "../outside.bin"), ("../outside.bin", "table")),
        (with_external_weight(click_model(), "/etc/hostname"), ("/etc/hostname", "table")),
    ],
)
def test_a_model_that_is_wrong_inside(tmp_path, model, said):
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "outside.bin").write_bytes(b"\0" * 4096)
    save(model, place / "model.onnx")
    message = refused(place, "model.onnx", *BATCH)
    for text in said:
        assert text in message


@pytest.fixture
def workplace(tmp_path):
    save(click_model(), tmp_path / "model.onnx")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cluster", "missing.toml"), ("missing.toml", "No such file")),
        (("--pin", "nothing-like-it=cpu-core"), ("'nothing-like-it'",)),
        (("--print-after", "group"), ("unknown pass 'group'", "did you mean 'group-layers'?")),
        (("--min-stages", "50"), ("50",)),
        (("-o", "model.onnx/out"), ("cannot write the folder", "Not a directory")),
        (("-o", "/proc/out"), ("cannot write the folder '/proc/out'",)),
    ],
)
def test_a_request_that_cannot_be(workplace, words, said):
    message = refused(workplace, "model.onnx", *BATCH, *words)
    for text in said:
        assert text in message


def test_a_floor_that_cannot_be_met_names_the_layer_and_what_can(workplace):
    message = refused(workplace, "model.onnx", *BATCH, "--min-throughput", "1e15", "--method", "exact")
    assert "samples/s" in message
    assert any(layer in message for layer in ("embedding", "fc1", "fc2"))


def test_a_folder_of_somebody_else_is_kept(workplace):
    (workplace / "out").mkdir()
    (workplace / "out" / "thesis.tex").write_text("years")
    assert "was not written by heterps-compile" in refused(workplace, "model.onnx", *BATCH, "-o", "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_parent_that_may_not_be_written(workplace):
    (workplace / "locked").mkdir(mode=0o555)
    assert "Permission denied" in refused(workplace, "model.onnx", *BATCH, "-o", "locked/out")


def test_a_hostile_name_never_reaches_the_terminal(tmp_path):
    model = undefined_value()
    model.graph.node[-1].input[1] = "gh\x1b[2Jost\nError: forged"
    save(model, tmp_path / "model.onnx")
    message = refused(tmp_path, "model.onnx", *BATCH)
    assert message.isprintable()
    assert r"\x1b[2J" in message


def test_wrong_usage_ends_with_2(workplace):
    run = heterps("model.onnx", "--batch", "many", cwd=workplace)
    assert run.returncode == 2
    assert names(run.stderr, "'many'", " 1")
    assert run.stdout == ""
