"""Columns as objects of JSON documents.

Left out: numbers that are not finite, which the writer of a document replaces.
"""

from collections.abc import Sequence
from typing import Any

from .column import ABSENT, Column, Medium, Row, shown


def record(columns: Sequence[Column[Row]], row: Row) -> dict[str, Any]:
    """Return the values of a row by key; a key has its unit as its suffix."""
    values = ((column.key, column.value(row)) for column in shown(columns, Medium.DOCUMENT))
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values if value is not ABSENT}
