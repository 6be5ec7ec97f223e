"""Versions of ops that newer opsets replaced, against ONNX Runtime: one node a model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from heterps_compile.backends.jax.run_onnx import run_onnx

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)
IMAGE = RNG.standard_normal((1, 2, 5, 6)).astype(np.float32)
VECTOR = RNG.random(2).astype(np.float32) + 0.5
CASES: Sequence[tuple[str, int, Mapping[str, Any], Sequence[Any], int]] = [
    # op, opset, attributes, inputs, outputs
    ("Add", 7, {}, [X, X[:, :1]], 1),
    ("ArgMax", 7, {"axis": 1, "keepdims": 0}, [X], 1),
    ("ArgMin", 11, {"axis": -1}, [X], 1),
    ("AveragePool", 7, {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0], "count_include_pad": 1}, [IMAGE], 1),
    ("AveragePool", 10, {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}, [IMAGE], 1),
    ("BatchNormalization", 7, {"epsilon": 0.01}, [IMAGE, VECTOR, VECTOR, VECTOR, VECTOR], 1),
    ("BatchNormalization", 8, {"spatial": 0}, [IMAGE, *[np.abs(IMAGE[0]) + i for i in range(1, 5)]], 1),
    ("BatchNormalization", 9, {}, [IMAGE, VECTOR, VECTOR, VECTOR, VECTOR], 1),
    ("Cast", 9, {"to": 7}, [X], 1),
    ("Clip", 7, {"min": -0.5, "max": 0.5}, [X], 1),
    ("Clip", 10, {"max": 0.5}, [X], 1),
    ("Clip", 11, {}, [X, np.float32(-0.5)], 1),
    ("Concat", 7, {"axis": 1}, [X, X], 1),
    ("ConstantOfShape", 9, {"value": numpy_helper.from_array(np.array([2], np.int64))}, [np.array([2, 3])], 1),
    ("Dropout", 7, {"ratio": 0.3}, [X], 1),
    ("Dropout", 10, {"ratio": 0.3}, [X], 1),
    ("Dropout", 12, {}, [X, np.float32(0.3)], 1),
    ("Equal", 7, {}, [np.array([1, 2]), np.array([1, 3])], 1),
    ("Expand", 8, {}, [X[:1], np.array([2, 1, 4])], 1),
    ("Flatten", 7, {"axis": 2}, [X], 1),
    ("Gather", 7, {"axis": 1}, [X, np.array([[0, 2]])], 1),
    ("Gemm", 7, {"alpha": 0.5, "beta": 2.0, "transB": 1}, [X[0], X[1], X[0, :, :3]], 1),
    ("Gemm", 9, {"transA": 1}, [X[0], X[1], X[0, 0]], 1),
    ("Gemm", 11, {}, [X[0], X[1].T], 1),
    ("GroupNormalization", 18, {"num_groups": 2}, [np.tile(IMAGE, (1, 2, 1, 1)), VECTOR, VECTOR], 1),
    ("Hardmax", 7, {"axis": 1}, [X], 1),
    ("InstanceNormalization", 7, {"epsilon": 0.1}, [IMAGE, VECTOR, VECTOR], 1),
    ("LRN", 7, {"size": 3}, [np.tile(IMAGE, (1, 3, 1, 1))], 1),
    ("LogSoftmax", 7, {}, [X], 1),
    ("LogSoftmax", 11, {"axis": -1}, [X], 1),
    ("LpPool", 7, {"kernel_shape": [2, 2], "p": 3}, [IMAGE], 1),
    ("MaxPool", 7, {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}, [IMAGE], 1),
    ("MaxPool", 8, {"kernel_shape": [2, 2], "strides": [2, 2]}, [IMAGE], 2),
    ("MaxPool", 10, {"kernel_shape": [2, 2], "dilations": [2, 2], "ceil_mode": 1, "strides": [2, 2]}, [IMAGE], 1),
    ("OneHot", 9, {}, [np.array([0, 2]), np.array([3]), np.array([0.0, 1.0], np.float32)], 1),
    ("PRelu", 7, {}, [X, np.array([[0.1], [0.2], [0.3]], np.float32)], 1),
    ("Pad", 7, {"pads": [0, 1, 0, 0, 0, 2], "value": 1.5}, [X], 1),
    ("Pad", 10, {"pads": [0, 1, 1, 0, 0, 2], "mode": "reflect"}, [X], 1),
    ("Pad", 11, {}, [X, np.array([0, 1, 0, 0, 0, 2]), np.float32(2)], 1),
    ("Pow", 7, {}, [np.abs(X), np.float32(2)], 1),
    ("Pow", 12, {}, [np.abs(X), np.array(2)], 1),
    ("QuantizeLinear", 10, {}, [X, np.float32(0.1), np.uint8(128)], 1),
    ("DequantizeLinear", 10, {}, [np.arange(6, dtype=np.uint8), np.float32(0.1), np.uint8(3)], 1),
    ("ReduceLogSumExp", 7, {"axes": [1], "keepdims": 0}, [X], 1),
    ("ReduceMax", 11, {"axes": [-1]}, [X], 1),
    ("ReduceMean", 7, {"axes": [0, 2]}, [X], 1),
    ("ReduceMean", 13, {}, [X], 1),
    ("ReduceSum", 11, {"axes": [1], "keepdims": 0}, [X], 1),
    ("ReduceSum", 13, {"noop_with_empty_axes": 1}, [X], 1),
    ("Reshape", 7, {}, [X, np.array([0, -1])], 1),
    ("Resize", 10, {"mode": "nearest"}, [IMAGE, np.array([1, 1, 2, 2], np.float32)], 1),
    ("Resize", 10, {"mode": "linear"}, [IMAGE, np.array([1, 1, 2, 1.5], np.float32)], 1),
    ("Resize", 11, {"mode": "linear"}, [IMAGE, np.zeros(8, np.float32), np.array([1, 1, 2, 2], np.float32)], 1),
    ("RoiAlign", 10, {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
     [IMAGE, np.array([[0, 0, 4, 3]], np.float32), np.array([0])], 1),
    ("Scatter", 9, {"axis": 1}, [X[0], np.array([[1, 3]]), np.array([[5, 6]], np.float32)], 1),
    ("Slice", 7, {"starts": [1, 0], "ends": [9, -1], "axes": [1, 2]}, [X], 1),
    ("Slice", 10, {}, [X, np.array([3]), np.array([-9]), np.array([2]), np.array([-2])], 1),
    ("Softmax", 7, {}, [X], 1),
    ("Softmax", 11, {"axis": 2}, [X], 1),
    ("Softmax", 12, {"axis": 0}, [X], 1),
    ("Split", 7, {"axis": 2, "split": [1, 3]}, [X], 2),
    ("Split", 11, {"axis": 1}, [X], 3),
    ("Split", 13, {"axis": 2}, [X, np.array([3, 1])], 2),
    ("Squeeze", 7, {"axes": [1]}, [X[:, :1]], 1),
    ("Squeeze", 11, {}, [X[:, :1]], 1),
    ("Sum", 7, {}, [X, X], 1),
    ("Max", 7, {}, [X, -X], 1),
    ("Sum", 8, {}, [X, X[:1], X[:, :1]], 1),
    ("Tile", 7, {}, [X, np.array([1, 2, 1])], 1),
    ("TopK", 7, {"k": 2, "axis": 1}, [X], 2),
    ("TopK", 10, {}, [X, np.array([3])], 2),
    ("TopK", 11, {"largest": 0, "axis": 1}, [X, np.array([2])], 2),
    ("Transpose", 7, {"perm": [2, 0, 1]}, [X], 1),
    ("Unsqueeze", 7, {"axes": [0, 2]}, [X], 1),
    ("Upsample", 7, {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 3.0]}, [IMAGE], 1),
    ("Upsample", 9, {"mode": "linear"}, [IMAGE, np.array([1, 1, 2, 2], np.float32)], 1),
    ("GRU", 7, {"hidden_size": 3, "linear_before_reset": 1, "direction": "bidirectional"},
     [X, np.tile(X[:1, :1], (2, 9, 1)), np.tile(X[:1, :1, :3], (2, 9, 1))], 2),
    ("LSTM", 7, {"hidden_size": 3, "direction": "reverse"},
     [X, np.tile(X[:1, :1], (1, 12, 1)), np.tile(X[:1, :1, :3], (1, 12, 1)), X[:1].reshape(1, 12).repeat(2, 1),
      np.array([2, 1, 2], np.int32)], 3),
    ("RNN", 7, {"hidden_size": 3, "activations": ["Relu"]},
     [X, np.tile(X[:1, :1], (1, 3, 1)), np.tile(X[:1, :1, :3], (1, 3, 1))], 2),
]  # fmt: skip


CONTRIBUTED: Sequence[tuple[str, Mapping[str, Any], Sequence[Any], int]] = [
    ("BiasGelu", {}, [X, X[0, 0]], 1),
    ("FastGelu", {}, [X, X[0, 0]], 1),
    ("FastGelu", {}, [X], 1),
    ("Gelu", {}, [X], 1),
    ("SkipLayerNormalization", {"epsilon": 0.01}, [X, X[:, ::-1], X[0, 0], X[0, 1], X[0, 2]], 1),
    ("SkipLayerNormalization", {}, [X, X[:, ::-1], X[0, 0]], 1),
]


@pytest.mark.parametrize(("op", "attributes", "inputs", "outputs"), CONTRIBUTED)
def test_an_op_of_onnx_runtimes_own_domain_does_what_it_does(
    op: str, attributes: Mapping[str, Any], inputs: Sequence[Any], outputs: int
) -> None:
    compare(op, attributes, inputs, outputs, domain="com.microsoft", opset=17)


@pytest.mark.parametrize(
    ("op", "opset", "attributes", "inputs", "outputs"),
    [
        pytest.param(*case, marks=() if number % 5 == 0 else pytest.mark.slow, id="-".join(map(str, case[:2])))
        for number, case in enumerate(CASES)
    ],
)
def test_an_older_version_does_what_onnx_runtime_does(
    op: str, opset: int, attributes: Mapping[str, Any], inputs: Sequence[Any], outputs: int
) -> None:
    compare(op, attributes, inputs, outputs, domain="", opset=opset)


def compare(
    op: str, attributes: Mapping[str, Any], inputs: Sequence[Any], outputs: int, *, domain: str, opset: int
) -> None:
    """Run a model of one node here and in ONNX Runtime."""
    arrays = [np.asarray(array) for array in inputs]
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for i, a in enumerate(arrays)
    ]
    made = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    graph = helper.make_graph([node], "one", infos, made)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    expected = session.run(None, {f"x{i}": a for i, a in enumerate(arrays)})
    found = run_onnx(model, arrays)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
