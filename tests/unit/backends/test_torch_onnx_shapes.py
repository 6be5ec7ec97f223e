"""Shapes that a model computes: of older opsets, whose ops have axes as attributes, and across a cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from staged_onnx import largest_difference, parse, run_whole

import heterps_compile
from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.backends.torch.run_onnx import run_onnx
from heterps_compile.errors import BackendError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.partition import cut_graph
from heterps_compile.runtime.in_process import run_stages

BACKEND = TorchBackend()
RNG = np.random.default_rng(0)


def written_in_two(model: Any, shapes: dict[str, int], at: str, folder: Path) -> Callable[..., Any]:
    """Write a model in two stages, the second from the node of a value on; return what runs them as read."""
    graph = import_onnx(model, shapes=shapes)
    first = graph.producer[at]
    cuts = cut_graph(graph, [range(first), range(first, len(graph.nodes))])
    stages = BACKEND.read(folder, BACKEND.write(graph, BACKEND.build(graph, cuts), cuts.stages, folder), cuts.stages)
    return lambda **inputs: run_stages(cuts.stages, stages, inputs, graph.outputs)["y"].detach().numpy()


@pytest.mark.parametrize(
    ("opset", "arithmetic"),
    [
        (9, "b = Slice<axes = [0], starts = [0], ends = [1]>(s)"),
        (9, "p = Slice<starts = [1], ends = [3]>(s)  b = ReduceProd<axes = [0], keepdims = 1>(p)"),
        (11, "n = Gather<axis = 0>(s, zero)  b = Unsqueeze<axes = [0]>(n)"),
        (11, "p = Slice(s, first, second)  n = Squeeze<axes = [0]>(p)  b = Unsqueeze<axes = [-1]>(n)"),
        (11, "p = Slice(s, first, second)  n = ReduceSum<axes = [0], keepdims = 0>(p)  b = Unsqueeze<axes = [0]>(n)"),
    ],
)
def test_arithmetic_on_shapes_takes_axes_as_attributes(opset: int, arithmetic: str) -> None:
    constants = "int64 zero = {0}, int64[1] first = {0}, int64[1] second = {1}, int64[1] rest = {-1}"
    text = f"""g (float[N, 3, 4] x) => (float[a, b] y) <{constants}> {{
        s = Shape(x)  {arithmetic}  t = Concat<axis = 0>(b, rest)  y = Reshape(x, t)
    }}"""
    model = parse(text, opset=opset)
    x = RNG.standard_normal((2, 3, 4), dtype=np.float32)
    (ours,), (theirs,) = run_onnx(model, [x]), run_whole(model, {"x": x})
    assert np.array_equal(ours, theirs)


@pytest.mark.slow  # models of seconds
@pytest.mark.parametrize(
    "state",
    [
        "t = Concat<axis = 0>(two, u, four)  state = ConstantOfShape(t)",
        "t = Concat<axis = 0>(four, u, four)  both = ConstantOfShape(t)  state = Slice(both, zero, two)",
    ],
    ids=["whole", "slice"],
)
@pytest.mark.parametrize(("op", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_a_network_whose_state_has_a_shape_from_another_stage_can_be_written(
    op: str, gates: int, state: str, tmp_path: Path
) -> None:
    extra = ", state" if op == "LSTM" else ""
    more = (
        '<direction = "bidirectional", hidden_size = 4, linear_before_reset = 1>'
        if op == "GRU"
        else ('<direction = "bidirectional", hidden_size = 4>')
    )
    text = f"""g (float[5, N, 4] x) => (float[5, d, N, 4] y)
        <int64 one = {{1}}, int64[1] two = {{2}}, int64[1] four = {{4}}, int64[1] zero = {{0}}> {{
        h = Tanh(x)
        s = Shape(h)
        b = Gather<axis = 0>(s, one)
        u = Unsqueeze(b, zero)
        {state}
        y = {op}{more}(h, w, r, , , state{extra})
    }}"""
    model = parse(text, opset=17)
    rng = np.random.default_rng(0)  # rounding of draws that depend on the tests before is another one each time
    for name in ("w", "r"):
        weight = rng.standard_normal((2, gates * 4, 4), dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    run = written_in_two(model, {"N": 3}, "b", tmp_path)
    for batch in (3, 6):  # also one that it was not compiled for
        inputs = {"x": rng.standard_normal((5, batch, 4), dtype=np.float32)}
        assert largest_difference([run(**inputs)], run_whole(model, inputs)) < 1e-6


@pytest.mark.parametrize("root", ["x", "wide"])
def test_a_size_from_another_stage_is_a_dimension_of_the_own_input(root: str, tmp_path: Path) -> None:
    text = f"""g (float[N, 4] x) => (float[a, b] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int32[1] last = {{1}}> {{
        wide = Concat<axis = 0>(x, x)  s = Shape({root})  c = Cast<to = 6>(s)  n = Slice(c, zero, one)
        h = Relu({root})  t = Concat<axis = 0>(n, last)  u = Cast<to = 7>(t)
        m = ReduceMax<keepdims = 0>(h, one)  r = Reshape(m, u)  e = Expand(r, u)  y = Sub(h, e)
    }}"""
    run, x = written_in_two(parse(text), {"N": 3}, "t", tmp_path), RNG.standard_normal((7, 4), dtype=np.float32)
    assert np.array_equal(run(x=x), run_whole(parse(text), {"x": x})[0])


def test_a_refusal_to_write_a_size_names_the_node_and_the_tensor(tmp_path: Path) -> None:
    text = """g (float[N, 4] x, float[M, K] z) => (float[a, b] y) <int64[1] one = {1}> {
        s = Shape(z)  h = Relu(x)  m = ReduceMax<keepdims = 0>(h, one)  r = Reshape(m, s)  y = Sub(h, r)
    }"""
    with pytest.raises(BackendError, match=r"stage 1 .*Reshape.*'s'"):
        written_in_two(parse(text), {"N": 3, "M": 3, "K": 1}, "h", tmp_path)


def test_zero_in_a_shape_with_a_size_of_another_stage_keeps_a_dimension(tmp_path: Path) -> None:
    text = """g (float[N, 4, 6] x, float[M, 2] z) => (float[a, b, c] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] rest = {-1}> {
        s = Shape(z)  k = Slice(s, zero, one)  t = Concat<axis = 0>(zero, k, rest)  h = Relu(x)  y = Reshape(h, t)
    }"""
    given = {"x": RNG.standard_normal((5, 4, 6), dtype=np.float32), "z": np.zeros((8, 2), np.float32)}
    run = written_in_two(parse(text), {"N": 3, "M": 2}, "t", tmp_path)
    assert np.array_equal(run(**given), run_whole(parse(text), given)[0])


def test_noise_of_the_shape_of_an_open_tensor_can_be_written(tmp_path: Path) -> None:
    text = "g (float[N, 4] x) => (float[N, 4] y) { h = Relu(x)  n = RandomNormalLike(h)  y = Add(h, n) }"
    written_in_two(parse(text), {"N": 3}, "n", tmp_path)
    assert "randn_like" in (tmp_path / "stage_1.py").read_text()


def test_numbers_made_of_shapes_are_arrays(tmp_path: Path) -> None:
    """Both operands may be numbers, of an open dimension (n) or of a fixed one (m)."""
    text = """g (float[N, 3] x) => (float[N, 3] y) <int64 zero = {0}, int64 one = {1}, float c = {0.5}> {
        s = Shape(x) i = Gather<axis = 0>(s, zero) n = Cast<to = 1>(i) j = Gather<axis = 0>(s, one) m = Cast<to = 1>(j)
        a = Pow(n, c) b = Pow(c, m) d = Div(n, m) e = Pow(d, m) f = Sqrt(n) h = Pow(f, c)
        k = LessOrEqual(n, c) l = GreaterOrEqual(n, m) o = Or(k, l) p = And(o, l) q = Not(p) r = Cast<to = 1>(q)
        t = Sum(a, b, d, e, f, h, r) u = Mul(x, t) y = Add(u, n)
    }"""
    compiled = heterps_compile.compile(parse(text), batch=4, backend="torch", method="greedy")
    compiled.save(tmp_path / "plan")
    x = RNG.standard_normal((5, 3), dtype=np.float32)
    (theirs,) = run_whole(parse(text), {"x": x})
    for one in (compiled, heterps_compile.load(tmp_path / "plan")):
        (made,) = one.run(x)
        np.testing.assert_allclose(np.asarray(made.detach()), theirs, rtol=1e-6)


def test_a_batch_that_can_only_be_1_leaves_other_dimensions_free(tmp_path: Path) -> None:
    text = """g (float[N, T, 6] x) => (float[a, b, c] y) <int64[1] one = {1}, int64[2] rest = {2, 3}> {
        s = Shape(x)  n = Gather<axis = 0>(s, one)  t = Concat<axis = 0>(n, rest)  y = Reshape(x, t)
    }"""
    compiled = heterps_compile.compile(parse(text), backend="torch", method="greedy")
    assert dict(compiled.plan.bindings) == {"N": 1, "T": 128}
    compiled.save(tmp_path / "plan")
    x = RNG.standard_normal((1, 5, 6), dtype=np.float32)
    (made,) = heterps_compile.load(tmp_path / "plan").run(x)
    assert np.array_equal(np.asarray(made), run_whole(parse(text), {"x": x})[0])


@pytest.mark.parametrize("more", [", clip = 0.5", ""], ids=["that PyTorch lacks", "of PyTorch"])
def test_a_network_is_written_with_a_free_number_of_steps(more: str, tmp_path: Path) -> None:
    weights = {name: RNG.standard_normal((2, 16, 4), dtype=np.float32) for name in ("w", "r")}
    text = f"""g (float[T, 2, 4] x) => (float[T, D, 2, 4] y) <float[2, 16, 4] w = {{0}}, float[2, 16, 4] r = {{0}}> {{
        y, h, c = LSTM<direction = "bidirectional", hidden_size = 4{more}>(x, w, r)
    }}"""
    model = parse(text.replace("= {0}", f"= {{{', '.join(['0'] * 128)}}}"))
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    heterps_compile.compile(model, shapes={"T": 3}, backend="torch", method="greedy").save(tmp_path / "plan")
    x = RNG.standard_normal((5, 2, 4), dtype=np.float32)
    (made,) = heterps_compile.load(tmp_path / "plan").run(x)
    np.testing.assert_allclose(np.asarray(made.detach()), run_whole(model, {"x": x})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [2.0, 1.5])
def test_a_resized_dimension_is_written_free(scale: float, tmp_path: Path) -> None:
    text = f"""g (float[N, 1, H, 3] x) => (float[a, b, c, d] y) <float[4] scales = {{1, 1, {scale}, 1}}> {{
        y = Resize<mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric">(x, , scales)
    }}"""
    heterps_compile.compile(parse(text), batch=2, backend="torch", method="greedy").save(tmp_path / "plan")
    x = RNG.standard_normal((3, 1, 7, 3), dtype=np.float32)
    (made,) = heterps_compile.load(tmp_path / "plan").run(x)
    assert np.array_equal(np.asarray(made), run_whole(parse(text), {"x": x})[0])
