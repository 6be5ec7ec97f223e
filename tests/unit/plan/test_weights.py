import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sketch import sketch
from torch._subclasses.fake_tensor import FakeTensorMode

from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph
from heterps_compile.plan import weights
from heterps_compile.plan.weights import hash_weights


def saved(path: Path, weight: np.ndarray, name: str = "w", *, external: bool = False) -> str:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", name], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
            [numpy_helper.from_array(weight, name)],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    onnx.save(model, path, save_as_external_data=external, location=f"{path.stem}.data", size_threshold=0)
    return str(path)


def held(**tensors: torch.Tensor) -> Graph:
    """Return a graph that was read from a module with these tensors; only its source counts."""
    graph = sketch("in x 4x8\n elementwise act : x -> y 4x8\n out y")
    return Graph(
        **{f: getattr(graph, f) for f in ("name", "nodes", "inputs", "outputs", "values", "parameters")},
        family="torch",
        source=SimpleNamespace(tensors=tensors),
    )


def test_inline_and_external_weights_of_the_same_bytes_have_the_same_hash(tmp_path):
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    inline = hash_weights(import_onnx(saved(tmp_path / "a.onnx", weight)))
    external = hash_weights(import_onnx(saved(tmp_path / "b.onnx", weight, external=True)))
    line = f"'w' FLOAT [64, 64] {hashlib.sha256(weight.tobytes()).hexdigest()}\n"
    assert inline == external == hashlib.sha256(line.encode()).hexdigest()


def test_external_data_is_hashed_in_pieces(tmp_path, monkeypatch):
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    whole = hash_weights(import_onnx(saved(tmp_path / "a.onnx", weight, external=True)))
    monkeypatch.setattr(weights, "_PIECE_BYTES", 5_000)  # no multiple of a page
    assert hash_weights(import_onnx(saved(tmp_path / "b.onnx", weight, external=True))) == whole


def test_another_number_or_name_gives_another_hash(tmp_path):
    weight = np.zeros((64, 64), np.float32)
    other = weight.copy()
    other[63, 63] = 1e-30
    cases = [(weight, "w"), (other, "w"), (weight, "v")]
    found = {hash_weights(import_onnx(saved(tmp_path / f"{i}.onnx", *case))) for i, case in enumerate(cases)}
    assert len(found) == 3


def test_bytes_count_and_not_how_they_lie_in_memory():
    square = torch.arange(9.0).reshape(3, 3)
    assert (
        hash_weights(held(w=square.t()))
        == hash_weights(held(w=square.t().contiguous()))
        != hash_weights(held(w=square))
    )


def test_every_dtype_and_an_empty_tensor_have_a_hash():
    dtypes = (torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64, torch.complex64)
    found = {hash_weights(held(w=torch.zeros(3).to(dtype))) for dtype in dtypes}
    assert len(found | {hash_weights(held(w=torch.zeros(0)))}) == 6


def test_weights_that_are_not_there_have_no_hash():
    with FakeTensorMode():
        fake = torch.nn.Parameter(torch.zeros(3))
    lazy = torch.nn.LazyLinear(3).weight
    for tensor in (torch.zeros(3, device="meta"), fake, lazy, torch.zeros(3).to_sparse()):
        assert hash_weights(held(w=tensor)) is None
    assert hash_weights(held(w=torch.nn.Parameter(torch.zeros(3)))) == hash_weights(held(w=torch.zeros(3)))
    assert hash_weights(sketch("in x 4x8\n elementwise act : x -> y 4x8\n out y")) is None
