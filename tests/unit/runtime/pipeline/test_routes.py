from dataclasses import dataclass

import pytest

from heterps_compile.errors import PlanError
from heterps_compile.runtime.pipeline.routes import make_routes


@dataclass
class Ends:
    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def drawn(stages: list[tuple[str, str]], graph_outputs: str) -> list[str]:
    ends = [Ends(index, tuple(i.split()), tuple(o.split())) for index, (i, o) in enumerate(stages)]
    return [f"{r.source} -> {r.target}: {' '.join(r.values)}" for r in make_routes(ends, graph_outputs.split())]


def test_the_drawing():
    stages = [("x", "a b y0"), ("a", "c"), ("b c x", "y1")]
    assert drawn(stages, "y0 y1") == ["0 -> 1: a", "0 -> 2: b y0", "1 -> 2: c"]


def test_a_value_goes_straight_to_every_reader_and_once_in_a_message():
    stages = [("x", "a"), ("a", "b"), ("a", "c"), ("a b c", "y")]
    assert drawn(stages, "y a") == ["0 -> 1: a", "0 -> 2: a", "0 -> 3: a", "1 -> 3: b", "2 -> 3: c"]


def test_a_graph_input_is_not_sent_even_where_the_model_returns_it():
    assert drawn([("x", "a"), ("a", "y")], "x y") == ["0 -> 1: a"]


def test_a_value_of_a_later_stage_is_refused():
    with pytest.raises(PlanError, match=r"stage 0\b.*'y'.*stage 1\b"):
        drawn([("y", "a"), ("a", "y")], "y")


def test_every_message_of_a_step_has_a_tag_of_its_own():
    routes = make_routes([Ends(0, (), ("a", "b")), Ends(1, ("a",), ("c",)), Ends(2, ("b", "c"), ("y",))], ["y"])
    tags = [
        tag
        for route in routes
        for is_backward in (False, True)
        for tag in (
            route.header_tag(4, is_backward=is_backward),
            *(route.tag(i, 4, is_backward=is_backward) for i in range(4)),
        )
    ]
    assert len(routes) == 3
    assert sorted(tags) == list(range(30))
