import random
from dataclasses import replace

from sketch import sketch

from heterps_compile.ir.graph import Graph, Value
from heterps_compile.ir.layers import Layer, LayerGraph
from heterps_compile.plan.fingerprint import make_fingerprints

# The query and the key of an attention are the same product of the same input; only their readers tell them apart.
ATTENTION = """
    in x 4x8
    par q 8x8
    par k 8x8
    gemm query : x q -> a 4x8
    gemm key : x k -> b 4x8
    matmul scores : a b -> c 4x4
    elementwise act : c -> d 4x4
    out d
"""


def one_layer_a_node(graph: Graph) -> LayerGraph:
    return LayerGraph(
        graph,
        tuple(
            Layer(node.name, node.kind, (i,), tuple(n for n in node.inputs if n in graph.parameters))
            for i, node in enumerate(graph.nodes)
        ),
    )


def of(text: str) -> dict[str, str]:
    return make_fingerprints(one_layer_a_node(sketch(text)))


def renamed_and_renumbered(graph: Graph, seed: int) -> tuple[Graph, dict[str, str]]:
    """Rename a graph's nodes, list them in another topological order, and return the new name of each."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    new = {
        name: f"v{i}"
        for i, name in enumerate(
            chance.sample([*graph.values, *graph.parameters], k=len(graph.values) + len(graph.parameters))
        )
    }
    left, made, order = list(graph.nodes), {*graph.inputs, *graph.parameters}, []
    while left:
        node = chance.choice([node for node in left if made.issuperset(node.inputs)])
        left.remove(node)
        made.update(node.outputs)
        order.append(node)
    called = {node.name: f"n{i}" for i, node in enumerate(order)}
    nodes = tuple(
        replace(
            node,
            name=called[node.name],
            inputs=tuple(new[n] for n in node.inputs),
            outputs=tuple(new[n] for n in node.outputs),
        )
        for node in order
    )
    return replace(
        graph,
        nodes=nodes,
        inputs=tuple(new[n] for n in graph.inputs),
        outputs=tuple(new[n] for n in graph.outputs),
        values={new[n]: Value(new[n], v.dtype, v.shape) for n, v in graph.values.items()},
        parameters={new[n]: replace(p, name=new[n], storage=new[n]) for n, p in graph.parameters.items()},
    ), called


def parts(fingerprints: dict[str, str], place: int) -> dict[str, str]:
    return {name: fingerprint.split("-")[place] for name, fingerprint in fingerprints.items()}


def test_names_and_numbers_do_not_change_it():
    graph = sketch(ATTENTION)
    before = make_fingerprints(one_layer_a_node(graph))
    for seed in range(5):
        other, called = renamed_and_renumbered(graph, seed)
        after = make_fingerprints(one_layer_a_node(other))
        assert {name: after[called[name]] for name in before} == before


def test_equal_layers_differ_by_what_reads_them():
    found = of(ATTENTION)
    assert parts(found, 0)["query"] == parts(found, 0)["key"]
    assert parts(found, 1)["query"] == parts(found, 1)["key"]
    assert parts(found, 2)["query"] != parts(found, 2)["key"]


def test_equal_towers_differ_by_the_inputs_they_read():
    found = of("in x 4x8\n in y 4x8\n par v 8x8\n par w 8x8\n gemm a : x v -> p 4x8\n gemm b : y w -> q 4x8\n out p q")
    assert parts(found, 0)["a"] == parts(found, 0)["b"]
    assert parts(found, 1)["a"] != parts(found, 1)["b"]


def test_a_layer_put_in_between_changes_what_is_after_it_above_and_what_is_before_it_below():
    plain, longer = of(ATTENTION), of(ATTENTION.replace("act : c", "extra : c -> e 4x4\n elementwise act : e"))
    kept = {place: [n for n in plain if parts(plain, place)[n] == parts(longer, place)[n]] for place in range(3)}
    assert kept == {0: ["query", "key", "scores", "act"], 1: ["query", "key", "scores"], 2: ["act"]}


def test_another_shape_of_a_parameter_or_a_value_changes_what_the_layer_is():
    plain, wider = of(ATTENTION), of(ATTENTION.replace("par k 8x8", "par k 8x9"))
    assert [name for name in plain if parts(plain, 0)[name] != parts(wider, 0)[name]] == ["key"]


def test_the_name_of_a_symbolic_dimension_does_not_count():
    graph = sketch(ATTENTION)
    open_n, open_batch = (
        replace(graph, values={**graph.values, "x": Value("x", "float32", (symbol, 8))}, bindings={symbol: 4})
        for symbol in ("N", "batch")
    )
    found = make_fingerprints(one_layer_a_node(open_n))
    assert found == make_fingerprints(one_layer_a_node(open_batch)) != of(ATTENTION)
