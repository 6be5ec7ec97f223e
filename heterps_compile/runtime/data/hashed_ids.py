"""Text as ids of an embedding table, by a function that needs no vocabulary and that any language can compute.

::

    h = 0xCBF29CE484222325                                 FNV-1a, 64 bits
    for byte in utf8(column) + 00 + utf8(text):
        h = (h xor byte) * 0x100000001B3 mod 2^64
    z = h + 0x9E3779B97F4A7C15                             SplitMix64, all mod 2^64
    z = (z xor (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z xor (z >> 27)) * 0x94D049BB133111EB
    z = z xor (z >> 31)
    id = 1 + z mod (rows - 1)                              0 stands for a missing value

The column's name goes in first, so that equal texts of two columns that share a table get rows of their own. FNV-1a
goes byte by byte over all values at once, which keeps hashing near the speed of reading
(``tools/bench_runtime_data.py``). SplitMix64 (Steele et al., OOPSLA 2014) spreads its bits before the remainder is
taken.

Left out: protection against texts that are chosen to collide; vocabularies, which are learned from the data.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import printable, short

MISSING_ID = 0
"""Of a missing value."""

_BASIS, _PRIME, _BITS = 0xCBF29CE484222325, 0x100000001B3, 2**64 - 1
_FEW = 64  # values; so few are quicker one by one than as arrays


@dataclass(frozen=True, slots=True)
class TableRows:
    """How many rows the tables have that text is hashed into.

    Attributes:
        all: Of every table that ``by_column`` does not name; None where nobody said.
        by_column: Of the tables of single columns.
    """

    all: int | None = None
    by_column: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for name, rows in ({} if self.all is None else {"": self.all}).items() | self.by_column.items():
            _check_rows(rows, f" of column {printable(name)!r}" if name else "")

    def of(self, column: str) -> int | None:
        """Return the rows of a column's table; None where nobody said."""
        return self.by_column.get(column, self.all)

    def check_columns(self, what: str, columns: Iterable[str]) -> None:
        """Check that the columns that are named exist.

        Raises:
            UnknownNameError: where one does not.
        """
        known = tuple(columns)
        for name in self.by_column:
            if name not in known:
                raise UnknownNameError(f"column of {what} (rows=):", printable(name), map(printable, known))

    def with_tables(self, what: str, texts: Iterable[str], tables: Mapping[str, int]) -> "TableRows":
        """Return the rows with those of the model's own tables for columns of text of which nobody said any.

        Args:
            what: The columns are of, for the message.
            texts: Names of the columns of text.
            tables: Rows of the table that an input is looked up in, by its name.

        Raises:
            InputError: where more rows were said than a table has.
        """
        found = dict(self.by_column)
        for name in texts:
            said, rows = self.of(name), tables.get(name)
            if rows is not None and said is not None and said > rows:
                raise InputError(
                    f"column {printable(name)!r} of {what} is hashed into {said:,} rows (rows=), and the model looks "
                    f"it up in a table of {rows:,}; leave rows= out for it, or say {rows} at most"
                )
            if rows is not None and said is None:
                found[name] = rows
        return self if found == self.by_column else TableRows(self.all, found)

    def added_to(self, before: "TableRows") -> dict[str, int]:
        """Return the rows of single columns that others do not have."""
        return {name: rows for name, rows in self.by_column.items() if name not in before.by_column}

    def __str__(self) -> str:
        """Return what is said of them, for digests."""
        return f"{self.all} {sorted(self.by_column.items())}"


NO_TABLES = TableRows()


def hash_ids(values: Iterable[str | float | None], *, column: str, rows: int) -> NDArray[np.int64]:
    """Return the ids that a run gives to the texts of a column, for serving.

    >>> hash_ids(["Berlin", "Zürich", None], column="city", rows=1000).tolist()
    [706, 404, 0]

    Args:
        values: The texts; None or NaN for a missing one.
        column: Its name: the same text has other ids in other columns.
        rows: Of the embedding table, as ``rows=`` of ``--data`` had it.

    Raises:
        InputError: where the table has fewer than 2 rows, or a value is
            no text.
    """
    _check_rows(rows, "")
    found = list(values)
    is_missing = np.array([value is None or value != value for value in found], np.bool_)  # noqa: PLR0124 - NaN
    for value in found:
        if not (isinstance(value, str) or value is None or value != value):  # noqa: PLR0124 - NaN
            raise InputError(f"{short(value)} is a {type(value).__name__}; text is hashed to ids, give str or None")
    try:
        encoded = [value.encode() if isinstance(value, str) else b"" for value in found]
    except UnicodeEncodeError as error:
        raise InputError(f"{short(error.object)} is no text that UTF-8 can hold; mend it") from error
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return hash_utf8(np.frombuffer(b"".join(encoded), np.uint8), offsets, is_missing, column=column, rows=rows)


def hash_utf8(
    text: NDArray[np.uint8], offsets: NDArray[np.int64], is_missing: NDArray[np.bool_], *, column: str, rows: int
) -> NDArray[np.int64]:
    """Return the ids of texts that lie side by side.

    Args:
        text: Bytes in UTF-8.
        offsets: [values + 1]; value n lies from ``offsets[n]`` to ``offsets[n + 1]``.
        is_missing: [values]
        column: Name of their column.
        rows: Of the table.
    """
    state = _BASIS
    for byte in column.encode("utf-8", "surrogatepass") + b"\0":
        state = ((state ^ byte) * _PRIME) & _BITS
    spread = splitmix64(_fnv1a(text, offsets[:-1], np.diff(offsets), state))
    return np.where(is_missing, MISSING_ID, 1 + spread % np.uint64(rows - 1)).astype(np.int64)


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread 64 bits: SplitMix64's step and finaliser."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _fnv1a(
    text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], state: int
) -> NDArray[np.uint64]:
    """Go on with a hash over every value: byte 0 of all, byte 1 of those that have one, and so on."""
    order = np.argsort(-lengths, kind="stable")
    starts, shorter = starts[order], -lengths[order]
    hashes = np.full(len(starts), state, np.uint64)
    prime, place = np.uint64(_PRIME), 0
    while (count := int(np.searchsorted(shorter, -place))) > _FEW:
        hashes[:count] ^= text[starts[:count] + place]
        hashes[:count] *= prime
        place += 1
    for index in range(count):
        one = int(hashes[index])
        for byte in text[starts[index] + place : starts[index] - shorter[index]].tobytes():
            one = ((one ^ byte) * _PRIME) & _BITS
        hashes[index] = one
    found = np.empty_like(hashes)
    found[order] = hashes
    return found


def _check_rows(rows: int, whose: str) -> None:
    if rows < 2:
        raise InputError(
            f"the table{whose} that text is hashed into has {rows} rows; it needs 2 or more, one for missing values"
        )
