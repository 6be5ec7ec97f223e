"""Loading a folder that somebody else may have written: what runs, and what is refused before it does."""

import hashlib
import json
import shutil
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import heterps_compile
from heterps_compile.cli.main import run as command
from heterps_compile.errors import BackendError, InputError, StalePlanError
from heterps_compile.plan.readme import readme


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> Path:
    """Return a folder whose stages are Python."""
    folder = tmp_path_factory.mktemp("code") / "out"
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    heterps_compile.compile(model, (torch.zeros(2, 4),), method="greedy", verify=False).save(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Return a folder whose stages are ONNX."""
    folder = tmp_path_factory.mktemp("data")
    weights = numpy_helper.from_array(torch.ones(4, 2).numpy(), "w")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, k]) for n, k in (("x", 4), ("y", 2))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), folder / "m.onnx")
    heterps_compile.compile(folder / "m.onnx", method="greedy", verify=False).save(folder / "out")
    return folder / "out"


def by_a_stranger(folder: Path, target: Path, stage: str, change) -> Path:
    """Copy a folder, change the file of its stage, and put the hash right, as anybody can."""
    shutil.copytree(folder, target)
    change(target / stage)
    plan = json.loads((target / "plan.json").read_text())
    old = hashlib.sha256((folder / stage).read_bytes()).hexdigest()
    text = json.dumps(plan, indent=2).replace(old, hashlib.sha256((target / stage).read_bytes()).hexdigest())
    (target / "plan.json").write_text(text)
    return target


def hash_of(folder: Path) -> str:
    return hashlib.sha256((folder / "plan.json").read_bytes()).hexdigest()


def test_a_strangers_code_runs_unless_the_hash_of_the_plan_or_its_being_code_refuses_it(code, tmp_path):
    ran = tmp_path / "ran"

    def plant(stage: Path) -> None:
        stage.write_text(f"open({str(ran)!r}, 'w').close()\n{stage.read_text()}")

    changed = by_a_stranger(code, tmp_path / "out", "stage_0.py", plant)
    with pytest.raises(StalePlanError, match=f"{hash_of(code)}"):
        heterps_compile.load(changed, expect_sha256=hash_of(code))
    with pytest.raises(InputError, match=r"stage 0\b.*stage_0.py.*'torch'"):
        heterps_compile.load(changed, trust="data")
    assert not ran.exists()
    heterps_compile.load(changed)  # as the docstring says
    assert ran.exists()


def test_the_expected_folder_loads(code, data):
    heterps_compile.load(code, expect_sha256=hash_of(code).upper())
    heterps_compile.load(data, expect_sha256=hash_of(data), trust="data")


@pytest.mark.parametrize("hexadecimal", ["", "abc", "z" * 64, "0" * 63, "0" * 65])
def test_what_is_no_hash_is_told(code, hexadecimal):
    with pytest.raises(InputError, match=r"SHA-256.*\b64\b"):
        heterps_compile.load(code, expect_sha256=hexadecimal)


@pytest.mark.parametrize("place", ["/etc/passwd", "../secret", "plan.json", "stage_0.onnx", ""])
@pytest.mark.parametrize("inside", [False, True])
def test_an_onnx_stage_reads_no_file_that_is_not_its_own(data, tmp_path, place, inside):
    def point(stage: Path) -> None:
        model = onnx.load(stage)
        (tensor,) = model.graph.initializer
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=place)
        if inside:  # a graph in an attribute of a node
            branch = helper.make_graph([], "branch", [], [], [tensor])
            model.graph.node.append(helper.make_node("If", [], [], then_branch=branch, else_branch=branch))
            del model.graph.initializer[:]
        stage.write_bytes(model.SerializeToString())

    changed = by_a_stranger(data, tmp_path / "out", "stage_0.onnx", point)
    with pytest.raises(BackendError, match=r"stage 0\b.*'w'"):
        heterps_compile.load(changed, trust="data")


def test_the_command_refuses_before_anything_runs_and_says_the_hash(code, capsys):
    words = ["run", str(code), "--data", "random", "--expect-sha256"]
    assert command([*words, "0" * 64]) == 1
    assert command([*words, "0" * 10]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert f"has the SHA-256 {hash_of(code)}, expected {'0' * 64}" in first
    assert "is no SHA-256" in second
    assert command(["show", str(code), "-v"]) == 0
    assert hash_of(code) in capsys.readouterr().out


def test_the_folder_says_that_it_is_code_where_it_is(code, data):
    plans = [heterps_compile.load(folder).plan for folder in (code, data)]
    assert ["loading runs it" in readme(plan) for plan in plans] == [True, False]
    assert all("finds damage and no malice" in readme(plan) for plan in plans)
