"""Random samples: each is a function of the seed and its number, so any rank can make any of them.

A counter-based generator (Philox, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is set to the
place of the first number wanted. Sample 7 is the same whoever reads it, in whatever range.

Left out: dependencies between columns; there is nothing to be learned from such data.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps_compile.errors import InputError
from heterps_compile.escape import printable

from .identity import Part, digest_of
from .sample_source import check_range

_NUMBERS_A_STEP = 4  # 64-bit numbers that Philox makes from one value of its counter
_HALF_BITS = 32


@dataclass(frozen=True, slots=True)
class RandomColumn:
    """What a column of random numbers is.

    Attributes:
        name: Of the column.
        dtype: As in ``"float32"``.
        shape: Of one sample.
        limit: Whole numbers from 0 below this one are drawn, whatever the dtype; without it booleans are fair coins
            and floats standard normal.
        zipf: Exponent, above 0, of a Zipf-like distribution over the whole numbers (number n has a weight of about
            (n + 1) ** -zipf); 0 draws all alike.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    limit: int | None = None
    zipf: float = 0.0


class RandomSource:
    """An endless source of random samples."""

    def __init__(self, columns: Sequence[RandomColumn], *, seed: int = 0) -> None:
        """Take what the columns are.

        Raises:
            InputError: where a column's dtype has no random numbers, or whole numbers have no range.
        """
        for column in columns:
            _check(column)
        self._columns = {column.name: column for column in columns}
        self._seed = seed

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(self._columns)

    @property
    def samples(self) -> None:
        """Give None: there is no end."""
        return

    def parts(self) -> tuple[Part, ...]:
        """Return the endless row: what is drawn for every column, and how."""
        columns = sorted(map(repr, self._columns.values()))
        return (Part(None, digest_of(self._seed, columns)),)

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Make a range of samples."""
        check_range(self, "the random data", first, count, columns)
        return {name: self._make(self._columns[name], first, count) for name in columns}

    def _make(self, column: RandomColumn, first: int, count: int) -> Tensor:
        each = prod(column.shape)
        raw = self._raw(column.name, first * each, count * each)
        drawn = _draw(column, raw).reshape(count, *column.shape)
        return torch.from_numpy(drawn).to(_torch_dtype(column))

    def _raw(self, name: str, first: int, count: int) -> NDArray[np.uint64]:
        """Return ``count`` 64-bit numbers from place ``first`` of a column's row of them."""
        step, skip = divmod(first, _NUMBERS_A_STEP)
        key = np.array([self._seed & (2**64 - 1), zlib.crc32(name.encode())], np.uint64)
        generator = np.random.Philox(key=key, counter=step)
        return np.asarray(generator.random_raw(skip + count)[skip:], np.uint64)


def _draw(column: RandomColumn, raw: NDArray[np.uint64]) -> NDArray[Any]:
    high, low = raw >> np.uint64(_HALF_BITS), raw & np.uint64(2**_HALF_BITS - 1)
    if column.limit is not None:
        if column.zipf > 0:
            return _zipf(np.asarray((raw >> np.uint64(11)) * 2.0**-53, np.float64), column.limit, column.zipf)
        if column.limit <= 2**_HALF_BITS:
            return np.asarray((high * np.uint64(column.limit)) >> np.uint64(_HALF_BITS), np.int64)
        return np.asarray(raw % np.uint64(column.limit), np.int64)
    if column.dtype == "bool":
        return np.asarray(low & np.uint64(1), np.bool_)
    radius = np.sqrt(-2 * np.log((high + 1) * 2.0**-_HALF_BITS))  # Box and Muller, 1958
    return np.asarray(radius * np.cos(low * (2 * np.pi * 2.0**-_HALF_BITS)))


def _zipf(uniform: NDArray[np.float64], limit: int, exponent: float) -> NDArray[np.int64]:
    """Invert the distribution of the continuous power law on [1, limit + 1), and round down."""
    top = limit + 1.0
    if abs(exponent - 1) < 1e-9:
        drawn = top**uniform
    else:
        rest = 1 - exponent
        drawn = (1 + uniform * (top**rest - 1)) ** (1 / rest)
    return np.minimum(drawn.astype(np.int64) - 1, limit - 1)


def _torch_dtype(column: RandomColumn) -> torch.dtype:
    dtype = getattr(torch, column.dtype, None)
    if not isinstance(dtype, torch.dtype) or dtype.is_complex:
        raise InputError(
            f"column {printable(column.name)!r} cannot be random {printable(column.dtype)}; use bool, a whole number "
            f"such as int64, or a float such as float32"
        )
    return dtype


def _check(column: RandomColumn) -> None:
    dtype, shown = _torch_dtype(column), printable(column.name)
    if column.limit is None and not dtype.is_floating_point and dtype is not torch.bool:
        raise InputError(
            f"column {shown!r} is {column.dtype}, and whole numbers need a range; say that they lie below the rows "
            f"of the table they index, such as {shown}<10000"
        )
    if column.limit is not None and not 1 <= column.limit < 2**63:
        raise InputError(f"column {shown!r} cannot have whole numbers from 0 below {column.limit}")
    if column.limit is not None and not dtype.is_floating_point and dtype is not torch.bool:
        largest = torch.iinfo(dtype).max
        if column.limit - 1 > largest:
            raise InputError(f"column {shown!r} is {column.dtype}, which ends at {largest}, below {column.limit - 1}")
    if column.zipf < 0 or (column.zipf > 0 and column.limit is None):
        raise InputError(f"column {shown!r} can follow Zipf's law with an exponent above 0 and a range only")
    if any(size < 1 for size in column.shape):
        raise InputError(f"column {shown!r} has no elements: shape {list(column.shape)}")
