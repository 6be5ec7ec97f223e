"""What of an ONNX file is rewritten: sparse constants, ZipMap, old opsets; on every backend, and told in a note."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from staged_onnx import cut_evenly, run_whole

from heterps_compile.backends.find import find_backend
from heterps_compile.errors import GraphError, InputError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.runtime.in_process import run_stages

ML = "ai.onnx.ml"
X = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)


def model(
    nodes: Sequence[Any],
    outputs: Sequence[Any],
    *,
    opset: int = 15,
    held: Sequence[Any] = (),
    sparse: Sequence[Any] = (),
) -> Any:
    """Return a model with the input ``x``; initialisers are inputs too, as in old files."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])]
    if opset < 9:
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in held]
    graph = helper.make_graph(list(nodes), "g", inputs, list(outputs), list(held))
    graph.sparse_initializer.extend(sparse)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 1)]
    return helper.make_model(graph, ir_version=3 if opset < 9 else 8, opset_imports=imports)


def tensor(name: str, array: Any) -> Any:
    return onnx.numpy_helper.from_array(array, name)


def output(name: str, number: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, number, None)


def thin(name: str, indices: Any) -> Any:
    """Return a sparse tensor of 4 x 4 with three values."""
    values = tensor(name, np.asarray([1, 2, 3], np.float32))
    return helper.make_sparse_tensor(values, tensor("places", np.asarray(indices, np.int64)), [4, 4])


FLAT, ROWS = [0, 5, 14], [[0, 0], [1, 1], [3, 2]]


def dictionaries() -> Any:
    """Return the type that a ZipMap makes."""
    scores = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, scores))
    return helper.make_value_info("d", kind)


def zipped() -> Any:
    """Return a classifier as skl2onnx writes it."""
    classify = helper.make_node(
        "LinearClassifier", ["x"], ["l", "p"], domain=ML, coefficients=[0.1 * i for i in range(8)],
        intercepts=[0.0, 0.5], classlabels_ints=[3, 7], post_transform="SOFTMAX",
    )  # fmt: skip
    zips = helper.make_node("ZipMap", ["p"], ["d"], "zip", domain=ML, classlabels_int64s=[3, 7])
    return model([classify, zips], [output("l", TensorProto.INT64), dictionaries()])


def old() -> Any:
    """Return a model of opset 6, whose Gemm and Add say that they broadcast."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "c"], ["a"], broadcast=1),
        helper.make_node("Add", ["a", "c"], ["y"], broadcast=1),
    ]
    held = [tensor("w", np.eye(4, dtype=np.float32)), tensor("c", np.arange(4, dtype=np.float32))]
    return model(nodes, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])], opset=6, held=held)


def sparse(indices: Any) -> Any:
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model([product], [output("y")], sparse=[thin("w", indices)])


def sparse_constant() -> Any:
    nodes = [
        helper.make_node("Constant", [], ["w"], sparse_value=thin("", FLAT)),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    return model(nodes, [output("y")])


def expected_scores() -> list[Any]:
    label, rows = run_whole(zipped(), {"x": X})
    return [label, np.asarray([[row[3], row[7]] for row in rows], np.float32)]


CASES = {
    "sparse": (sparse(FLAT), "made dense: 1 sparse constant ('w')"),
    "sparse by rows": (sparse(ROWS), "made dense: 1 sparse constant ('w')"),
    "sparse Constant": (sparse_constant(), "made dense: 1 sparse constant ('w')"),
    "ZipMap": (
        zipped(),
        "the ZipMap 'zip' was left out: the output 'd' is a tensor, its columns the classes 3, 7, and no list of "
        "dictionaries",
    ),
    "opset 6": (old(), "converted from opset 6 to 7, the oldest that the runtimes here run"),
}


@pytest.mark.parametrize("backend", ["onnxruntime", "torch", "jax"])
@pytest.mark.parametrize("name", CASES)
def test_every_backend_runs_what_is_rewritten_and_a_note_tells(name: str, backend: str) -> None:
    made, note = CASES[name]
    before = made.SerializeToString()
    graph = import_onnx(made)
    assert made.SerializeToString() == before  # the caller's model stays as it is
    assert note in graph.source.notes
    if name == "ZipMap":
        expected = expected_scores()
    elif name == "opset 6":
        expected = [X + 2 * np.arange(4, dtype=np.float32)]
    else:
        expected = run_whole(made, {"x": X})
    partition = cut_evenly(graph, 1)
    values = run_stages(partition.stages, find_backend(backend).build(graph, partition), {"x": X}, graph.outputs)
    for ours, theirs in zip((values[n] for n in graph.outputs), expected, strict=True):
        assert np.allclose(np.asarray(ours.detach() if hasattr(ours, "detach") else ours), theirs, atol=1e-6)


def _read_further() -> Any:
    made = zipped()
    made.graph.node.append(helper.make_node("SequenceLength", ["d"], ["n"]))
    return made


def _old_and_odd() -> Any:
    made = old()
    made.graph.node[1].op_type = "Upsample"
    return made


def _map_at_an_input() -> Any:
    made = zipped()
    made.graph.input[0].type.CopyFrom(helper.make_map_type_proto(TensorProto.INT64, dictionaries().type))
    return made


def _huge() -> Any:
    made = sparse(FLAT)
    made.graph.sparse_initializer[0].dims[:] = [2**30, 2**30]
    return made


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (_read_further(), "ZipMap 'zip'.*'SequenceLength'"),
        (_map_at_an_input(), "'x'.*dictionary"),
        (sparse([0, 5, 99]), "'w'.*does"),
        (_huge(), "'w'.*4,194,304 TiB"),
        (_old_and_odd(), r"opset 6\b.*opset 7\b.*ONNX's"),
    ],
)
def test_what_cannot_be_rewritten_is_refused_with_the_true_reason(made: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        import_onnx(made)


@pytest.mark.parametrize(
    ("op", "attributes", "inputs"), [("ConstantOfShape", {}, ["dims"]), ("Expand", {}, ["one", "dims"]),
                                     ("Tile", {}, ["square", "dims"])]
)  # fmt: skip
def test_a_constant_that_an_op_makes_too_large_is_refused_before_it_is_made(
    op: str, attributes: Any, inputs: Any
) -> None:
    nodes = [
        helper.make_node(op, inputs, ["c"], "the one", **attributes),
        helper.make_node("ReduceSum", ["c"], ["r"], keepdims=0),
        helper.make_node("Mul", ["x", "r"], ["y"]),
    ]
    held = [tensor("dims", np.asarray([2**20, 2**20])), tensor("one", np.ones(1, np.float32)),
            tensor("square", np.ones((1, 1), np.float32))]  # fmt: skip
    with pytest.raises(GraphError, match=rf"'the one'.*{op}.*\b4\b TiB.*'c'"):
        import_onnx(model(nodes, [output("y")], held=held))


def test_an_op_that_shape_inference_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fails)
    with pytest.raises(GraphError, match="memory"):
        import_onnx(sparse(FLAT))
