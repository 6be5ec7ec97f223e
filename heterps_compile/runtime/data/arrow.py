"""A column of Arrow as a tensor: numbers, booleans, text as ids, and lists of them that are all of one length.

Left out: times, decimals, structures; lists of different lengths (pad them when the file is written).
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps_compile.errors import InputError
from heterps_compile.escape import printable

from .hashed_ids import NO_TABLES, TableRows, hash_utf8


@dataclass(frozen=True, slots=True)
class Place:
    """Where a column's values come from, for messages: file, column, and the number of the first row in the file."""

    file: str
    column: str
    first_row: int

    def __str__(self) -> str:
        return f"column {printable(self.column)!r} of {self.file}"


@dataclass(frozen=True, slots=True)
class Conversion:
    """How values become numbers.

    Attributes:
        fill: What stands for missing numbers; None makes them an error.
        rows: Of the tables that text is hashed into.
    """

    fill: float | None = None
    rows: TableRows = NO_TABLES

    def words(self) -> tuple[object, ...]:
        """Return what a digest of the data has of it."""
        return (self.fill,) if self.rows == NO_TABLES else (self.fill, str(self.rows))


AS_THEY_ARE = Conversion()


def pyarrow_with(*parts: str) -> Any:
    """Import pyarrow, an extra, and modules of it."""
    for part in parts:
        import_module(f"pyarrow.{part}")
    return import_module("pyarrow")


def column_tensor(column: Any, place: Place, how: Conversion) -> Tensor:
    """Return a chunked array of Arrow as a tensor [rows, ...].

    Args:
        column: A ``pyarrow.ChunkedArray``.
        place: Where it comes from.
        how: Its values become numbers.

    Raises:
        InputError: naming column and row, where values are missing, lists differ in length, or no tensor holds them.
    """
    kinds = pyarrow_with("types").types
    array = column.combine_chunks()
    if kinds.is_dictionary(array.type):
        array = array.dictionary_decode()
    rows, shape = len(array), [len(array)]
    while kinds.is_list(array.type) or kinds.is_large_list(array.type) or kinds.is_fixed_size_list(array.type):
        array, length = _flat(array, place, elements_a_row=_product(shape) // max(rows, 1))
        shape.append(length)
    kind = array.type
    if is_text(kind):
        return torch.from_numpy(_hashed(array, place, how.rows)).reshape(shape)
    if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)):
        raise InputError(
            f"{place} holds {printable(str(kind))}, which is neither number nor text; turn it into one of them first"
        )
    if array.null_count:
        array = _filled(array, place, how.fill, elements_a_row=_product(shape) // max(rows, 1))
    numbers = array.to_numpy(zero_copy_only=False)
    return torch.from_numpy(np.require(numbers, requirements=["C", "W"])).reshape(shape)


def is_text(kind: Any) -> bool:
    """Tell whether a type of Arrow is text."""
    kinds = pyarrow_with("types").types
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def element_type(kind: Any) -> Any:
    """Return the type of what lists and dictionaries of a type of Arrow hold."""
    kinds = pyarrow_with("types").types
    while kinds.is_nested(kind) or kinds.is_dictionary(kind):
        if not hasattr(kind, "value_type"):
            return kind
        kind = kind.value_type
    return kind


def _hashed(array: Any, place: Place, rows: TableRows) -> NDArray[np.int64]:
    """Return the ids of texts."""
    arrow = pyarrow_with()
    column = place.column
    table = rows.of(column)
    if table is None:
        raise InputError(
            f"{place} holds text, which is hashed to ids of a table; say how many rows that has: "
            f"--data '...?rows={column}:100000', or rows=100000 for all columns of text (an input of the model that "
            f"goes into one table as it is needs none)"
        )
    array = array.cast(arrow.large_string())
    is_missing = array.is_null().to_numpy(zero_copy_only=False)
    _, offsets, text = array.buffers()
    places = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * np.dtype(np.int64).itemsize)
    letters = np.frombuffer(text or b"", np.uint8)
    return hash_utf8(letters, places, is_missing, column=column, rows=table)


def _flat(array: Any, place: Place, elements_a_row: int) -> tuple[Any, int]:
    """Return the elements of lists of one length, and that length."""
    kinds = pyarrow_with("types").types
    if array.null_count:
        row = place.first_row + _first(array.is_null()) // max(elements_a_row, 1)
        raise InputError(f"{place} has no list in row {row:,}; write one there, or leave the row out")
    if kinds.is_fixed_size_list(array.type):
        return array.flatten(), array.type.list_size
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    odd = np.flatnonzero(lengths != lengths[0]) if len(lengths) else lengths
    if len(odd):
        row = place.first_row + int(odd[0]) // max(elements_a_row, 1)
        raise InputError(
            f"{place} has a list of {lengths[odd[0]]} in row {row:,} and of {lengths[0]} before; pad them to one length"
        )
    return array.flatten(), int(lengths[0]) if len(lengths) else 0


def _filled(array: Any, place: Place, fill: float | None, elements_a_row: int) -> Any:
    """Put the fill value where values are missing."""
    if fill is None:
        row = place.first_row + _first(array.is_null()) // max(elements_a_row, 1)
        raise InputError(
            f"{place} has no value in row {row:,} ({array.null_count:,} are missing from this row group); fill them "
            f"(fill=0), or leave such rows out"
        )
    arrow = pyarrow_with()

    try:
        return array.fill_null(arrow.scalar(fill).cast(array.type))
    except arrow.ArrowException as error:
        raise InputError(f"{place} is {array.type}, {fill:g} is none; choose another value to fill with") from error


def _first(mask: Any) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])


def _product(sizes: list[int]) -> int:
    return int(np.prod(sizes, dtype=np.int64))
