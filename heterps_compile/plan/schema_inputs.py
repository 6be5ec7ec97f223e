"""Parts of ``plan.json`` on what the model's inputs were at: default sizes, and values that the user gave.

Not covered: the rest of the file (``schema.py``).
"""

from pydantic import BaseModel

from heterps_compile.ir.default_size import Why

from .schema_types import STRICT, Count, Name, Sha256


class DefaultPart(BaseModel):
    """Why the compiler chose the number of a free dimension; ``same_as`` is a dimension with its number, or empty."""

    model_config = STRICT

    why: Why
    same_as: Name


class ValuePart(BaseModel):
    """A value of an input that the user gave; there are no ``elements`` where there would be many."""

    model_config = STRICT

    shape: list[Count]
    sha256: Sha256
    elements: list[bool | int | float | str]
