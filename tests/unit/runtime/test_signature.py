"""An ONNX model is called with arrays by position or name, and gives a list."""

import pytest

from heterps_compile.errors import InputError
from heterps_compile.runtime.signature import ArraySignature

TWO = ArraySignature(("ids", "mask"), ("y", "y", "z"))


def test_positions_and_names_may_be_mixed() -> None:
    assert (
        TWO.bind((1, 2), {})
        == TWO.bind((1,), {"mask": 2})
        == TWO.bind((), {"mask": 2, "ids": 1})
        == {"ids": 1, "mask": 2}
    )


def test_outputs_come_as_a_list_in_order() -> None:
    assert TWO.assemble({"z": 3, "y": 2}) == [2, 2, 3]


@pytest.mark.parametrize(
    ("args", "kwargs", "fault"),
    [
        ((1,), {}, "'mask'.*'ids'.*'mask'"),
        ((1, 2, 3), {}, r"\b3\b"),
        ((1, 2), {"ids": 3}, "input 'ids'"),
        ((1, 2), {"idz": 3}, "'idz'"),
    ],
)
def test_wrong_arguments_are_told(args: tuple[int, ...], kwargs: dict[str, int], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        TWO.bind(args, kwargs)
