"""The number of a free dimension that the compiler chose, since the user gave none.

It is an ordinary number in :attr:`heterps_compile.ir.graph.Graph.bindings` that knows why it was chosen, so that
every copy of the bindings keeps that: the plan, its file, and a later compilation with the plan's numbers.

Not covered: the choice itself (``frontends/onnx_free_dims.py``).
"""

from collections.abc import Mapping
from typing import Final, Literal, Self

from heterps_compile.escape import printable, shorten

BATCH: Final = 32
"""Samples of a free batch."""
OTHER: Final = 128
"""Size of any other free dimension."""

_NAME_SHOWN = 60

Why = Literal["default", "nearest"]


class DefaultSize(int):
    """The number of a dimension that the user left free.

    Attributes:
        why: ``"default"``, or ``"nearest"`` for the nearest number that the model takes.
        is_batch: Whether the dimension is the batch.
        same_as: The dimension that always has the same number; "" where there is none.
    """

    why: Why
    is_batch: bool
    same_as: str

    def __repr__(self) -> str:
        return int.__repr__(self)

    def __new__(cls, number: int, why: Why = "default", *, is_batch: bool = False, same_as: str = "") -> Self:
        """Make the number with its reason."""
        made = super().__new__(cls, number)
        made.why, made.is_batch, made.same_as = why, is_batch, same_as
        return made

    @property
    def wanted(self) -> int:
        """Compute the number that is tried first."""
        return BATCH if self.is_batch else OTHER


def defaults_of(bindings: Mapping[str, int]) -> dict[str, DefaultSize]:
    """Select the bindings that the compiler chose, the batch first."""
    found = {name: number for name, number in bindings.items() if isinstance(number, DefaultSize)}
    return dict(sorted(found.items(), key=lambda item: not item[1].is_batch))


def defaults_in_words(bindings: Mapping[str, int]) -> str:
    """List the chosen numbers with the options that change them."""
    return ", ".join(
        f"{shorten(printable(name), _NAME_SHOWN)} = {_in_words(name, size)}"
        for name, size in defaults_of(bindings).items()
    )


def _in_words(name: str, size: DefaultSize) -> str:
    shown = shorten(printable(name), _NAME_SHOWN)
    option = "--batch" if size.is_batch else f"--shape {shown}=..."
    if size.same_as:
        return f"{size} (as {shorten(printable(size.same_as), _NAME_SHOWN)})"
    if size.why == "nearest":
        return f"{size} ({option}; {size.wanted} was not accepted)"
    return f"{size} ({option})"
