"""Calls of torch models: what fits, what does not, and the same from a file."""

import json
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_models import REAL

from heterps_compile.errors import InputError
from heterps_compile.frontends.results import Mapped
from heterps_compile.frontends.torch_call import CallStructure, Fixed, call_from_json
from heterps_compile.frontends.torch_fx import import_torch


class Flagged(nn.Module):
    def forward(self, x: Tensor, y: Tensor, mode: str = "sum", scale: float = 1.5) -> dict[str, Any]:
        return {"out": (x + y) * scale, "mode": None}


X, Y = torch.ones(2, 3), torch.zeros(2, 3)


@cache
def call() -> CallStructure:
    return import_torch(Flagged(), (X,), {"y": Y, "mode": "sum", "scale": 1.5}).source.call


def from_file(structure: CallStructure, times: int = 1) -> CallStructure:
    for _ in range(times):
        structure = call_from_json(json.loads(structure.to_json()))
    return structure


@pytest.mark.parametrize("times", [0, 1, 2])
def test_arguments_may_be_given_by_position_or_by_name(times: int) -> None:
    structure = from_file(call(), times)
    rest = {"mode": "sum", "scale": 1.5}
    for args, kwargs in (
        ((X,), {"y": Y, **rest}),
        ((X, Y), rest),
        ((X, Y, "sum", 1.5), {}),
        ((), {"y": Y, "x": X, **rest}),
    ):
        values = structure.bind(args, kwargs)
        assert values == {"x": X, "y": Y}
        assert structure.unbind(values) == ((X,), {"y": Y, **rest})
    assert structure.assemble({"mul": X}) == {"out": X, "mode": None}


@pytest.mark.parametrize(
    ("args", "kwargs", "fault"),
    [
        ((X,), {"mode": "sum", "scale": 1.5}, "'y'.*missing"),
        ((X, Y, "sum", 1.5, 2), {}, r"\b5\b.*\b1\b"),
        ((X, Y), {"y": Y, "mode": "sum", "scale": 1.5}, "argument 'y'"),
        ((X, Y), {"mode": "sum", "scale": 1.5, "z": 1}, "'z'"),
        ((X, Y, "sum", 2), {}, r"\b2\b.*1.5"),
        ((X, (Y,), "sum", 1.5), {}, "'mode'"),
        ((X, 3, "sum", 1.5), {}, "'y'.*tensor"),
        ((X, Y.double(), "sum", 1.5), {}, r"'y'.*float64\[2, 3\].*float32\[2, 3\]"),
        ((X[0], Y, "sum", 1.5), {}, r"'x'.*float32\[3\]"),
    ],
)
@pytest.mark.parametrize("times", [0, 1])
def test_arguments_that_do_not_fit_are_told(
    times: int, args: tuple[Any, ...], kwargs: dict[str, Any], fault: str
) -> None:
    with pytest.raises(InputError, match=fault):
        from_file(call(), times).bind(args, kwargs)


def test_a_missing_output_is_named() -> None:
    with pytest.raises(InputError, match=r"'mul'.*'x'"):
        call().assemble({"x": X})


def test_a_librarys_own_result_type_comes_back_from_a_file_as_a_plain_one() -> None:
    model, args, kwargs = REAL["bert"]()
    structure = from_file(import_torch(model.eval(), args, kwargs).source.call)
    result = model(**kwargs)
    flat = structure.disassemble(result)
    again = structure.assemble(dict(zip(("layer_norm_4", "tanh"), flat, strict=True)))
    assert type(again) is Mapped
    assert list(again) == list(result) == ["last_hidden_state", "pooler_output"]
    assert again["pooler_output"] is again.pooler_output is again[1] is result.pooler_output
    assert again[:2] == again.to_tuple() == result.to_tuple()
    assert again.hidden_states is result.hidden_states is None
    assert {**again} == {**result}
    with pytest.raises(AttributeError, match=r"'nothing'.*'last_hidden_state'"):
        _ = again.nothing


@pytest.mark.parametrize("content", [{}, {"takes": "x"}, {"takes": "", "inputs": 3, "returns": "", "outputs": []}])
def test_what_is_no_call_structure_is_told(content: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        call_from_json(content)


def test_a_number_that_json_does_not_have_is_the_same_from_a_file() -> None:
    class Typed(nn.Module):
        def forward(self, x: Tensor, limit: float = 0.0) -> Tensor:
            return x.clamp(max=limit)

    structure = import_torch(Typed(), (X, float("inf"))).source.call
    assert structure.in_leaves == ("x", Fixed(float("inf")))
    again = from_file(structure)
    assert again.in_leaves == structure.in_leaves
    assert again.bind((X, float("inf")), {}) == {"x": X}
    with pytest.raises(InputError, match=r"1.0.*inf"):
        again.bind((X, 1.0), {})
