"""Numbers of ONNX ops by hand, where ONNX's own node tests say nothing or are left to test-all."""

import numpy as np
import onnx
import pytest
from jax import numpy as jnp
from onnx import helper

from heterps_compile.backends.jax.ops.conv import edges
from heterps_compile.backends.jax.ops.reduce import running
from heterps_compile.backends.torch import run_onnx


def test_a_mean_of_integers_divides_by_all_that_it_adds_up() -> None:
    x = np.arange(24, dtype=np.int32).reshape(4, 3, 2)
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[0, 1], keepdims=0)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.INT32, x.shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    (found,) = run_onnx.run_onnx(model, [x])
    assert found.tolist() == [11, 12]


@pytest.mark.parametrize(
    ("exclusive", "reverse", "expected"),
    [(0, 0, [1, 3, 6]), (1, 0, [0, 1, 3]), (0, 1, [6, 5, 3]), (1, 1, [5, 3, 0])],
)
def test_a_running_sum_is_with_the_element_or_before_it(exclusive: int, reverse: int, expected: list[int]) -> None:
    assert running(jnp.cumsum, 0, jnp.array([1, 2, 3]), 0, exclusive, reverse).tolist() == expected


@pytest.mark.parametrize(("auto_pad", "expected"), [("SAME_UPPER", [(1, 2)]), ("SAME_LOWER", [(2, 1)])])
def test_an_odd_padding_lies_where_its_name_says(auto_pad: str, expected: list[tuple[int, int]]) -> None:
    assert edges(auto_pad, None, (5,), [4], (1,)) == expected


def test_an_odd_norm_is_one_of_absolute_values() -> None:
    x = np.array([[[-1.0, -2.0, 3.0]]], np.float32)
    graph = helper.make_graph(
        [helper.make_node("GlobalLpPool", ["x"], ["y"], p=3)],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 1, 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    (found,) = run_onnx.run_onnx(model, [x])
    assert found.item() == pytest.approx(36 ** (1 / 3))
