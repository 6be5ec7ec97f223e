"""Record the values of inputs that a plan was made with, and find them again.

Small values are in the plan; of larger ones it has a hash, and a later compilation asks for the same file again.

Not covered: how values are given (``frontends/onnx_given.py``).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

from heterps_compile.errors import PlanError, StalePlanError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import Graph

_MOST_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class InputValue:
    """The value of an input that the user gave.

    Attributes:
        shape: Of the array.
        sha256: Of its data type, shape and elements.
        elements: In row-major order; empty where there are more than 64.
    """

    shape: tuple[int, ...]
    sha256: str
    elements: tuple[bool | int | float | str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Check whether the elements are all here."""
        return prod(self.shape) == len(self.elements)


def values_of(graph: Graph) -> dict[str, InputValue]:
    """Find the values of inputs that a graph was read with."""
    given: Mapping[str, Any] = getattr(graph.source, "given", {})
    return {name: _record(array) for name, array in given.items()}


def _record(array: Any) -> InputValue:
    shape = tuple(array.shape)
    elements: tuple[Any, ...] = ()
    if array.size <= _MOST_ELEMENTS:
        elements = tuple(array.reshape(-1).tolist())
        if any(isinstance(x, complex) or (isinstance(x, float) and not isfinite(x)) for x in elements):
            elements = ()
    data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    digest = hashlib.sha256(f"{array.dtype} {list(shape)} ".encode() + data)
    return InputValue(shape, digest.hexdigest(), elements)


def values_again(
    recorded: Mapping[str, InputValue], given: Mapping[str, Any], *, must_have_all: bool
) -> dict[str, Any]:
    """Find the values to read a plan's model with: those given now, then those that the plan has.

    Args:
        recorded: Of the plan.
        given: By the user, now.
        must_have_all: Whether stages are to be verified with them; shapes depend on small values alone.

    Raises:
        StalePlanError: where all are needed, and the plan has only the hash of one that is not given now.
    """
    found = dict(given)
    for name, value in recorded.items():
        if name in found:
            continue
        if not value.is_whole and not must_have_all:
            continue
        if not value.is_whole:
            raise StalePlanError(
                f"the plan was made with a value of input {printable(name)!r} (shape {list(value.shape)}, SHA-256 "
                f"{value.sha256[:12]}...), which it does not hold. Fix: give it again, --inputs FILE.npz"
            )
        import numpy as np  # noqa: PLC0415 - reading a plan does not need it

        try:
            found[name] = np.asarray(value.elements).reshape(value.shape)
        except ValueError as error:
            raise PlanError(f"the plan's value of input {printable(name)!r} has shape {list(value.shape)}") from error
    return found
