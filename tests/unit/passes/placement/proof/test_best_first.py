"""The loop of branch and bound, on trees that are drawn here."""

from dataclasses import dataclass

import numpy as np
import pytest

from heterps_compile.passes.deadline import TimeUpError
from heterps_compile.passes.placement.proof.best_first import best_first


@dataclass(frozen=True)
class Node:
    name: str
    bound: float


#   a 1 --+-- b 3 --+-- d 4, which stays open
#         |         +-- e 7
#         +-- c 5 (closed: no parts)
PARTS = {"a": [Node("b", 3), Node("c", 5)], "b": [Node("d", 4), Node("e", 7)], "c": [], "d": None, "e": []}


def search(ceiling: float, late: str = "", most: int = 99) -> tuple[float, str, list[float]]:
    """Return the bound, the nodes in the order in which they were branched, and the bounds reported."""
    branched, reported = list[str](), list[float]()

    def branch(node: Node) -> list[Node] | None:
        if node.name == late:
            raise TimeUpError
        branched.append(node.name)
        return PARTS[node.name]

    bound = best_first(Node("a", 1), branch, lambda: ceiling, reported.append, is_over=lambda: len(branched) >= most)
    return bound, "".join(branched), reported


def test_the_lowest_bound_is_branched_first_and_a_node_that_stays_open_keeps_its_bound() -> None:
    assert search(9) == (4, "abdce", [1, 3, 4, 4, 4])


def test_what_is_at_the_ceiling_is_not_branched() -> None:
    assert search(5) == (4, "abd", [1, 3, 4])
    assert search(4) == (4, "ab", [1, 3])


@pytest.mark.parametrize(("late", "bound"), [("a", 1), ("b", 3), ("c", 4), ("e", 4)])
def test_the_bound_holds_wherever_the_time_is_up(late: str, bound: float) -> None:
    assert search(9, late)[0] == bound


def test_it_stops_where_it_is_told_to() -> None:
    assert search(9, most=2) == (4, "ab", [1, 3])


def test_where_every_node_is_closed_nothing_is_below_the_ceiling() -> None:
    assert best_first(Node("c", 5), lambda node: PARTS[node.name], lambda: 9.0) == np.inf
