"""A model file is hostile until read: each fault has one clear message, and no byte outside the folder is touched."""

import os
import random
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from staged_onnx import BACKEND, parse, run_whole

from heterps_compile.errors import GraphError, HeterpsError, InputError
from heterps_compile.frontends.onnx import import_onnx

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


def small(location: str = "w.data", **where: int | str) -> onnx.ModelProto:
    """Return a model whose weight lies in external data."""
    weight = TensorProto(name="w", dims=WEIGHT.shape, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **where}.items():
        weight.external_data.add(key=key, value=str(value))
    model = parse("g (float[2,3] x) => (float[2,4] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(weight)
    return model


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def message(model: object) -> str:
    with pytest.raises(HeterpsError) as caught:
        import_onnx(model)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert message(tmp_path / "no.onnx") == f"InputError: {tmp_path}/no.onnx does not exist; expected an ONNX file"


def test_a_directory_is_no_model(tmp_path: Path) -> None:
    assert message(str(tmp_path)) == f"InputError: {tmp_path} is a directory; expected an ONNX file"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is a pipe" in message(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is empty (0 bytes)"),
        (b"hello, this is a text", "no ONNX file, or is cut short"),
        (small().SerializeToString()[:100], "no ONNX file, or is cut short"),
        (b"\x08\x07", "hold no graph"),  # a valid protobuf of another kind
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert message(path).startswith(f"InputError: {path}")
    assert fault in message(path)


def test_every_truncation_of_a_model_is_an_error_of_ours(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(WEIGHT, "w")
    model = parse("g (float[2,3] x) => (float[2,4] y) { t = MatMul(x, w)  y = Relu(t) }")
    model.graph.initializer.append(weight)
    whole, path = model.SerializeToString(), tmp_path / "model.onnx"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(HeterpsError):
            import_onnx(path)


def test_external_data_is_read_where_it_lies(tmp_path: Path) -> None:
    path = saved(tmp_path, small(offset=16, length=48))
    (tmp_path / "w.data").write_bytes(bytes(16) + WEIGHT.tobytes())
    graph = import_onnx(path)
    inputs = BACKEND.example_inputs(graph, 0)
    np.testing.assert_allclose(BACKEND.reference(graph)(inputs)[0], inputs["x"] @ WEIGHT, rtol=1e-6)


def test_a_relative_path_finds_its_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, small())
    (tmp_path / "w.data").write_bytes(WEIGHT.tobytes())
    monkeypatch.chdir(tmp_path)
    graph = import_onnx("model.onnx")
    monkeypatch.chdir("/")
    assert BACKEND.reference(graph)({"x": np.ones((2, 3), np.float32)})[0][0].tolist() == WEIGHT.sum(0).tolist()


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    assert "external data of tensor 'w' is missing: 'w.data'" in message(saved(tmp_path, small()))


def test_external_data_that_is_cut_short_is_refused_with_the_numbers(tmp_path: Path) -> None:
    path = saved(tmp_path, small(offset=16))
    (tmp_path / "w.data").write_bytes(WEIGHT.tobytes())
    assert "needs 48 bytes and claims 48 at offset 16 of 'w.data', which has 48" in message(path)


def test_external_data_of_the_wrong_length_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, small(length=44))
    (tmp_path / "w.data").write_bytes(WEIGHT.tobytes())
    assert "needs 48 bytes and claims 44" in message(path)


@pytest.mark.parametrize(("key", "value"), [("offset", "-4"), ("length", "-4"), ("offset", "1.5"), ("length", "")])
def test_a_place_in_external_data_is_a_whole_number(tmp_path: Path, key: str, value: str) -> None:
    path = saved(tmp_path, small(**{key: value}))
    (tmp_path / "w.data").write_bytes(WEIGHT.tobytes())
    with pytest.raises(InputError, match=f"{key}.*'w'.*'{value}'"):
        import_onnx(path)


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "a/../../secret", "", "..", "w\0", "link", "deep/link"]
)
def test_external_data_outside_the_folder_is_never_opened(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(WEIGHT.tobytes())
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "deep" / "link").symlink_to(tmp_path / "secret")
    found = message(saved(folder, small(location)))
    assert found.startswith("InputError: external data of tensor 'w'")
    assert "it must lie inside the model's folder" in found


def test_a_hard_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(WEIGHT.tobytes())
    path = saved(tmp_path / "model", small())
    os.link(tmp_path / "secret", tmp_path / "model" / "w.data")
    assert "has a second hard link; replace it by a copy" in message(path)


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    path = saved(tmp_path, small())
    (tmp_path / "real.data").write_bytes(WEIGHT.tobytes())
    (tmp_path / "w.data").symlink_to("real.data")
    assert import_onnx(path).parameters["w"].size_bytes == 48


def test_external_data_of_a_constant_in_a_branch_is_checked_too(tmp_path: Path) -> None:
    model = parse(
        "g (float[2,3] x, bool c) => (float[2,4] y) { y = If(c) <then_branch = t () => (float[2,4] a) "
        "{ k = Constant<value = float[3,4] {0,0,0,0,0,0,0,0,0,0,0,0}>() a = MatMul(x, k) }, "
        "else_branch = e () => (float[2,4] b) { k2 = Constant<value = float[2,4] {0,0,0,0,0,0,0,0}>() b = Relu(k2) }> }"
    )
    constant = model.graph.node[0].attribute[0].g.node[0].attribute[0].t
    constant.CopyFrom(small("../secret").graph.initializer[0])
    assert "which leaves" in message(saved(tmp_path, model))


def test_a_model_in_memory_cannot_point_at_external_data() -> None:
    assert "relative to a folder nobody named; give the path of the ONNX file instead" in message(small())


@pytest.mark.parametrize("change", ["short", "long", "negative", "unknown type", "few numbers"])
def test_weights_that_do_not_fit_their_shape_are_named(change: str) -> None:
    model = parse("g (float[2,3] x) => (float[2,4] y) { y = MatMul(x, w) }")
    tensor = numpy_helper.from_array(WEIGHT, "w")
    if change == "few numbers":
        tensor = helper.make_tensor("w", TensorProto.FLOAT, [3, 4], WEIGHT.ravel())
        del tensor.float_data[5:]
    elif change == "negative":
        tensor.dims[0] = -3
    elif change == "unknown type":
        tensor.data_type = 99
    else:
        tensor.raw_data = tensor.raw_data[:-4] if change == "short" else tensor.raw_data + bytes(4)
    model.graph.initializer.append(tensor)
    assert message(model).startswith("InputError")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("y = Relu(x) y = Neg(x)", "value 'y' twice: in node '' (Relu) and in node '' (Neg)"),
        ("x = Relu(x) y = Neg(x)", "value 'x' twice: in the model's inputs and initializers"),
    ],
)
def test_a_value_made_twice_is_named_with_both_makers(text: str, fault: str) -> None:
    found = message(parse(f"g (float[2] x) => (float[2] y) {{ {text} }}"))
    assert found.startswith("GraphError")
    assert fault in found


def test_two_initializers_of_one_name_are_refused() -> None:
    model = parse("g (float[2,3] x) => (float[2,4] y) { y = MatMul(x, w) }")
    model.graph.initializer.extend([numpy_helper.from_array(WEIGHT, "w")] * 2)
    assert message(model) == "GraphError: the model has two initializers named 'w'; rename one"


def test_a_model_proto_is_read_and_not_changed() -> None:
    model = parse("g (float[2,3] x) => (float[2,4] y) { t = MatMul(x, w) y = Relu(t) }")
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    before = model.SerializeToString(deterministic=True)
    graph = import_onnx(model)
    inputs = BACKEND.example_inputs(graph, 0)
    assert np.array_equal(BACKEND.reference(graph)(inputs)[0], run_whole(model, inputs)[0])
    assert model.SerializeToString(deterministic=True) == before


def test_an_onnx_ir_model_is_read_and_not_changed() -> None:
    model = ir.from_proto(parse("g (float[N] x) => (float[N] y) { t = Relu(x) y = Relu(t) }"))
    graph = import_onnx(model, batch=2)
    assert [node.name for node in graph.nodes] == ["Relu_0", "Relu_1"]
    assert [node.name for node in model.graph] == ["", ""]


def test_an_unsorted_onnx_ir_model_says_how_to_sort_it() -> None:
    model = ir.from_proto(parse("g (float[N] x) => (float[N] y) { y = Relu(t) t = Relu(x) }"))
    with pytest.raises(GraphError, match=r"model.graph.sort"):
        import_onnx(model, batch=2)


def test_a_tensor_of_strings_is_kept() -> None:
    model = parse("g (string[2] x) => (bool[2] y) { y = Equal(x, words) }", opset=19)
    model.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"]))
    graph = import_onnx(model)
    assert graph.parameters["words"].dtype == "string"
    given = np.array(["a", "c"], object)
    assert BACKEND.reference(graph)({"x": given})[0].tolist() == [True, False]


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_model_is_read_or_refused_with_an_error_of_ours(tmp_path: Path, seed: int) -> None:
    model = parse("""g (float[N,3] x, bool c) => (float[N,4] y) {
        rows = Shape(x)
        t = MatMul(x, w)
        r = ConstantOfShape(rows)
        kernel = Constant<value = float[1,1,1] {1.0}>()
        y = If(c) <
            then_branch = a () => (float[N,4] u) { u = Relu(t) },
            else_branch = b () => (float[N,4] v) { v = Softmax<axis = -1>(t) }
        >
    }""")
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    whole, rng = model.SerializeToString(), random.Random(seed)  # noqa: S311 - damage, not secrets
    path, outcomes = tmp_path / "model.onnx", set()
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2])):
            place = rng.randrange(len(damaged))
            damaged[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        path.write_bytes(damaged)
        try:
            import_onnx(path, batch=2)
            outcomes.add("read")
        except HeterpsError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_a_file_of_pytorch_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    with ZipFile(path, "w") as archive:
        archive.writestr("archive_format", "pt2")
    assert f"{path} is a zip archive, as PyTorch writes" in message(path)
    assert "torch.export.load" in message(path)
