"""Which ops the backends run, and what is said of a node that one does not."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import heterps_compile
from heterps_compile.backends.find import find_backend
from heterps_compile.backends.ops import ops_by_backend, refuse_unsupported
from heterps_compile.cli.main import run
from heterps_compile.errors import UnknownNameError, UnsupportedOpError
from heterps_compile.frontends.onnx import import_onnx


def model_with(path: Path, op: str) -> Path:
    """Write a matrix product and one more op."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy"]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.5] * 16)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node(op, ["a"], ["y"], name="last\x1b")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_an_op_that_a_table_lacks_is_told_before_any_search(tmp_path: Path) -> None:
    path = model_with(tmp_path / "draw.onnx", "Bernoulli")
    with pytest.raises(UnsupportedOpError) as caught:
        heterps_compile.compile(path, backend="jax")
    text = str(caught.value)
    assert r"the backend 'jax' cannot run 'draw': node 'last\x1b' is Bernoulli (ai.onnx, opset 18)" in text
    assert text.endswith("backends that support it: onnxruntime, torch")


def test_a_model_of_known_ops_passes(tmp_path: Path) -> None:
    graph = import_onnx(model_with(tmp_path / "relu.onnx", "Relu"))
    for name in ("torch", "onnxruntime", "jax"):
        refuse_unsupported(find_backend(name), graph)


def test_every_backend_lists_its_ops_with_their_opsets() -> None:
    found = ops_by_backend(["torch", "onnxruntime", "jax"])
    assert set(found["", "Softmax"]) == {"torch", "onnxruntime", "jax"}
    assert found["", "Softmax"]["torch"] == (1, 13)  # flat along the axis before 13
    assert list(found) == sorted(found, key=lambda op: (op[0], op[1].lower()))


def test_an_unknown_backend_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'torch'"):
        ops_by_backend(["torhc"])


def test_the_command_prints_a_row_an_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ops", "--backend", "torch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [row] = [line.split() for line in lines if line.startswith("LayerNormalization")]
    assert "17" in row
    assert lines[-1].startswith("ops: torch ")
