"""What a layer is called and what it is; where it joins its result with those of others."""

from dataclasses import replace

import pytest
from sketch import sketch

from heterps_compile.ir.layer_titles import describe_layer, is_made_up, join_of, layer_title, what_layer_is
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.report.findings import Findings
from heterps_compile.report.pictures.layer_graph import LayerEdge

TABLES = """
    in ids 4
    par table_a 1000x16
    par table_b 2000x16
    par w 32x8
    embedding emb_a : ids table_a -> a 4x16
    embedding emb_b : ids table_b -> b 4x16
    move cat : a b -> both 4x32
    gemm fc : both w -> y 4x8
    out y
"""

RESIDUAL = """
    in x 1x64x8x8
    par w1 64x64x3x3
    par w2 128x64x1x1
    conv first : x w1 -> a 1x64x8x8 flops=9
    conv second : a w1 -> b 1x64x8x8 flops=9
    elementwise add : b a -> c 1x64x8x8
    elementwise act : c -> d 1x64x8x8
    conv third : d w2 -> y 1x128x8x8 flops=9
    out y
"""


def edges(text: str) -> list[LayerEdge]:
    layers = group_nodes(sketch(text))
    return [edge for edge, _ in Findings(None, layers=layers).edges]  # type: ignore[arg-type]


def test_a_layer_is_told_by_kind_and_sizes():
    layers = group_nodes(sketch(TABLES))
    assert [what_layer_is(layers, i) for i in range(3)] == [
        "embedding 1,000 x 16",
        "embedding 2,000 x 16",
        "gemm 32 -> 8",
    ]
    layers = group_nodes(sketch(RESIDUAL))
    assert [what_layer_is(layers, i) for i in (1, 2)] == ["conv 3x3, 64 -> 64", "conv 1x1, 64 -> 128"]


def test_a_made_up_name_gives_way_to_the_module_path():
    graph = sketch(RESIDUAL.replace("third", "n10"))
    nodes = tuple(replace(node, module_path="layer2.0") for node in graph.nodes)
    layers = group_nodes(replace(graph, nodes=nodes))
    assert [layer_title(layers, i) for i in range(3)] == ["first", "second", "layer2.0"]
    assert describe_layer(layers, 2) == "conv 1x1, 64 -> 128, layer2.0"
    assert describe_layer(layers, 1) == "conv 3x3, 64 -> 64"
    assert [layer.name for layer in layers.layers] == ["first", "second", "n10"]


@pytest.mark.parametrize(
    ("name", "op", "expected"),
    [
        ("n10", "Conv", True),
        ("17", "Conv", True),
        ("Conv_12", "Conv", True),
        ("node_embedding_17", "Gather", True),
        ("node_Gemm_192", "Gemm", True),
        ("linear_3", "aten.linear.default", True),
        ("/encoder/layer.0/MatMul", "MatMul", False),
        ("fc1", "Gemm", False),
        ("head", "Gemm", False),
    ],
)
def test_a_number_or_the_op_with_a_number_is_made_up(name, op, expected):
    assert is_made_up(name, op) is expected


def test_tables_feed_the_concatenation_and_not_another_table():
    layers = group_nodes(sketch(TABLES))
    joins = [join_of(layers, i) for i in range(3)]
    assert [node and node.name for node in joins] == [None, "cat", None]
    assert edges(TABLES) == [LayerEdge(0, 1, into_join=True), LayerEdge(1, 2, after_join=True)]


def test_a_shortcut_feeds_the_sum_behind_the_second_convolution():
    assert edges(RESIDUAL) == [
        LayerEdge(0, 1),
        LayerEdge(0, 1, into_join=True),
        LayerEdge(1, 2, after_join=True),
    ]


def test_a_renamed_layer_is_told_by_its_first_node_of_the_kind():
    layers = group_nodes(sketch(RESIDUAL))
    renamed = replace(layers, layers=tuple(replace(layer, name=f"b{i}") for i, layer in enumerate(layers.layers)))
    assert [what_layer_is(renamed, i) for i in range(3)] == [what_layer_is(layers, i) for i in range(3)]
    assert [layer_title(renamed, i) for i in range(3)] == ["b0", "b1", "b2"]
    assert join_of(renamed, 1) == join_of(layers, 1)
