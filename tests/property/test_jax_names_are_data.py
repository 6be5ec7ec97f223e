"""Whatever a model's values and weights are called, the written jax stage is right, and a name is only a name."""

import ast
import tempfile
from pathlib import Path

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from staged_jax import BACKEND, run
from staged_onnx import cut_evenly

from heterps_compile.frontends.onnx import import_onnx

HOSTILE = (
    '"; import os; os.system("x") #', "'''", '"""', "../../etc/passwd", "a\nb", "a\r\nimport os", "\\",
    "\\N{DIGIT ONE}",
    "{params}", "@@STAGE@@", "lambda", "params", "stage", "load", "jnp", "np", "jax", "add", "conv", "INPUTS", "Array",
    "x.y", "x_y", "x-y", "é", "変数", "\u202e", "0", "__class__", "a" * 10_000, "None", "print",
)  # fmt: skip
NAMES = st.sampled_from(HOSTILE) | st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=12
)
X = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(NAMES, min_size=6, max_size=6, unique=True), NAMES)
def test_a_name_is_only_a_name(names: list[str], node: str) -> None:
    x, w, b, product, moved, y = names
    nodes = [
        helper.make_node("MatMul", [x, w], [product], name=node),
        helper.make_node("Add", [product, b], [moved], name=f"{node}2"),
        helper.make_node("Softmax", [moved], [y], name=f"{node}3"),
    ]
    weights = [
        numpy_helper.from_array(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), w),
        numpy_helper.from_array(np.array([0.5, -0.5], np.float32), b),
    ]
    made = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, [2, 2])],
        [helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, [2, 2])], weights,
    )  # fmt: skip
    graph = import_onnx(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    partition = cut_evenly(graph, 2)
    logits = X @ np.array([[1, 2], [3, 4]], np.float32) + np.array([0.5, -0.5], np.float32)
    shares = np.exp(logits - logits.max(1, keepdims=True))
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "out"
        folder.mkdir()
        files = BACKEND.write(graph, BACKEND.build(graph, partition), partition.stages, folder)
        assert [path.name for path in Path(root).iterdir()] == ["out"]
        assert sorted(path.name for path in folder.iterdir()) == sorted(name for names in files for name in names)
        for source, _ in files:
            text = (folder / source).read_text("ascii")
            assert not [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import) and n.names[0].name == "os"]
        stages = BACKEND.read(folder, files, partition.stages)
        (found,) = run(graph, partition, stages, {graph.inputs[0]: X})
    np.testing.assert_allclose(found, shares / shares.sum(1, keepdims=True), rtol=1e-5)
