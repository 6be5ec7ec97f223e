"""Stages of ONNX models as pure functions of jax: what they give, and what jax can do with them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from staged_jax import BACKEND, chained, run, run_staged
from staged_onnx import BACKEND as RUNTIME
from staged_onnx import cut_evenly, largest_difference, parse, read

from heterps_compile.backends.jax import table
from heterps_compile.backends.jax.export import export_stablehlo
from heterps_compile.backends.jax.stage import JaxStage
from heterps_compile.backends.jax.table import Op, register
from heterps_compile.errors import BackendError, UnsupportedOpError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import cut_graph

MLP = """
g (float[N, 4] x) => (float[N, 3] y)
<float[4, 8] w1 = {WEIGHT}, float[8] b1 = {0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7, -0.8}, float[8, 3] w2 = {OTHER}> {
  a = MatMul(x, w1)
  b = Add(a, b1)
  c = Relu(b)
  d = MatMul(c, w2)
  y = Softmax(d)
}
"""


def numbers(count: int, seed: int) -> str:
    return ", ".join(f"{value:.6f}" for value in np.random.default_rng(seed).standard_normal(count))


def mlp() -> Graph:
    return read(MLP.replace("WEIGHT", numbers(32, 0)).replace("OTHER", numbers(24, 1)), batch=5)


def build(graph: Graph, count: int) -> tuple[JaxStage, ...]:
    return BACKEND.build(graph, cut_evenly(graph, count))


def only(graph: Graph) -> JaxStage:
    (stage,) = build(graph, 1)
    return stage


X = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)


def test_every_number_of_stages_gives_what_onnx_runtime_gives():
    graph = mlp()
    whole = RUNTIME.reference(graph)({"x": X})
    for count in range(1, 6):
        assert largest_difference(run_staged(graph, cut_evenly(graph, count), {"x": X}), whole) < 1e-6


def test_parameters_are_a_dict_under_the_names_of_the_initializers():
    assert {name: array.shape for name, array in only(mlp()).params.items()} == {"w1": (4, 8), "b1": (8,), "w2": (8, 3)}


def test_the_function_is_one_of_jit_grad_and_vmap():
    stage = only(mlp())
    (plain,) = stage.function(stage.params, X)
    (jitted,) = jax.jit(stage.function)(stage.params, X)
    np.testing.assert_allclose(plain, jitted, rtol=1e-6)
    (each,) = jax.vmap(stage.function, in_axes=(None, 0))(stage.params, X[:, None])
    np.testing.assert_allclose(each[:, 0], plain, rtol=1e-6)

    def loss(params: Any) -> Any:
        return jnp.sum(stage.function(params, X)[0] ** 2)

    gradient = jax.grad(loss)(stage.params)
    step = 1e-2
    up, down = ({**stage.params, "b1": stage.params["b1"].at[0].add(s)} for s in (step, -step))
    assert float(gradient["b1"][0]) == pytest.approx(float(loss(up) - loss(down)) / (2 * step), rel=1e-2)


def test_tensors_of_pytorch_and_arrays_of_jax_are_taken():
    torch = pytest.importorskip("torch")
    stage = only(mlp())
    (expected,) = stage(X)
    for given in (torch.from_numpy(X), jnp.asarray(X)):
        np.testing.assert_array_equal(stage(given)[0], expected)


def test_a_tensor_of_bfloat16_is_taken():
    torch = pytest.importorskip("torch")
    stage = only(read("g (bfloat16[3] x) => (bfloat16[3] y) { y = Neg(x) }"))
    (found,) = stage(torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16))
    assert (found.dtype, found.tolist()) == (jnp.bfloat16, [-1.0, -2.0, -3.0])


def test_64_bits_are_the_graphs_in_a_call_and_jaxs_own_in_the_function():
    stage = only(read("g (int64[2] x, double[2] z) => (int64[2] y, double[2] w) { y = Neg(x) w = Neg(z) }"))
    given = np.array([2**40, -3]), np.array([1e-300, 2.0])
    whole, real = stage(*given)
    assert (whole.dtype, whole.tolist(), real.dtype, real.tolist()) == (
        "int64",
        [-(2**40), 3],
        "float64",
        [-1e-300, -2],
    )
    small = stage.function(stage.params, np.array([5, -3]), given[1])
    assert [value.dtype for value in small] == ["int32", "float32"]
    assert not jax.config.jax_enable_x64


RESHAPED = """
g (float[N, 6] x) => (float[N, 3, 2] y) {
  shape = Shape(x)
  zero = Constant <value = int64 {0}> ()
  rows = Gather(shape, zero)
  axis = Constant <value = int64[1] {0}> ()
  row = Unsqueeze(rows, axis)
  rest = Constant <value = int64[2] {3, 2}> ()
  wanted = Concat <axis = 0> (row, rest)
  y = Reshape(x, wanted)
}
"""


def test_shapes_computed_from_shapes_are_numbers_under_jit():
    graph = read(RESHAPED, batch=2)
    stage = only(graph)
    for rows in (2, 7):
        (found,) = jax.jit(stage.function)(stage.params, np.zeros((rows, 6), np.float32))
        assert found.shape == (rows, 3, 2)


def test_a_shape_that_another_stage_computed_is_known_before_the_stage_runs(tmp_path: Path):
    graph = read(RESHAPED, batch=2)
    partition = cut_graph(graph, [range(len(graph.nodes) - 1), [len(graph.nodes) - 1]])
    stages = BACKEND.build(graph, partition)
    assert stages[1].known_inputs == {"wanted"}
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    read_back = BACKEND.read(tmp_path, BACKEND.write(graph, stages, partition.stages, tmp_path), partition.stages)
    for ready in (stages, read_back):
        (found,) = run(graph, partition, ready, {"x": x})
        np.testing.assert_array_equal(found, x.reshape(2, 3, 2))


def test_stages_chained_in_one_jit_hand_shapes_on_as_numbers():
    graph = read(RESHAPED, batch=2)
    partition = cut_graph(graph, [range(len(graph.nodes) - 1), [len(graph.nodes) - 1]])
    stages = BACKEND.build(graph, partition)
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    (found,) = jax.jit(lambda x: chained(graph, partition, stages, {"x": x})([{}, {}]))(x)
    np.testing.assert_array_equal(found, x.reshape(2, 3, 2))


def test_a_shape_that_depends_on_the_data_is_an_error_that_names_the_nodes():
    graph = read("g (float[6] x, float[2] s) => (float[M, K] y) { t = Exp(s) n = Cast<to = 7>(t) y = Reshape(x, n) }")
    with pytest.raises(BackendError, match=r"stage 0\b.*Reshape.*Exp"):
        only(graph)


def test_values_of_whole_numbers_and_booleans_cross_stages():
    graph = read(
        "g (int64[3] ids, float[5, 2] t) => (float[3, 2] y, bool[3, 2] p, int64[3, 2] n) "
        "{ e = Gather(t, ids) z = Constant<value = float {0.0}>() p = Greater(e, z) n = Cast<to = 7>(p) "
        "f = Cast<to = 1>(n) y = Mul(e, f) }"
    )
    inputs = {"ids": np.array([4, -1, 0]), "t": np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)}
    found = run_staged(graph, cut_evenly(graph, len(graph.nodes)), inputs)
    for ours, theirs in zip(found, RUNTIME.reference(graph)(inputs), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_a_constant_of_the_model_that_is_returned_and_an_output_asked_for_twice():
    graph = read("g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1.0, 2.0}> { y = Add(x, w) z = Mul(y, w) }")
    found = run_staged(graph, cut_evenly(graph, 2), {"x": np.ones(2, np.float32)})
    assert [value.tolist() for value in found] == [[2.0, 3.0], [2.0, 6.0]]


def test_what_is_made_of_a_weight_alone_still_lets_the_gradient_through():
    graph = read(
        "g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {1.0, 2.0, 3.0, 4.0}> "
        "{ t = Transpose(w) y = MatMul(x, t) }"
    )
    stage = only(graph)
    gradient = jax.grad(lambda params: jnp.sum(stage.function(params, jnp.eye(2))[0]))(stage.params)
    assert gradient["w"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_an_op_without_a_row_is_reported_with_op_domain_opset_and_node():
    graph = import_onnx(parse("g (float[4] x) => (float[4] y) { [flip] y = RandomNormalLike(x) }"))
    (found,) = BACKEND.unsupported(graph)
    assert (found.node, found.op, found.domain, found.opset) == ("flip", "RandomNormalLike", "ai.onnx", 18)
    with pytest.raises(UnsupportedOpError, match=r"stage 0\b.*'flip'.*RandomNormalLike.*ai.onnx.*opset 18\b"):
        only(graph)
    assert BACKEND.unsupported(mlp()) == []


def test_an_attribute_nobody_knows_is_reported():
    graph = read("g (float[4] x) => (float[4] y) { y = Elu <alpha = 2.0> (x) }")
    node = graph.source.model.graph[0]
    node.attributes["beta"] = type(node.attributes["alpha"])("beta", node.attributes["alpha"].type, 1.0)
    (found,) = BACKEND.unsupported(graph)
    assert found.reason == "the jax backend does not know its attribute 'beta'"


def scaled_silu(x: Any, *, alpha: float = 1.702) -> Any:
    return x * jax.nn.sigmoid(alpha * x)


def test_anybody_adds_an_op_in_a_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table, "_TABLE", {key: dict(versions) for key, versions in table._TABLE.items()})
    model = parse("g (float[4] x) => (float[4] y) { y = com.microsoft.ScaledSiLU(x) }", domains=["com.microsoft"])
    graph = import_onnx(model)
    assert [node.op for node in BACKEND.unsupported(graph)] == ["ScaledSiLU"]

    register(Op("ScaledSiLU", 1, scaled_silu, domain="com.microsoft"))

    partition = cut_evenly(graph, 1)
    stages = BACKEND.build(graph, partition)
    x = np.linspace(-2, 2, 4, dtype=np.float32)
    read_back = BACKEND.read(tmp_path, BACKEND.write(graph, stages, partition.stages, tmp_path), partition.stages)
    for (stage,) in (stages, read_back):
        np.testing.assert_allclose(stage(x)[0], x / (1 + np.exp(-1.702 * x)), rtol=1e-6)


def test_stablehlo_gives_the_same_without_the_model():
    stage = only(mlp())
    exported = jax.export.deserialize(bytearray(export_stablehlo(stage, [X])))
    assert "stablehlo.dot_general" in exported.mlir_module()
    np.testing.assert_array_equal(exported.call(stage.params, X)[0], stage(X)[0])


def test_stablehlo_keeps_64_bits():
    stage = only(read("g (int64[2] x) => (int64[2] y) { y = Neg(x) }"))
    exported = jax.export.deserialize(bytearray(export_stablehlo(stage, [np.array([2**40, 1])])))
    assert [(aval.shape, str(aval.dtype)) for aval in exported.out_avals] == [((2,), "int64")]


def test_jax_is_imported_by_its_backend_alone():
    script = "import sys; import heterps_compile.api, heterps_compile.backends.find; print('jax' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "False"
