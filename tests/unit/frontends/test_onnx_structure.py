"""Whatever form a model comes in, its graph has known ops in order, every value defined, and nothing idle."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from staged_onnx import BACKEND, cut_evenly, parse, read, run_staged, run_whole

from heterps_compile.errors import GraphError, HeterpsError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph


def message(text: str, **options: object) -> str:
    with pytest.raises(HeterpsError) as caught:
        import_onnx(parse(text, **options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return f"{type(caught.value).__name__}: {caught.value}"


def wiring(graph: Graph) -> str:
    return "; ".join(f"{node.op} {' '.join(node.inputs)} -> {' '.join(node.outputs)}" for node in graph.nodes)


def test_an_undefined_value_in_a_branch_is_found() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] a) { a = Neg(z) }, else_branch = e () => (float[2] b) { b = Neg(x) }>
    }"""
    assert "reads 'z'" in message(text)


def test_an_output_that_nobody_makes_is_named() -> None:
    assert "output 'q' is made by no node" in message("g (float[2] x) => (float[2] q) { y = Relu(x) }")


def test_a_cycle_is_named_in_the_order_of_its_edges() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Add(x, c) b = Relu(a) c = Neg(b) y = Neg(b) }"
    found = message(text)
    assert found.startswith("GraphError: the graph has a cycle of 3 nodes: ")
    ring = ["'a' (Add)", "'b' (Relu)", "'c' (Neg)"]
    order = sorted(ring, key=found.index)
    assert [ring.index(step) for step in order] in ([0, 1, 2], [1, 2, 0], [2, 0, 1])


def test_a_cycle_through_a_branch_is_found() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] a) { a = Neg(q) }, else_branch = e () => (float[2] b) { b = Neg(x) }>
        q = Relu(y)
    }"""
    assert "the graph has a cycle of 2 nodes" in message(text)


def test_unsorted_nodes_are_sorted() -> None:
    graph = read("g (float[2] x) => (float[2] y) { y = Neg(b) b = Relu(a) a = Abs(x) }")
    assert wiring(graph) == "Abs x -> a; Relu a -> b; Neg b -> y"


def test_nodes_get_names_of_their_own() -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) c = Relu(b) d = Neg(c) y = Relu(d) }")
    for node, name in zip(model.graph.node, ["n", "n", "", "n_2", "Relu_0"], strict=True):
        node.name = name
    assert [node.name for node in import_onnx(model).nodes] == ["n", "n_3", "Relu_0_2", "n_2", "Relu_0"]


@pytest.mark.parametrize(
    ("node", "options", "fault"),
    [
        ("y = Rellu(x)", {}, "'y' (Rellu): the domain 'ai.onnx' has no such op at opset 18; the nearest is 'Relu'"),
        (
            "y = com.acme.Foo(x)",
            {"domains": ["com.acme"]},
            "node 'y' (com.acme::Foo) is of the domain 'com.acme', opset 1, which neither ONNX nor ONNX Runtime knows",
        ),
        (
            "y = com.microsoft.Gelo(x)",
            {"domains": ["com.microsoft"]},
            "the domain 'com.microsoft' has no such op at opset 1; the nearest is 'Gelu'",
        ),
        ("y = Gelu(x)", {}, "the domain 'ai.onnx' has no such op at opset 18; it came with opset 20"),
        ("y = Relu(x)", {"opset": 99}, "the model imports opset 99, and the installed onnx"),
        (
            "s = Constant<value = float[1] {2.0}>() y = Upsample(x, s)",
            {},
            "Upsample is withdrawn since opset 10, and the model imports 18; export it at opset 9",
        ),
    ],
)
def test_an_unknown_op_is_named_with_domain_opset_node_and_nearest(
    node: str, options: dict[str, object], fault: str
) -> None:
    found = message(f"g (float[2] x) => (float[2] y) {{ {node} }}", **options)
    assert found.startswith("UnsupportedOpError")
    assert fault in found


def test_an_unknown_op_in_a_branch_is_found() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <
            then_branch = t () => (float[2] a) { a = Rellu(x) },
            else_branch = e () => (float[2] b) { b = Neg(x) }
        >
    }"""
    assert "UnsupportedOpError: node 'a' (Rellu)" in message(text)


def test_a_domain_without_an_opset_is_told() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = com.microsoft.Gelu(x) }")
    with pytest.raises(GraphError, match="'y'"):
        import_onnx(model)


def test_the_long_name_of_onnx_own_domain_is_the_short_one() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = ai.onnx.Relu(x) }")
    model.opset_import[0].domain = "ai.onnx"
    assert wiring(import_onnx(model)) == "Relu x -> y"


def test_ops_of_onnx_runtime_are_known() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = com.microsoft.QuickGelu(x) }", domains=["com.microsoft"])
    assert wiring(import_onnx(model)) == "com.microsoft::QuickGelu x -> y"


def test_local_functions_are_inlined() -> None:
    function = """<domain: "mine", opset_import: ["": 18]> twice (a) => (b) { t = Add(a, a) b = Relu(t) }"""
    text = "g (float[2] x) => (float[2] y) { h = mine.twice(x) y = mine.twice(h) }"
    model = parse(text, domains=["mine"], functions=function)
    graph = import_onnx(model)
    assert [node.op for node in graph.nodes] == ["Add", "Relu", "Add", "Relu"]
    assert "inlined: 1 local function" in graph.source.notes
    inputs = BACKEND.example_inputs(graph, 0)
    assert np.array_equal(BACKEND.reference(graph)(inputs)[0], run_whole(model, inputs)[0])


def test_functions_that_call_each_other_in_a_ring_are_refused() -> None:
    functions = """
        <domain: "mine", opset_import: ["": 18, "mine": 1]> f (a) => (b) { b = mine.g(a) }
        <domain: "mine", opset_import: ["": 18, "mine": 1]> g (a) => (b) { b = mine.f(a) }"""
    found = message("g (float[2] x) => (float[2] y) { y = mine.f(x) }", domains=["mine"], functions=functions)
    assert "'f' -> 'g' -> 'f'" in found or "'g' -> 'f' -> 'g'" in found


def test_initializers_among_the_inputs_are_parameters() -> None:
    model = parse("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    graph = import_onnx(model)
    assert (graph.inputs, tuple(graph.parameters)) == (("x",), ("w",))


def test_what_a_branch_captures_counts_as_its_nodes_inputs() -> None:
    graph = read("""g (float[2] x, bool c) => (float[2] y) {
        p = Abs(x)
        q = Neg(x)
        y = If(c) <
            then_branch = t () => (float[2] a) { a = Relu(p) },
            else_branch = e () => (float[2] b) { i = Add(p, q) b = Neg(i) }
        >
    }""")
    assert wiring(graph) == "Abs x -> p; Neg x -> q; If c p q -> y"


def test_what_a_nested_body_captures_counts_too() -> None:
    graph = read("""g (float[2] x, int64 n) => (float[2] y) {
        p = Abs(x)
        keep = Constant<value = bool {1}>()
        y = Loop(n, keep, x) <body = b (int64 i, bool go, float[2] s) => (bool on, float[2] r) {
            on = Identity(go)
            big = Constant<value = bool {1}>()
            r = If(big) <
                then_branch = t () => (float[2] a) { a = Add(s, p) },
                else_branch = e () => (float[2] b2) { b2 = Sub(s, p) }
            >
        }>
    }""")
    assert wiring(graph) == "Abs x -> p; Loop n keep x p -> y"


def test_a_branch_may_return_an_initialiser_of_its_own() -> None:
    model = parse("""g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <
            then_branch = t () => (float[2] a) <float[2] a = {1, 2}> { },
            else_branch = e () => (float[2] b) { b = Neg(x) }
        >
    }""")
    graph = import_onnx(model)
    for chosen, expected in ((True, [1.0, 2.0]), (False, [-5.0, -6.0])):
        inputs = {"x": np.array([5, 6], np.float32), "c": np.array(chosen)}
        (got,) = run_staged(graph, cut_evenly(graph, 1), inputs)
        assert got.tolist() == expected
        assert run_whole(model, inputs)[0].tolist() == expected


def test_constants_made_by_nodes_are_parameters_not_nodes() -> None:
    graph = read("""g (float[2,3] x) => (float[2,4] y) {
        shape = Constant<value = int64[2] {3, 4}>()
        w = ConstantOfShape<value = float[1] {0.5}>(shape)
        half = Constant<value = float {0.5}>()
        scaled = Mul(w, half)
        y = MatMul(x, scaled)
    }""")
    assert wiring(graph) == "MatMul x scaled -> y"
    assert [(p.name, p.shape, p.size_bytes, p.kind) for p in graph.parameters.values()] == [
        ("scaled", (3, 4), 48, "weight")
    ]


def test_weights_written_as_nodes_become_initializers() -> None:
    model = parse("g (float[2,3] x) => (float[2,100] y) { w = Constant<value = float[1] {0.0}>() y = MatMul(x, w) }")
    weight = np.arange(300, dtype=np.float32).reshape(3, 100)
    model.graph.node[0].attribute[0].t.CopyFrom(numpy_helper.from_array(weight))
    graph = import_onnx(model)
    assert list(graph.source.model.graph.initializers) == ["w"]
    assert BACKEND.reference(graph)({"x": np.ones((2, 3), np.float32)})[0][0].tolist() == weight.sum(0).tolist()


def test_random_numbers_are_no_constants() -> None:
    graph = read("""g (float[2] x) => (float[2] y) {
        noise = RandomNormal<shape = [2]>()
        loud = Mul(noise, noise)
        y = Add(x, loud)
    }""")
    assert wiring(graph) == "RandomNormal  -> noise; Mul noise noise -> loud; Add x loud -> y"
    assert graph.source.notes == ("drawn by chance, so that no two runs agree: 1 node ('RandomNormal_0')",)


def test_nodes_that_reach_no_output_are_left_out_and_named() -> None:
    graph = read("g (float[2] x) => (float[2] y) { dead = Neg(x) deader = Abs(dead) y = Relu(x) }")
    assert wiring(graph) == "Relu x -> y"
    assert graph.source.notes == ("left out, since no output needs them: 2 nodes ('Neg_0', 'Abs_0')",)
    assert graph.nodes[0].origin == 2


def test_results_that_nobody_reads_are_left_out() -> None:
    graph = read("g (float[1,1,4] x) => (float[1,1,2] y) { y, unread = MaxPool<kernel_shape=[2], strides=[2]>(x) }")
    assert wiring(graph) == "MaxPool x -> y"


def test_a_model_that_computes_nothing_has_nothing_to_place() -> None:
    model = parse("g (float[2] x) => (float[2] w) { unread = Neg(x) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    with pytest.raises(GraphError, match="'w'"):
        import_onnx(model)


def test_a_chain_of_many_thousand_nodes_in_the_worst_order_is_read() -> None:
    count = 3000
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("v0", f"v{count}")]
    graph = helper.make_graph(nodes[::-1], "chain", value[:1], value[1:])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    assert [node.outputs for node in import_onnx(model).nodes] == [(f"v{i + 1}",) for i in range(count)]
