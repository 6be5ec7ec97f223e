"""A partition says what crosses, and breaks loudly where it breaks a law."""

from dataclasses import replace

import pytest
from sketch import sketch

from heterps_compile.errors import PartitionError
from heterps_compile.ir.partition import Partition, cut_graph, verify_partition

SKIP = sketch("""
    in x 4x8
    in z 4x8
    par w 8x8
    par head 8x8 tied=w
    gemm fc1 : x w -> a 4x8
    gemm fc2 : a z -> b 4x8
    gemm fc3 : b head -> c 4x8
    elementwise sum : a c -> y 4x8
    out y b
""")


def drawn(partition: Partition) -> list[str]:
    return [f"{' '.join(s.inputs)} -> {' '.join(s.outputs)} [{' '.join(s.parameters)}]" for s in partition.stages]


def test_a_skip_leaves_once_and_enters_where_it_is_read() -> None:
    partition = cut_graph(SKIP, [[0], [1], [2, 3]])
    assert drawn(partition) == ["x -> a [w]", "a z -> b []", "b a -> y [head]"]
    assert partition.replicated == ("w",)


def test_tied_parameters_in_one_stage_are_not_replicated() -> None:
    assert cut_graph(SKIP, [[0, 1, 2, 3]]).replicated == ()


@pytest.mark.parametrize(
    ("groups", "law"),
    [
        ([[0, 1], [2]], r"'sum'.*\b0\b"),
        ([[0, 1, 2], [2, 3]], r"'fc3'.*\b2\b"),
        ([[0, 1, 2, 3], []], r"stage 1\b"),
        ([[0, 2], [1, 3]], r"stage 0\b.*'b'"),
        ([[1, 2, 3], [0]], r"stage 0\b.*'a'"),
    ],
)
def test_a_broken_law_is_named(groups: list[list[int]], law: str) -> None:
    with pytest.raises(PartitionError, match=law):
        cut_graph(SKIP, groups)


def test_undeclared_replication_is_an_error() -> None:
    partition = cut_graph(SKIP, [[0], [1, 2, 3]])
    with pytest.raises(PartitionError, match=r"'head'.*\b0\b.*\b1\b.*declared replicated"):
        verify_partition(SKIP, replace(partition, replicated=()))


def test_a_stage_that_lacks_a_parameter_is_an_error() -> None:
    partition = cut_graph(SKIP, [[0], [1, 2, 3]])
    first, second = partition.stages
    with pytest.raises(PartitionError, match=r"'fc1'.*'w'.*stage 0\b"):
        verify_partition(SKIP, replace(partition, stages=(replace(first, parameters=()), second)))


def test_an_output_that_is_not_sent_is_an_error() -> None:
    partition = cut_graph(SKIP, [[0], [1, 2, 3]])
    first, second = partition.stages
    with pytest.raises(PartitionError, match="'y'"):
        verify_partition(SKIP, replace(partition, stages=(first, replace(second, outputs=("b",)))))


def test_what_is_no_tensor_does_not_cross() -> None:
    graph = sketch("""
        in x 4x8
        recurrent lstm : x -> t opaque
        view item : t -> y 4x8
        out y
    """)
    with pytest.raises(PartitionError, match=r"'t'.*enters stage 1\b"):
        cut_graph(graph, [[0], [1]])
