import json
import re
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterps_compile.cli.main import run


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Write a model of two matrix products with a free batch, and go where it is."""
    import numpy as np  # noqa: PLC0415 - beside its use

    monkeypatch.chdir(tmp_path)
    weights = [numpy_helper.from_array(np.eye(8, dtype=np.float32) / n, f"w{n}") for n in (1, 2)]
    nodes = [helper.make_node("MatMul", [x, w], [y]) for x, w, y in (("x", "w1", "h"), ("h", "w2", "y"))]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "two", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), "model.onnx")
    return "model.onnx"


QUICK = ["--batches", "2,4", "--repeats", "2", "--no-replicas", "--no-link"]


def test_a_profile_is_written_and_compile_takes_it(model, capfd):
    assert run(["profile", model, *QUICK, "-o", "p.json", "--cache", "c.json"]) == 0
    shown = capfd.readouterr().out
    assert re.search(r"cpu: inference, onnxruntime, 1 thread, by the cpu clock", shown)
    assert re.search(r"whole model at batch 4: .* add up to [0-9.]+ x the whole", shown)
    assert shown.endswith("written to p.json\n")
    document = json.loads(Path("p.json").read_text("ascii"))
    assert [point["batch"] for point in document["devices"][0]["layers"][0]["points"]] == [2, 4]
    assert len(document["devices"][0]["layers"]) == 1  # both layers are equal
    compiled = ["compile", model, "--batch", "3", "--profile", "cpu-core=p.json", "--method", "greedy", "--json"]
    assert run(compiled) == 0
    notes = json.loads(capfd.readouterr().out)["notes"]
    assert any(note.startswith("times of layers on 'cpu-core': 2 measured") for note in notes)
    assert any(note.startswith("times of layers on 'v100': 2 estimated") for note in notes)


def test_an_onnx_model_is_profiled_for_training_too(model, capfd):
    assert run(["profile", model, *QUICK, "--mode", "training"]) == 0
    assert "cpu: training, torch" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--batches", "0,1"], "is not a list of batches"),
        (["--batches", "one"], "is not a list of batches"),
        (["--batches", ",".join(map(str, range(1, 40)))], "39 batches are given"),
        (["--repeats", "1"], "--repeats"),
        (["--clock", "sun"], "--clock"),
    ],
)
def test_wrong_usage_is_told(model, arguments, told, capfd):
    assert run(["profile", model, *arguments]) == 2
    assert told in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-o", "no/such/folder/p.json"], "the folder of 'no/such/folder/p.json' does not exist"),
        (["-o", "."], "'.' is a folder"),
        (["--device", "cuda:99"], "there is no device 'cuda:99'"),
        (["--cache", "model.onnx"], "is none of a profile"),
        (["--clock", "cpu", "--threads", "2"], "the calling thread alone"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(model, arguments, told, capfd):
    assert run(["profile", model, *QUICK, *arguments]) == 1
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert told in error


def test_a_profile_that_is_none_stops_compile_before_its_work(model, capfd):
    Path("bad.json").write_text('{"format": "heterps-compile profile", "version": 1}', "ascii")
    assert run(["compile", model, "--batch", "3", "--profile", "cpu-core=bad.json"]) == 1
    assert "the profile 'bad.json'" in capfd.readouterr().err


def test_a_problem_file_of_the_largest_batch_is_planned(model, capfd):
    assert run(["profile", model, *QUICK, "--problem", "problem.json"]) == 0
    shown = capfd.readouterr().out
    assert "note: the file has neither other orders" in shown
    assert shown.endswith("written to profile.json and problem.json\n")
    document = json.loads(Path("problem.json").read_text("ascii"))
    assert document["batch"] == 4
    assert [device["name"] for device in document["pool"]["device"]] == ["core"]
    assert run(["problem.json", "--objective", "throughput", "-o", "out"]) == 0
    assert run(["predict", "problem.json", "--plan", "out/plan.json"]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--problem", "model.onnx"], "'model.onnx' exists"),
        (["--problem", "profile.json"], "is the profile's file too"),
        (["--problem", "no/such/folder/p.json"], "the folder of 'no/such/folder/p.json' does not exist"),
        (["--problem", "."], "'.' is a folder"),
        (["--problem", "p.json", "--cluster", "no-such"], "no-such"),
    ],
)
def test_a_problem_file_that_cannot_be_is_refused_before_measuring(model, arguments, told, capfd):
    assert run(["profile", model, *QUICK, *arguments]) == 1
    assert told in capfd.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["model.onnx"]


def test_a_pool_without_a_problem_file_means_nothing(model, capfd):
    assert run(["profile", model, *QUICK, "--cluster", "local"]) != 0
    assert "--problem" in capfd.readouterr().err
