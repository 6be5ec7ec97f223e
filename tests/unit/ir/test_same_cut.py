"""A second reading of a model is cut where the first one is, also where some nodes are gone or new."""

import pytest
from sketch import sketch

from heterps_compile.errors import PartitionError
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import cut_graph
from heterps_compile.ir.same_cut import cut_alike

TRAINING = sketch("""
    in x 4x8
    gemm fc1 : x -> a 4x8
    norm norm1 : a -> b 4x8
    elementwise drop1 : b -> c 4x8
    gemm fc2 : c -> d 4x8
    elementwise drop2 : d -> e 4x8
    gemm fc3 : e -> y 4x8
    out y
""")
PARTITION = cut_graph(TRAINING, [[0, 1, 2], [3, 4], [5]])


def stages(graph: Graph) -> str:
    cuts = cut_alike(graph, TRAINING, PARTITION).stages
    return " | ".join(" ".join(graph.nodes[i].name for i in cut.nodes) for cut in cuts)


def test_nodes_go_to_the_stages_of_their_counterparts():
    assert stages(TRAINING) == "fc1 norm1 drop1 | fc2 drop2 | fc3"


def test_nodes_of_training_alone_may_be_gone_and_names_may_be_others():
    graph = sketch("""
        in x 4x8
        gemm linear : x -> a 4x8
        norm norm : a -> b 4x8
        gemm linear_1 : b -> c 4x8
        gemm linear_2 : c -> y 4x8
        out y
    """)
    assert stages(graph) == "linear norm | linear_1 | linear_2"


def test_new_nodes_go_where_their_inputs_are_made_or_where_they_are_read():
    graph = sketch("""
        in x 4x8
        other zeros : x -> z 4x8
        gemm fc1 : x -> a 4x8
        gemm fc2 : a -> b 4x8
        other scale : b -> c 4x8
        gemm fc3 : c z -> y 4x8
        out y
    """)
    assert stages(graph) == "fc1 | fc2 scale | zeros fc3"


def test_what_is_no_tensor_stays_inside_a_stage_and_nothing_runs_backwards():
    graph = sketch("""
        in x 4x8
        gemm fc1 : x -> a 4x8
        other split : a -> s opaque
        gemm fc2 : s -> b 4x8
        norm norm1 : b -> c 4x8
        gemm fc3 : c -> y 4x8
        out y
    """)
    assert stages(graph) == "fc1 | split fc2 norm1 | fc3"


def test_a_stage_with_nothing_left_is_told():
    graph = sketch("""
        in x 4x8
        gemm fc1 : x -> y 4x8
        out y
    """)
    with pytest.raises(PartitionError, match=r"stage 1\b"):
        stages(graph)
