"""Cuts of every kind give what ONNX Runtime gives for the whole model."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from staged_onnx import BACKEND, cut_evenly, largest_difference, parse, run_staged, run_whole

from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import cut_graph
from heterps_compile.runtime.in_process import run_stages


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(text: str, **arrays: np.ndarray) -> onnx.ModelProto:
    model = parse(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def differences(model: onnx.ModelProto, **options: Any) -> dict[int, float]:
    """Cut at one stage, two, ... one for each node; give the largest difference from the whole for each."""
    graph = import_onnx(model, **options)
    inputs = BACKEND.example_inputs(graph, seed=1)
    whole = run_whole(model, inputs)
    return {
        count: largest_difference(run_staged(graph, cut_evenly(graph, count), inputs), whole)
        for count in range(1, len(graph.nodes) + 1)
    }


def crossing(graph: Graph, count: int) -> list[str]:
    """Return what every stage takes and gives: ``x -> h``."""
    return [f"{' '.join(cut.inputs)} -> {' '.join(cut.outputs)}" for cut in cut_evenly(graph, count).stages]


SKIP = """g (float[N, 4] x) => (float[N, 4] y) {
    a = MatMul(x, w)
    b = Relu(a)
    c = MatMul(b, w)
    d = Tanh(c)
    e = Add(d, a)
    y = Mul(e, b)
}"""


def test_a_value_that_several_later_stages_read_is_sent_to_each() -> None:
    model = model_of(SKIP, w=weight(4, 4))
    assert crossing(import_onnx(model, batch=3), 6) == [
        "x -> a",
        "a -> b",
        "b -> c",
        "c -> d",
        "d a -> e",
        "e b -> y",
    ]
    assert max(differences(model, batch=3).values()) < 1e-6


def test_a_weight_that_two_stages_read_is_in_both() -> None:
    graph = import_onnx(model_of(SKIP, w=weight(4, 4)), batch=3)
    partition = cut_evenly(graph, 3)
    assert partition.replicated == ("w",)
    parts = [stage.session.model for stage in BACKEND.build(graph, partition)]  # type: ignore[attr-defined]
    assert [list(part.graph.initializers) for part in parts] == [["w"], ["w"], []]


def test_a_tied_table_serves_as_embedding_and_as_product() -> None:
    text = """g (int64[N, 5] i) => (float[N, 5, 9] y) {
        e = Gather(table, i)
        h = Relu(e)
        turned = Transpose<perm = [1, 0]>(table)
        y = MatMul(h, turned)
    }"""
    assert max(differences(model_of(text, table=weight(9, 4)), batch=3).values()) < 1e-6


def test_integers_and_booleans_cross() -> None:
    text = """g (float[N, 4] x) => (float[N, 4] y, int64[N] best) {
        zero = Constant<value = float {0.0}>()
        positive = Greater(x, zero)
        not_positive = Not(positive)
        best = ArgMax<axis = 1, keepdims = 0>(x)
        next = Neg(best)
        row = Gather(table, next)
        mask = Where(not_positive, row, x)
        y = Add(mask, row)
    }"""
    model = model_of(text, table=weight(4, 4))
    graph = import_onnx(model, batch=3)
    stages = cut_evenly(graph, 4).stages
    assert {graph.values[name].dtype for cut in stages for name in cut.outputs} >= {"bool", "int64", "float32"}
    assert max(differences(model, batch=3).values()) < 1e-6


def test_several_inputs_and_outputs_inputs_of_late_stages_and_outputs_of_early_ones() -> None:
    text = """g (float[N, 4] x, float[N, 4] z, float[N, 4] unused) => (float[N, 4] a, float[N, 4] c, float[N, 4] d) {
        a = Relu(x)
        b = Neg(a)
        c = Exp(b)
        d = Mul(c, z)
    }"""
    model = parse(text)
    assert crossing(import_onnx(model, batch=3), 2) == ["x -> a b", "b z -> c d"]
    assert max(differences(model, batch=3).values()) < 1e-6


def test_an_input_returned_as_it_is_and_an_output_returned_twice_are_the_runtimes() -> None:
    graph = import_onnx(parse("g (float[2] x) => (float[2] x, float[2] y, float[2] y) { a = Neg(x) y = Relu(a) }"))
    inputs = BACKEND.example_inputs(graph, 0)
    expected = [inputs["x"], np.maximum(-inputs["x"], 0), np.maximum(-inputs["x"], 0)]
    for found in (BACKEND.reference(graph)(inputs), run_staged(graph, cut_evenly(graph, 2), inputs)):
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_the_reference_gives_an_output_that_is_an_initializer() -> None:
    graph = import_onnx(model_of("g (float[2] x) => (float[2] y, float[2] w) { y = Add(x, w) }", w=weight(2)))
    assert np.array_equal(BACKEND.reference(graph)({"x": np.zeros(2, np.float32)})[1], weight(2))


def test_constants_that_nodes_make_are_made_in_every_stage_that_reads_them() -> None:
    text = """g (float[N, 4] x) => (float[N, 4] y) {
        shape = Constant<value = int64[2] {4, 4}>()
        ones = ConstantOfShape<value = float[1] {0.5}>(shape)
        scaled = Mul(ones, w)
        a = MatMul(x, scaled)
        y = MatMul(a, scaled)
    }"""
    model = model_of(text, w=weight(4, 4))
    graph = import_onnx(model, batch=3)
    assert crossing(graph, 2) == ["x -> a", "a -> y"]
    assert max(differences(model, batch=3).values()) < 1e-6


def test_a_branch_keeps_what_it_captures() -> None:
    text = """g (float[N, 4] x, bool c) => (float[N, 4] y) {
        p = MatMul(x, w)
        q = Neg(x)
        s = If(c) <
            then_branch = t () => (float[N, 4] a) { a = MatMul(p, w) },
            else_branch = e () => (float[N, 4] b) { i = Add(p, q) b = Neg(i) }
        >
        y = Add(s, q)
    }"""
    model = model_of(text, w=weight(4, 4))
    graph = import_onnx(model, batch=3)
    assert crossing(graph, 4) == ["x -> p", "x -> q", "c p q -> s", "s q -> y"]
    partition = cut_evenly(graph, 4)
    for condition in (True, False):
        inputs = {"x": weight(3, 4, seed=1), "c": np.array(condition)}
        whole = run_whole(model, inputs)
        assert largest_difference(run_staged(graph, partition, inputs), whole) < 1e-6


def test_a_loop_keeps_what_it_captures() -> None:
    text = """g (float[N, 4] x) => (float[N, 4] y) {
        p = MatMul(x, w)
        three = Constant<value = int64 {3}>()
        keep = Constant<value = bool {1}>()
        s = Loop(three, keep, x) <body = b (int64 i, bool go, float[N, 4] h) => (bool on, float[N, 4] r) {
            on = Identity(go)
            m = MatMul(h, w)
            r = Add(m, p)
        }>
        y = Tanh(s)
    }"""
    model = model_of(text, w=weight(4, 4))
    graph = import_onnx(model, batch=3)
    assert [node.flops for node in graph.nodes] == [2 * 3 * 4 * 4, 3 * (2 * 3 * 4 * 4 + 3 * 4), 3 * 4]
    assert graph.source.notes == ("seen in a run on generated inputs: the shapes of 1 value ('s')",)
    assert max(differences(model, batch=3).values()) < 1e-6


def test_a_scan_keeps_what_it_captures() -> None:
    text = """g (float[5, 4] x) => (float[4] last, float[5, 4] y) {
        start = Relu(v)
        p = Neg(x)
        half = ReduceMean<keepdims = 0>(p)
        last, y = Scan<num_scan_inputs = 1, body = b (float[4] h, float[4] row) => (float[4] n, float[4] out) {
            s = Add(h, row)
            n = Mul(s, half)
            out = Identity(n)
        }>(start, p)
    }"""
    model = model_of(text, v=weight(4))
    graph = import_onnx(model)
    assert graph.nodes[-1].inputs == ("start", "p", "half")
    assert graph.nodes[-1].flops == 5 * 8
    assert max(differences(model).values()) < 1e-6


def test_stages_keep_a_dynamic_batch() -> None:
    text = """g (float[N, L, 4] x) => (float[N, K] y) {
        h = MatMul(x, w)
        s = Shape(h)
        zero = Constant<value = int64 {0}>()
        n = Gather(s, zero)
        axes = Constant<value = int64[1] {0}>()
        row = Unsqueeze(n, axes)
        rest = Constant<value = int64[1] {-1}>()
        target = Concat<axis = 0>(row, rest)
        flat = Reshape(h, target)
        y = Relu(flat)
    }"""
    model = model_of(text, w=weight(4, 4))
    graph = import_onnx(model, batch=3, shapes={"L": 2})
    partition = cut_evenly(graph, 4)
    stages = BACKEND.build(graph, partition)
    for shape in ((3, 2, 4), (1, 5, 4), (8, 1, 4)):
        inputs = {"x": weight(*shape, seed=1)}
        values = run_stages(partition.stages, stages, inputs, graph.outputs)
        assert largest_difference([values["y"]], run_whole(model, inputs)) < 1e-6


def test_boundaries_are_typed_and_keep_the_symbols_of_the_model() -> None:
    text = """g (float[N, L] x) => (float[N, L] y) {
        best = ArgMax<axis = 1>(x)
        f = Cast<to = 1>(best)
        where = NonZero(f)
        i = Cast<to = 1>(where)
        m = ReduceMax(i)
        y = Add(x, m)
    }"""
    graph = import_onnx(parse(text), batch=3, shapes={"L": 5})
    partition = cut_graph(graph, [[0], [1, 2], [3, 4, 5]])
    parts = [stage.session.model.graph for stage in BACKEND.build(graph, partition)]  # type: ignore[attr-defined]
    described = [[f"{v.name} {v.dtype.name} {v.shape}" for v in (*p.inputs, *p.outputs)] for p in parts]
    assert described == [
        ["x FLOAT [N,L]", "best INT64 [N,1]"],
        ["best INT64 [N,1]", "where INT64 [2,None]"],
        ["where INT64 [2,None]", "x FLOAT [N,L]", "y FLOAT [N,L]"],
    ]


@pytest.mark.parametrize("seed", range(5))
def test_random_graphs_cut_anywhere_give_the_whole_models_outputs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names, lines = ["x"], []
    for i in range(30):
        a, b = rng.choice(names[-8:], 2)
        op = rng.choice(["Add", "Mul", "Sub", "Tanh", "Relu", "MatMul"])
        operands = {"Tanh": a, "Relu": a, "MatMul": f"{a}, w"}.get(op, f"{a}, {b}")
        lines.append(f"v{i} = {op}({operands})")
        names.append(f"v{i}")
    outputs = ", ".join(f"float[N, 4] {name}" for name in names[-3:])
    model = model_of(f"g (float[N, 4] x) => ({outputs}) {{ {' '.join(lines)} }}", w=weight(4, 4) / 2)
    graph = import_onnx(model, batch=2)
    inputs = BACKEND.example_inputs(graph, seed)
    whole = run_whole(model, inputs)
    cuts = sorted(rng.choice(np.arange(1, len(graph.nodes)), 4, replace=False).tolist())
    bounds = zip([0, *cuts], [*cuts, len(graph.nodes)], strict=True)
    partition = cut_graph(graph, [range(first, end) for first, end in bounds])
    assert largest_difference(run_staged(graph, partition, inputs), whole) < 1e-5
