"""Every law of a graph, broken on purpose."""

from dataclasses import replace
from types import MappingProxyType

import pytest
from sketch import sketch

from heterps_compile.errors import GraphError
from heterps_compile.ir.graph import Graph, Value
from heterps_compile.ir.laws import verify_graph


def graph() -> Graph:
    return sketch("""
        in x 4x8
        par w 8x8
        gemm fc1 : x w -> a 4x8
        elementwise act : a -> y 4x8
        out y
    """)


def test_a_sound_graph_passes() -> None:
    verify_graph(graph())


def broken(graph: Graph) -> str:
    with pytest.raises(GraphError) as caught:
        verify_graph(graph)
    return str(caught.value)


def test_two_nodes_of_one_name() -> None:
    nodes = graph().nodes
    twice = replace(nodes[1], name="fc1")
    assert "node 'fc1' appears twice" in broken(replace(graph(), nodes=(nodes[0], twice)))


def test_a_value_made_twice() -> None:
    nodes = graph().nodes
    assert "value 'a' is made twice" in broken(replace(graph(), nodes=(*nodes, replace(nodes[0], name="again"))))


def test_a_value_read_before_it_is_made() -> None:
    first, second = graph().nodes
    assert "node 'act' reads 'a', which no earlier node makes" in broken(replace(graph(), nodes=(second, first)))


def test_an_output_that_nobody_makes() -> None:
    assert "output 'nothing' is made by no node" in broken(replace(graph(), outputs=("nothing",)))


def test_a_value_without_description() -> None:
    values = {name: value for name, value in graph().values.items() if name != "a"}
    assert "value 'a' has no dtype and shape" in broken(replace(graph(), values=MappingProxyType(values)))


def test_an_unknown_dtype() -> None:
    values = {**graph().values, "a": Value("a", "float31", (4, 8))}
    assert "unknown dtype 'float31'" in broken(replace(graph(), values=values))


def test_a_symbol_without_a_number() -> None:
    values = {**graph().values, "a": Value("a", "float32", ("seq", 8))}
    assert "dimension 'seq', which has no number" in broken(replace(graph(), values=values))


def test_a_negative_dimension() -> None:
    values = {**graph().values, "a": Value("a", "float32", (-1, 8))}
    assert "negative dimension" in broken(replace(graph(), values=values))
