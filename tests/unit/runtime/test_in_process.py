"""Stages run in order, skips arrive, and what nobody reads any more is let go."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from heterps_compile.errors import BackendError
from heterps_compile.runtime.in_process import run_stages


@dataclass(frozen=True)
class Ends:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


ENDS = [Ends(("x",), ("a",)), Ends(("a", "z"), ("b",)), Ends(("b", "a"), ("y",))]
STAGES: list[Callable[..., tuple[int, ...]]] = [
    lambda x: (x + 1,),
    lambda a, z: (a * z,),
    lambda b, a: (b - a,),
]


def test_a_value_reaches_every_later_reader() -> None:
    assert run_stages(ENDS, STAGES, {"x": 2, "z": 10}, ["y"]) == {"y": (3 * 10) - 3}


def test_inputs_and_inner_values_can_be_outputs() -> None:
    assert run_stages(ENDS, STAGES, {"x": 2, "z": 10}, ["x", "a", "y"]) == {"x": 2, "a": 3, "y": 27}


def test_a_stage_that_breaks_its_promise_is_named() -> None:
    with pytest.raises(BackendError, match=r"stage 1\b.*\b2\b.*\b1\b"):
        run_stages(ENDS, [STAGES[0], lambda a, z: (a, z), STAGES[2]], {"x": 2, "z": 10}, ["y"])
