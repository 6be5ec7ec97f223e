"""If, Loop and Scan on the torch and jax backends: in memory, written and read back, trained; ONNX Runtime is the
oracle. Subgraphs have initialisers of their own, capture values and weights from outside, and bear hostile names."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from staged_onnx import cut_evenly, largest_difference, parse, run_whole

from heterps_compile.backends.find import find_backend
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph
from heterps_compile.runtime.in_process import run_stages

BRANCH = """g (float[batch, 4] x) => (float[batch, 3] y) {
    s = ReduceSum<keepdims = 0>(x)
    c = Greater(s, zero)
    h = If (c) <
        then_branch = t () => (float[n, 4] o) { a = MatMul(x, w)  o = Relu(a) },
        else_branch = e () => (float[n, 4] o) { a = MatMul(x, w)  b = MatMul(a, v)  o = Tanh(b) }
    >
    y = MatMul(h, u)
}"""
NESTED = """g (float[batch, 4] x) => (float[batch, 3] y) {
    s = ReduceSum<keepdims = 0>(x)
    c = Greater(s, zero)
    h = If (c) <
        then_branch = t () => (float[n, 4] o) { o = If (c) <
            then_branch = tt () => (float[n, 4] p) { p = MatMul(x, w) },
            else_branch = te () => (float[n, 4] p) { p = Neg(x) }
        > },
        else_branch = e () => (float[n, 4] o) { o = Loop (three, yes, x) <
            body = b (int64 i, bool going, float[n, 4] v1) => (bool goes, float[n, 4] v2) {
                goes = Identity(going)
                m = MatMul(v1, v)
                v2 = Sigmoid(m)
            }
        > }
    >
    y = MatMul(h, u)
}"""
COUNTED = """g (float[batch, 4] x) => (float[batch, 3] y, float[5, batch, 4] every) {
    h, every = Loop (five, yes, x) <body = b (int64 i, bool going, float[n, 4] s) =>
        (bool goes, float[n, 4] t, float[n, 4] z) {
        goes = Identity(going)
        f = Cast<to = 1>(i)
        a = MatMul(s, w)
        d = Add(a, f)
        t = Tanh(d)
        z = Mul(t, t)
    }>
    y = MatMul(h, u)
}"""
ENDING = """g (float[batch, 4] x) => (float[batch, 3] y) {
    h = Loop (hundred, yes, x) <body = b (int64 i, bool going, float[n, 4] s) => (bool goes, float[n, 4] t) {
        a = MatMul(s, w)
        e = Exp(a)
        t = Add(s, e)
        r = ReduceSum<keepdims = 0>(t)
        goes = Less(r, most)
    }>
    y = MatMul(h, u)
}"""
GROWING = """g (float[batch, 4] x) => (float[batch, 3] y) {
    h = Loop (three, yes, x) <body = b (int64 i, bool going, float[n, m] s) => (bool goes, float[n, k] t) {
        goes = Identity(going)
        a = ReduceSum<keepdims = 1>(s, axis)
        t = Concat<axis = 1>(s, a)
    }>
    f = Slice(h, axis, four, axis)
    y = MatMul(f, u)
}"""
SLICED = """g (float[batch, 5, 4] x) => (float[batch, 3] y, float[batch, 5, 4] every) {
    first = ReduceMean<keepdims = 0>(x, axis)
    h, every = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [1],
        scan_output_directions = [1], body = b (float[n, 4] s, float[n, 4] i) => (float[n, 4] t, float[n, 4] z) {
        a = MatMul(s, w)
        d = Add(a, i)
        t = Tanh(d)
        z = Identity(t)
    }>(first, x)
    y = MatMul(h, u)
}"""
MODELS = {
    "If": BRANCH, "nested": NESTED, "Loop of five": COUNTED, "Loop that ends": ENDING, "Loop that grows": GROWING,
    "Scan": SLICED,
}  # fmt: skip
HOSTILE = {"w": "w'); import os #", "v": "../@@FORWARD@@\n", "u": "class"}


def _constants() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    floats = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in
              (("w", (4, 4)), ("v", (4, 4)), ("u", (4, 3)))}  # fmt: skip
    return floats | {
        "zero": np.float32(0), "most": np.float32(40), "five": np.int64(5), "three": np.int64(3),
        "hundred": np.int64(100), "yes": np.bool_(True), "axis": np.asarray([1]), "four": np.asarray([5]),
    }  # fmt: skip


def _renamed(graph: Any) -> None:
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = HOSTILE.get(name, name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _renamed(attribute.g)


@cache
def model(name: str) -> onnx.ModelProto:
    """Return a model whose weights ``w`` and ``v`` lie in the subgraphs that read them, under hostile names."""
    made = parse(MODELS[name])
    tensors = [onnx.numpy_helper.from_array(array, n) for n, array in _constants().items()]
    read = {i for node in made.graph.node for i in node.input}
    made.graph.initializer.extend(t for t in tensors if t.name in read or t.name not in ("w", "v"))
    for node in made.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                inner = {i for n in attribute.g.node for i in n.input}
                attribute.g.initializer.extend(t for t in tensors if t.name in inner & {"w", "v"})
    for tensor in (
        *made.graph.initializer,
        *(t for n in made.graph.node for a in n.attribute for t in a.g.initializer),
    ):
        tensor.name = HOSTILE.get(tensor.name, tensor.name)
    _renamed(made.graph)
    if name == "nested":  # what an inner subgraph reads must lie in one around it
        weight = onnx.numpy_helper.from_array(_constants()["w"], HOSTILE["w"])
        other = onnx.numpy_helper.from_array(_constants()["v"], HOSTILE["v"])
        made.graph.node[2].attribute[0].g.initializer.append(weight)
        made.graph.initializer.append(other)
    return made


@cache
def graph_of(name: str) -> Graph:
    """Read a model at a batch of 3."""
    return import_onnx(model(name), batch=3)


def inputs_of(name: str) -> list[dict[str, Any]]:
    """Return inputs that take both branches, and loops to different ends."""
    shape = (3, 5, 4) if name == "Scan" else (3, 4)
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    return [{"x": x + np.float32(shift)} for shift in (0.5, -0.5)]


def as_arrays(values: Any) -> list[Any]:
    """Return arrays of tensors of either kind."""
    return [np.asarray(v.detach() if hasattr(v, "detach") else v) for v in values]


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("name", MODELS)
def test_stages_in_memory_and_written_compute_what_onnx_runtime_does(backend: str, name: str, tmp_path: Path) -> None:
    graph, own = graph_of(name), find_backend(backend)
    assert not own.unsupported(graph)
    partition = cut_evenly(graph, 2)
    stages = own.build(graph, partition)
    names = own.write(graph, stages, partition.stages, tmp_path)
    back = own.read(tmp_path, names, partition.stages)
    for inputs in inputs_of(name):
        expected = run_whole(model(name), inputs)
        for built in (stages, back):
            values = run_stages(partition.stages, built, inputs, graph.outputs)
            assert largest_difference(as_arrays(values[n] for n in graph.outputs), expected) < 1e-5


def test_weights_of_subgraphs_are_parameters_of_the_model() -> None:
    graph = graph_of("If")
    weights = {name: p.shape for name, p in graph.parameters.items() if p.kind == "weight"}
    assert weights == {HOSTILE["w"]: (4, 4), f"{HOSTILE['w']}_2": (4, 4), HOSTILE["v"]: (4, 4), HOSTILE["u"]: (4, 3)}


@pytest.mark.parametrize("name", ["If", "Loop of five", "Loop that ends", "Scan"])
def test_gradients_go_through_and_agree_between_backends(name: str) -> None:
    import jax  # noqa: PLC0415 - heavy
    from staged_jax import BACKEND, chained  # noqa: PLC0415 - heavy

    graph = graph_of(name)
    partition = cut_evenly(graph, 2)
    for inputs in inputs_of(name):
        modules: Any = find_backend("torch").build(graph, partition)
        values = run_stages(partition.stages, modules, {"x": torch.tensor(inputs["x"])}, graph.outputs)
        values["y"].square().sum().backward()
        stages = BACKEND.build(graph, partition)
        run = chained(graph, partition, stages, inputs)
        found = jax.grad(lambda weights, run=run: (run(weights)[0] ** 2).sum())([stage.trained for stage in stages])
        for module, gradients in zip(modules, found, strict=True):
            held = dict(zip(module.parameter_names, (table[key] for table, key in module._slots), strict=True))
            for key, gradient in gradients.items():
                theirs = held[key].grad
                expected = np.zeros(gradient.shape) if theirs is None else theirs.numpy()
                assert np.allclose(gradient, expected, rtol=1e-4, atol=1e-5), key
