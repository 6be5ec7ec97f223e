"""An ONNX model becomes a graph: parameters by storage and kind, modules by name, names as they are."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from staged_onnx import parse, read

from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.laws import verify_graph

HOSTILE = ("../../etc/passwd", '"; import os; #', "a\nb", "n" * 10_000, "слой\u202e", "x y", "")


def with_weights(text: str, **arrays: np.ndarray) -> onnx.ModelProto:
    model = parse(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def test_a_model_in_memory_has_its_own_name_or_the_callers() -> None:
    model = parse("mine (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert (import_onnx(model).name, import_onnx(model, name="yours").name) == ("mine", "yours")


def test_parameters_are_weights_buffers_or_constants() -> None:
    vector = np.ones(3, np.float32)
    text = "g (float[2,3] x) => (y) { n = BatchNormalization(x, s, b, m, v) t = Mul(n, two) y = Reshape(t, to) }"
    model = with_weights(
        text,
        s=vector, b=vector, m=vector, v=vector, two=np.float32(2), to=np.array([2, 3]),
    )  # fmt: skip
    kinds = {parameter.name: parameter.kind for parameter in import_onnx(model).parameters.values()}
    assert kinds == {
        "s": "weight",
        "b": "weight",
        "m": "buffer",
        "v": "buffer",
        "two": "constant",
        "to": "constant",
    }


def test_weights_in_one_place_of_the_external_data_are_tied(tmp_path: Path) -> None:
    model = parse("g (int64[5] i, float[2,4] x) => (float[5,4] e, float[2,9] y) { e = Gather(a, i) y = MatMul(x, b) }")
    for name, dims, offset in (("a", [9, 4], 0), ("b", [4, 9], 0)):
        tensor = model.graph.initializer.add(name=name, dims=dims, data_type=1, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="./w.data" if name == "a" else "w.data")
        tensor.external_data.add(key="offset", value=str(offset))
    (tmp_path / "w.data").write_bytes(bytes(4 * 36))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    graph = import_onnx(tmp_path / "m.onnx")
    assert graph.tied == {"a": ("a", "b")}  # under the first one's name, as all tied tensors are


def test_a_transposed_weight_is_tied_to_the_weight() -> None:
    text = """g (int64[5] i, float[2,4] x) => (float[5,4] e, float[2,9] y) {
        e = Gather(table, i)
        turned = Transpose(table)
        y = MatMul(x, turned)
    }"""
    graph = import_onnx(with_weights(text, table=np.ones((9, 4), np.float32)))
    assert list(graph.tied.values()) == [("table", "turned")]
    assert [node.kind.value for node in graph.nodes] == ["embedding", "gemm"]


def test_equal_weights_in_two_places_are_not_tied() -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { t = MatMul(x, v) y = MatMul(t, w) }"
    graph = import_onnx(with_weights(text, v=np.ones((3, 3), np.float32), w=np.ones((3, 3), np.float32)))
    assert graph.tied == {}


def test_module_paths_come_from_the_exporters_metadata_or_from_scoped_names() -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) y = Relu(b) }")
    first, second, third = model.graph.node
    first.metadata_props.add(
        key="pkg.torch.onnx.name_scopes", value="['', 'encoder', 'encoder.layer.1', 'encoder.layer.1.mlp', 'relu_3']"
    )
    second.name, third.name = "/encoder/layer.0/attention/Relu", "plain"
    paths = [node.module_path for node in import_onnx(model).nodes]
    assert paths == ["encoder.layer.1.mlp", "encoder.layer.0.attention", ""]


def test_origins_count_the_nodes_of_the_source() -> None:
    graph = read("""g (float[2] x) => (float[2] y) {
        dead = Neg(x)
        one = Constant<value = float[2] {1.0, 1.0}>()
        a = Add(x, one)
        y = Relu(a)
    }""")
    nodes = list(graph.source.model.graph)
    assert [nodes[node.origin].op_type for node in graph.nodes] == [node.op for node in graph.nodes] == ["Add", "Relu"]


def test_absent_optional_inputs_are_left_out() -> None:
    graph = import_onnx(with_weights("g (float[2] x) => (float[2] y) { y = Clip(x, , top) }", top=np.float32(1)))
    assert graph.nodes[0].inputs == ("x", "top")


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_data(name: str) -> None:
    model = parse("g (float[N] x) => (float[N] y) { t = MatMul(x, w) y = Relu(t) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2), np.float32), f"w{name}"))
    model.graph.name = name
    model.graph.input[0].name = f"x{name}"
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = f"N{name}"
    product, relu = model.graph.node
    product.name = relu.name = name
    product.input[:] = [f"x{name}", f"w{name}"]
    product.output[0] = relu.input[0] = f"t{name}"
    graph = import_onnx(model, shapes={f"N{name}": 2})
    verify_graph(graph)
    assert graph.nodes[0].inputs == (f"x{name}", f"w{name}")
    assert len({node.name for node in graph.nodes}) == 2


def test_messages_show_hostile_names_on_one_short_line() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.node[0].input[0] = "evil\n\x1b[2J" + "n" * 10_000
    with pytest.raises(Exception, match="evil") as caught:
        import_onnx(model)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
