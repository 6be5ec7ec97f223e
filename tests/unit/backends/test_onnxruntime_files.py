"""Stages are written as ONNX files that others can read, and read back; what goes wrong is named by stage and op."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from staged_onnx import BACKEND, cut_evenly, parse, run_whole

from heterps_compile.backends.onnxruntime import write_stage as module
from heterps_compile.backends.onnxruntime.backend import OnnxRuntimeBackend
from heterps_compile.errors import BackendError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition
from heterps_compile.runtime.in_process import run_stages

WIDE = np.random.default_rng(0).standard_normal((4, 500)).astype(np.float32)  # large enough to be external
TEXT = "g (float[N, 4] x) => (float[N, 4] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }"


def model() -> onnx.ModelProto:
    made = parse(TEXT)
    made.graph.initializer.extend([numpy_helper.from_array(WIDE, "w"), numpy_helper.from_array(WIDE.T.copy(), "v")])
    return made


def external(folder: Path) -> Path:
    """Return the model as a file with its weights in external data."""
    made = model()
    data = b""
    for tensor in made.graph.initializer:
        for key, value in (("location", "w.data"), ("offset", str(len(data)))):
            tensor.external_data.add(key=key, value=value)
        data += tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
    (folder / "w.data").write_bytes(data)
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    return folder / "model.onnx"


def written(graph: Graph, folder: Path, count: int = 2) -> tuple[Partition, list[list[str]]]:
    partition = cut_evenly(graph, count)
    folder.mkdir(exist_ok=True)
    return partition, BACKEND.write(graph, BACKEND.build(graph, partition), partition.stages, folder)


def check_folder(graph: Graph, partition: Partition, files: list[list[str]], folder: Path) -> None:
    """See that the files are all there is, valid, and give the whole model's output when read back."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(name for names in files for name in names)
    for names in files:
        onnx.checker.check_model(folder / names[0], full_check=True)
    stages = BACKEND.read(folder, files, partition.stages)
    inputs = BACKEND.example_inputs(graph, 0)
    values = run_stages(partition.stages, stages, inputs, graph.outputs)
    np.testing.assert_allclose(values["y"], run_whole(model(), inputs)[0], rtol=1e-4, atol=1e-4)


def test_stages_are_written_and_read_back(tmp_path: Path) -> None:
    graph = import_onnx(model(), batch=3)
    partition, files = written(graph, tmp_path / "out")
    assert files == [["stage_0.onnx"], ["stage_1.onnx"]]
    check_folder(graph, partition, files, tmp_path / "out")


def test_large_stages_keep_their_weights_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXTERNAL_BEYOND_BYTES", 1000)
    graph = import_onnx(model(), batch=3)
    partition, files = written(graph, tmp_path / "out")
    assert files == [["stage_0.onnx", "stage_0.onnx.data"], ["stage_1.onnx", "stage_1.onnx.data"]]
    assert (tmp_path / "out" / "stage_0.onnx.data").stat().st_size == WIDE.nbytes
    check_folder(graph, partition, files, tmp_path / "out")


@pytest.mark.parametrize("limit_bytes", [1000, 10**9])
def test_external_weights_are_carried_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_bytes: int) -> None:
    monkeypatch.setattr(module, "EXTERNAL_BEYOND_BYTES", limit_bytes)
    graph = import_onnx(external(tmp_path), batch=3)
    partition, files = written(graph, tmp_path / "out")
    (tmp_path / "w.data").unlink()  # what was written stands alone
    check_folder(import_onnx(model(), batch=3), partition, files, tmp_path / "out")


def test_stages_that_were_read_can_be_written_again(tmp_path: Path) -> None:
    graph = import_onnx(model(), batch=3)
    partition, files = written(graph, tmp_path / "one")
    stages = BACKEND.read(tmp_path / "one", files, partition.stages)
    (tmp_path / "two").mkdir()
    check_folder(graph, partition, BACKEND.write(graph, stages, partition.stages, tmp_path / "two"), tmp_path / "two")


@pytest.mark.parametrize("name", ["../../etc/passwd", '"; import os; #', "a\nb", "n" * 10_000, "слой\u202e"])
def test_hostile_names_stay_inside_the_files(tmp_path: Path, name: str) -> None:
    made = parse(TEXT.replace("y = MatMul(b, v)", "y = Neg(b)"))
    made.graph.initializer.append(numpy_helper.from_array(WIDE[:, :4].copy(), f"w{name}"))
    first, second, third = made.graph.node
    for node in made.graph.node:
        node.name = name
    made.graph.name = name
    first.input[1], first.output[0], second.input[0] = f"w{name}", f"a{name}", f"a{name}"
    second.output[0], third.input[0] = f"b{name}", f"b{name}"
    graph = import_onnx(made, batch=3)
    partition, files = written(graph, tmp_path / "out", count=3)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["out", "stage_0.onnx", "stage_1.onnx", "stage_2.onnx"]
    assert partition.stages[1].inputs == (f"a{name}",)
    stages = BACKEND.read(tmp_path / "out", files, partition.stages)
    inputs = BACKEND.example_inputs(graph, 0)
    values = run_stages(partition.stages, stages, inputs, graph.outputs)
    np.testing.assert_allclose(values["y"], -np.maximum(inputs["x"] @ WIDE[:, :4], 0), rtol=1e-5, atol=1e-6)


def test_a_missing_stage_file_is_named(tmp_path: Path) -> None:
    partition, files = written(import_onnx(model(), batch=3), tmp_path / "out")
    (tmp_path / "out" / "stage_1.onnx").unlink()
    with pytest.raises(BackendError, match=r"stage 1\b.*stage_1.onnx"):
        BACKEND.read(tmp_path / "out", files, partition.stages)


def test_a_damaged_stage_file_is_named(tmp_path: Path) -> None:
    partition, files = written(import_onnx(model(), batch=3), tmp_path / "out")
    (tmp_path / "out" / "stage_0.onnx").write_bytes(b"not a model")
    with pytest.raises(BackendError, match=r"stage 0\b.*stage_0.onnx"):
        BACKEND.read(tmp_path / "out", files, partition.stages)


def test_a_stage_with_other_values_than_its_plan_says_is_refused(tmp_path: Path) -> None:
    partition, files = written(import_onnx(model(), batch=3), tmp_path / "out")
    first, second = partition.stages
    with pytest.raises(BackendError, match=r"\['a'\].*\['z'\]"):
        BACKEND.read(tmp_path / "out", files, [replace(first, outputs=("z",)), second])


def test_an_op_that_fails_is_named_with_its_stage() -> None:
    made = parse("g (int64[N] i) => (float[N, 4] y) { a = Neg(i) b = Neg(a) y = Gather(t, b) }")
    made.graph.initializer.append(numpy_helper.from_array(WIDE[:, :4].copy(), "t"))
    graph = import_onnx(made, batch=2)
    partition = cut_evenly(graph, 2)
    stages = BACKEND.build(graph, partition)
    with pytest.raises(BackendError, match=r"stage 1\b.*Gather.*Name:'Gather_0'.*idx=99") as caught:
        run_stages(partition.stages, stages, {"i": np.array([99, 0])}, graph.outputs)
    assert "\n" not in str(caught.value)


def test_an_op_that_no_kernel_runs_is_named_with_its_stage() -> None:
    text = "g (float[2] x) => (float[2] y) { d = Neg(x) c = Cast<to = 16>(d) e = Sin(c) y = Cast<to = 1>(e) }"
    graph = import_onnx(parse(text, opset=22))
    with pytest.raises(BackendError, match=r"stage 1\b.*Sin.*--no-verify"):
        BACKEND.build(graph, cut_evenly(graph, 2))[1](np.zeros(2, np.float32))


def test_values_of_the_wrong_type_are_named_with_their_stage() -> None:
    graph = import_onnx(model(), batch=3)
    stage = BACKEND.build(graph, cut_evenly(graph, 2))[0]
    with pytest.raises(BackendError, match=r"stage 0\b.*Unexpected"):
        stage(np.zeros((3, 4), np.int64))


def test_a_provider_that_is_not_installed_is_named() -> None:
    graph = import_onnx(model(), batch=3)
    backend = OnnxRuntimeBackend(provider="NoSuchExecutionProvider")
    with pytest.raises(BackendError, match=r"stage 0\b.*NoSuchExecutionProvider"):
        backend.build(graph, cut_evenly(graph, 2))[0](np.zeros((3, 4), np.float32))


def test_a_stage_of_another_backend_is_not_written(tmp_path: Path) -> None:
    graph = import_onnx(model(), batch=3)
    partition = cut_evenly(graph, 1)
    with pytest.raises(BackendError, match=r"stage 0\b.*'onnxruntime'"):
        BACKEND.write(graph, [lambda x: (x,)], partition.stages, tmp_path)  # type: ignore[list-item]


def test_nothing_is_printed_when_a_stage_fails(capfd: pytest.CaptureFixture[str]) -> None:
    graph = import_onnx(model(), batch=3)
    with pytest.raises(BackendError):
        BACKEND.build(graph, cut_evenly(graph, 2))[0](np.zeros((3, 5), np.float32))
    assert capfd.readouterr() == ("", "")


def test_weights_of_16_and_8_bits_reach_the_session() -> None:
    made = parse("g (float[N, 4] x) => (float[N, 500] y) { w = Cast<to = 1>(half) y = MatMul(x, w) }", opset=19)
    half = onnx.helper.make_tensor("half", TensorProto.BFLOAT16, WIDE.shape, WIDE.ravel().tolist())
    made.graph.initializer.append(half)
    graph = import_onnx(made, batch=3)
    inputs = BACKEND.example_inputs(graph, 0)
    np.testing.assert_allclose(BACKEND.reference(graph)(inputs)[0], run_whole(made, inputs)[0], rtol=1e-5)
