"""The options of what an ONNX model is read at: its batch, its free dimensions, values of its inputs.

Not covered: which commands have them (``command_options.py``); the default numbers (``ir/default_size.py``).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heterps_compile.errors import InputError
from heterps_compile.escape import short
from heterps_compile.ir.default_size import BATCH as DEFAULT_BATCH
from heterps_compile.ir.default_size import OTHER
from heterps_compile.options import Option, Repeated, Sizes, Text, Whole, one_of_each

_LONGEST = 10_000  # characters of a value; larger arrays come in files


@dataclass(frozen=True, slots=True)
class Values(Repeated):
    """``NAME=VALUE`` any number of times; a value is a number, a list in brackets, true, false or text."""

    def collect(self, texts: Sequence[str]) -> Any:
        """Find the value of every name."""
        return one_of_each(map(_read_value, texts))


def _read_value(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if not name or not value or len(value) > _LONGEST:
        raise InputError(
            f"{short(text)} is not NAME=VALUE with a number or a list of {_LONGEST} characters at most, as sr=16000"
        )
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError) as error:
        if value.lstrip().startswith(("[", "{")):
            raise InputError(f"{short(value)} of {short(name)} is no list, such as [[1,2],[3,4]]") from error
        return name, value


BATCH = Option(
    name="batch",
    words="--batch",
    type=Whole(),
    help="Samples in one step; a batch that the model fixes is opened where no node mixes samples.",
    metavar="N",
    default_words=f"{DEFAULT_BATCH} where it is free",
)
SHAPES = Option(
    name="shapes",
    words="--shape",
    type=Sizes(),
    help="Number of a free dimension; may be repeated.",
    metavar="NAME=N",
    default={},
    default_words=f"{OTHER}, or the nearest that the model takes",
)
VALUES = Option(
    name="values",
    words="--input",
    type=Values(),
    help="Value of an input, a number or a list, for shapes and verification; may be repeated.",
    metavar="NAME=VALUE",
    default={},
    default_words="drawn",
)
INPUTS = Option(
    name="inputs",
    words="--inputs",
    type=Text(),
    help="Arrays of inputs, as numpy.savez writes them.",
    metavar="FILE.npz",
)
