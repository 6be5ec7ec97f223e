"""Every value gets a dtype and a shape in numbers: inferred, taken from the model, or seen in a run."""

import re
from typing import Any

import onnx
import pytest
from staged_onnx import parse, read

from heterps_compile.errors import GraphError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import OPAQUE


def test_arithmetic_on_shapes_is_followed() -> None:
    graph = read(
        """g (float[N, 4, 6] x) => (float[N, K] y) {
            s = Shape(x)
            first = Constant<value = int64 {0}>()
            n = Gather(s, first)
            axes = Constant<value = int64[1] {0}>()
            row = Unsqueeze(n, axes)
            rest = Constant<value = int64[1] {-1}>()
            target = Concat<axis = 0>(row, rest)
            y = Reshape(x, target)
        }""",
        batch=5,
    )
    assert (graph.values["y"].shape, graph.values["target"].dtype) == ((5, 24), "int64")
    assert graph.source.notes == ()


@pytest.mark.parametrize(("batch", "propagates"), [(1000, True), (100_000_000, False)])
def test_no_object_is_kept_for_every_element_of_a_long_vector(
    batch: int, propagates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    infer = onnx.shape_inference.infer_shapes

    def spied(model: Any, *, data_prop: bool, **options: Any) -> Any:
        asked.append(data_prop)
        return infer(model, data_prop=data_prop and batch <= 1000, **options)  # else it takes all memory

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", spied)
    graph = read("g (float[N] x) => (float[N] y) { a = Add(x, x) y = Mul(a, x) }", batch=batch)
    assert (asked[-1], graph.shape("a"), graph.shape("y")) == (propagates, (batch,), (batch,))


def test_what_inference_cannot_know_is_taken_from_a_run_and_noted() -> None:
    text = """g (float[N, 4] x) => (float y) {
        b = Constant<value = float[4] {0.5, 0.5, 0.5, 0.5}>()
        h = com.microsoft.BiasGelu(x, b)
        z = NonZero(h)
        f = Cast<to = 1>(z)
        y = ReduceSum<keepdims = 0>(f)
    }"""
    graph = import_onnx(parse(text, domains=["com.microsoft"]), batch=3)
    assert (graph.values["h"].shape, graph.values["z"].shape) == ((3, 4), (2, 12))
    assert graph.source.notes == ("seen in a run on generated inputs: the shapes of 3 values ('h', 'z', 'f')",)


def test_what_the_model_says_is_used_before_a_run() -> None:
    model = parse("g (float[N, 4] x) => (float[2, M] z) <int64[2, M] i> { i = NonZero(x) z = Cast<to = 1>(i) }")
    model.graph.value_info[0].type.tensor_type.shape.dim[1].dim_value = 8
    graph = import_onnx(model, batch=2)
    assert (graph.values["i"].shape, graph.values["z"].shape) == ((2, 8), (2, 8))


def test_a_sequence_is_opaque() -> None:
    graph = read("""g (float[4] x) => (float[2] y) {
        two = Constant<value = int64 {2}>()
        one = Constant<value = int64 {1}>()
        s = SplitToSequence(x, two)
        y = SequenceAt(s, one)
    }""")
    assert graph.values["s"].dtype == OPAQUE
    assert graph.values["y"].shape == (2,)


def test_a_shape_nobody_can_find_is_an_error_with_value_op_and_reason() -> None:
    text = """g (float[2,3] x) => (float y) {
        seven = Constant<value = int64[1] {7}>()
        t = Reshape(x, seven)
        z = NonZero(t)
        f = Cast<to = 1>(z)
        y = ReduceSum<keepdims = 0>(f)
    }"""
    with pytest.raises(GraphError) as caught:
        import_onnx(parse(text))
    assert re.search(r"'z'.*'NonZero_0' \(NonZero\)", str(caught.value))
    assert "Reshape" in str(caught.value)  # ONNX Runtime's reason


def test_contradicting_shapes_are_an_error() -> None:
    with pytest.raises(GraphError, match=r"'y'.*'MatMul_0'.*MatMul"):
        import_onnx(parse("g (float[2,3] x, float[4,5] w) => (y) { y = MatMul(x, w) }"))


def test_results_of_constants_are_seen_too() -> None:
    graph = read("""g (float[3] x) => (float[1, M] y) {
        ones = Constant<value = float[3] {1.0, 0.0, 1.0}>()
        where = NonZero(ones)
        y = Gather<axis = 0>(x, where)
    }""")
    assert graph.parameters["where"].shape == (1, 2)
    assert graph.shape("y") == (1, 2)
