"""Older versions of ops, which ONNX's node tests hardly have, give what ONNX Runtime gives."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper

from heterps_compile.backends.torch.run_onnx import run_onnx

Array = NDArray[Any]
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape, dtype=np.float32)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


X = floats(2, 3, 4)
IMAGE = floats(2, 3, 6, 6)
CHANNELS = [np.abs(floats(3)) + 0.5 for _ in range(4)]
SEQUENCE, W, R = floats(5, 2, 3), floats(1, 16, 3), floats(1, 16, 4)

# op, opset, attributes, inputs that the model is given, inputs that are constants of it (by place), outputs
CASES: list[tuple[str, int, dict[str, Any], list[Array], dict[int, Array], int]] = [
    ("Add", 7, {}, [X, floats(3, 1)], {}, 1),
    ("Add", 8, {}, [X], {1: np.float32(2.5)}, 1),
    ("ArgMax", 7, {"axis": 1, "keepdims": 0}, [X], {}, 1),
    ("ArgMin", 11, {"axis": -1}, [X], {}, 1),
    ("AveragePool", 7, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, [IMAGE], {}, 1),
    ("AveragePool", 7, {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}, [IMAGE], {}, 1),
    ("AveragePool", 10, {"kernel_shape": [2, 2], "ceil_mode": 1, "strides": [4, 4]}, [IMAGE], {}, 1),
    ("BatchNormalization", 7, {"epsilon": 1e-3}, [IMAGE, *CHANNELS], {}, 1),
    ("BatchNormalization", 7, {"spatial": 0}, [IMAGE, *[np.abs(IMAGE[0]) + i for i in range(1, 5)]], {}, 1),
    ("BatchNormalization", 9, {}, [IMAGE], dict(enumerate(CHANNELS, 1)), 1),
    ("Cast", 9, {"to": 7}, [X * 9], {}, 1),
    ("Clip", 7, {"min": -0.5, "max": 0.5}, [X], {}, 1),
    ("Clip", 11, {}, [X], {1: np.float32(-0.25)}, 1),
    ("Clip", 12, {}, [X], {2: np.float32(0.25)}, 1),
    ("Concat", 7, {"axis": -1}, [X, X], {}, 1),
    ("Conv", 7, {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, [IMAGE], {1: floats(4, 3, 2, 2)}, 1),
    ("Conv", 9, {"pads": [0, 1, 2, 0], "dilations": [2, 1]}, [IMAGE], {1: floats(4, 3, 2, 3), 2: floats(4)}, 1),
    ("Conv", 11, {"group": 3}, [IMAGE], {1: floats(3, 1, 3, 3)}, 1),
    ("ConvTranspose", 7, {"strides": [2, 2], "output_padding": [1, 1]}, [IMAGE], {1: floats(3, 2, 3, 3)}, 1),
    ("ConvTranspose", 11, {"pads": [1, 0, 0, 1], "group": 3}, [IMAGE], {1: floats(3, 2, 3, 3), 2: floats(6)}, 1),
    ("Dropout", 7, {"ratio": 0.5}, [X], {}, 1),
    ("Dropout", 10, {"ratio": 0.25}, [X], {}, 1),
    ("Expand", 8, {}, [floats(3, 1)], {1: ints(2, 1, 4)}, 1),
    ("Flatten", 7, {"axis": 2}, [X], {}, 1),
    ("Flatten", 9, {"axis": 0}, [X], {}, 1),
    ("Gather", 7, {"axis": 1}, [X, np.array([[2, 0]])], {}, 1),
    ("Gather", 11, {}, [floats(5, 3)], {1: ints(4, -1)}, 1),
    ("Gemm", 7, {"alpha": 0.5, "beta": 2.0, "transA": 1}, [floats(4, 2)], {1: floats(4, 3), 2: floats(3)}, 1),
    ("Gemm", 9, {"transB": 1}, [floats(2, 4)], {1: floats(3, 4), 2: floats(1, 3)}, 1),
    ("Hardmax", 7, {"axis": 1}, [X], {}, 1),
    ("LogSoftmax", 7, {"axis": 1}, [X], {}, 1),
    ("LRN", 7, {"size": 3, "alpha": 0.1}, [IMAGE], {}, 1),
    ("LSTM", 7, {"hidden_size": 4}, [SEQUENCE], {1: W, 2: R, 3: floats(1, 32)}, 3),
    ("LSTM", 14, {"hidden_size": 4, "direction": "reverse"}, [SEQUENCE], {1: W, 2: R}, 3),
    ("LSTM", 7, {"hidden_size": 4, "clip": 0.5}, [SEQUENCE], {1: W, 2: R, 4: np.array([5, 2], np.int32)}, 2),
    ("GlobalLpPool", 7, {"p": 3}, [IMAGE], {}, 1),
    ("GRU", 7, {"hidden_size": 4, "linear_before_reset": 1}, [SEQUENCE], {1: W[:, :12], 2: R[:, :12]}, 2),
    ("GRU", 7, {"hidden_size": 4}, [SEQUENCE], {1: W[:, :12], 2: R[:, :12], 3: floats(1, 24)}, 2),
    ("RNN", 7, {"hidden_size": 4, "activations": ["Relu"]}, [SEQUENCE], {1: W[:, :4], 2: R[:, :4]}, 2),
    (
        "RNN", 14, {"hidden_size": 4, "direction": "bidirectional"}, [SEQUENCE],
        {1: floats(2, 4, 3), 2: floats(2, 4, 4), 3: floats(2, 8)}, 2,
    ),
    ("MaxPool", 7, {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]}, [IMAGE], {}, 1),
    ("MaxPool", 8, {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}, [IMAGE], {}, 2),
    ("MaxPool", 10, {"kernel_shape": [3], "ceil_mode": 1, "strides": [2], "dilations": [1]}, [X], {}, 1),
    ("Mod", 10, {}, [ints(-7, 7, 5), ints(3, -3, 2)], {}, 1),
    ("OneHot", 9, {"axis": 0}, [ints(0, -1, 2)], {1: ints(3), 2: np.array([0, 5], np.float32)}, 1),
    ("Pad", 7, {"pads": [0, 1, 0, 0, 0, 2], "value": 1.5}, [X], {}, 1),
    ("Pad", 7, {"pads": [0, 0, 2, 0, 0, 1], "mode": "reflect"}, [X], {}, 1),
    ("Pad", 11, {"mode": "edge"}, [X], {1: ints(1, 0, 0, 0, 0, 3)}, 1),
    ("Pad", 13, {}, [X], {1: ints(0, -1, 0, 0, 0, 2), 2: np.float32(3)}, 1),
    ("Pow", 7, {}, [np.abs(X)], {1: np.float32(1.5)}, 1),
    ("ReduceSum", 7, {"axes": [1], "keepdims": 0}, [X], {}, 1),
    ("ReduceSum", 13, {"noop_with_empty_axes": 1}, [X], {}, 1),
    ("ReduceSum", 13, {}, [X], {1: ints(-1, 0)}, 1),
    ("ReduceMean", 9, {"axes": [-1]}, [X], {}, 1),
    ("ReduceMax", 12, {}, [X], {}, 1),
    ("ReduceL2", 13, {"axes": [0, 2]}, [X], {}, 1),
    ("ReduceLogSumExp", 11, {"axes": [1]}, [X], {}, 1),
    ("Reshape", 7, {}, [X], {1: ints(0, -1)}, 1),
    ("Resize", 10, {"mode": "nearest"}, [IMAGE], {1: np.array([1, 1, 2, 0.5], np.float32)}, 1),
    ("Resize", 10, {"mode": "linear"}, [IMAGE], {1: np.array([1, 1, 1.5, 2], np.float32)}, 1),
    (
        "Resize", 11, {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, [IMAGE],
        {1: np.zeros(0, np.float32), 2: np.array([1, 1, 2, 2], np.float32)}, 1,
    ),
    (
        "Resize", 13, {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"}, [IMAGE],
        {1: np.zeros(0, np.float32), 2: np.zeros(0, np.float32), 3: ints(2, 3, 9, 4)}, 1,
    ),
    ("Scatter", 9, {"axis": 1}, [X, np.zeros((2, 1, 4), np.int64), floats(2, 1, 4)], {}, 1),
    ("Slice", 7, {"starts": [0, -3], "ends": [1, 9], "axes": [0, 2]}, [X], {}, 1),
    ("Slice", 10, {}, [X], {1: ints(3), 2: ints(-9), 3: ints(2), 4: ints(-2)}, 1),
    ("Slice", 11, {}, [X, ints(1), ints(3), ints(1)], {}, 1),
    ("Softmax", 7, {"axis": 1}, [X], {}, 1),
    ("Softmax", 11, {}, [X], {}, 1),
    ("Softmax", 11, {"axis": 2}, [X], {}, 1),
    ("Softmax", 13, {"axis": 1}, [X], {}, 1),
    ("Split", 7, {"axis": 2, "split": [1, 3]}, [X], {}, 2),
    ("Split", 11, {"axis": 2}, [X], {}, 2),
    ("Split", 13, {"axis": 1}, [X], {1: ints(2, 1)}, 2),
    ("Squeeze", 7, {"axes": [0]}, [X[:1]], {}, 1),
    ("Squeeze", 11, {}, [X[:1, :, :1]], {}, 1),
    ("Sum", 8, {}, [X, X, X], {}, 1),
    ("TopK", 7, {"k": 2}, [X], {}, 2),
    ("TopK", 10, {"axis": 1}, [X], {1: ints(2)}, 2),
    ("TopK", 11, {"largest": 0}, [X], {1: ints(3)}, 2),
    ("Transpose", 7, {}, [X], {}, 1),
    ("Unsqueeze", 7, {"axes": [0, 3]}, [X], {}, 1),
    ("Unsqueeze", 11, {"axes": [-1]}, [X], {}, 1),
    ("Upsample", 7, {"scales": [1.0, 1.0, 2.0, 3.0]}, [IMAGE], {}, 1),
    ("Upsample", 9, {"mode": "linear"}, [IMAGE], {1: np.array([1, 1, 2, 2], np.float32)}, 1),
]  # fmt: skip


def model_of(case: tuple[Any, ...]) -> onnx.ModelProto:
    op, opset, attributes, given, held, outputs = case
    names = {place: f"c{place}" for place in held}
    free = (place for place in range(len(given) + len(held) + 8) if place not in held)
    inputs = {next(free): (f"x{i}", array) for i, array in enumerate(given)}
    last = max([*inputs, *held])
    reads = [inputs[i][0] if i in inputs else names.get(i, "") for i in range(last + 1)]
    node = helper.make_node(op, reads, [f"y{i}" for i in range(outputs)], "node", **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in inputs.values()
        ],
        [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)],
        [onnx.numpy_helper.from_array(np.asarray(array), names[place]) for place, array in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{c[1]}-{i}" for i, c in enumerate(CASES)])
def test_an_older_version_gives_what_onnx_runtime_gives(case: tuple[Any, ...]) -> None:
    given, outputs = case[3], case[5]
    model = model_of(case)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    expected = session.run(None, {f"x{i}": array for i, array in enumerate(given)})
    results = run_onnx(model, given)
    assert len(results) == len(expected) == outputs
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
