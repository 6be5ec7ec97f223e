"""What workers and servers say to each other, as flat buffers of bytes.

A request is one buffer: eight int64 of header, then int64 numbers, then floats in the type of the wire::

    | version kind worker step  ints floats 0 0 | ids ... | gradients ... |

    PULL   step: pushes up to it must be in before the answer   ints: rows per table, then rows; distinct, in order
    PUSH   step: whose gradients these are                      ints: the learning rate, then as above
                                                                floats: a gradient per row
    NORM   step: whose gradients are asked about
    SCALE  step: whose gradients are to be applied              ints: what they are multiplied by
    SAVE   step: as for PULL                                    ints: the folder's name, a number per byte
    COUNT  step: as for PULL
    STOP

A PULL is answered by its rows' weights, nothing around them; a NORM by the sum of squares of every table's gradients,
float64; a COUNT by numbers of rows of every table, a SAVE by these and the hashes of its files. A learning rate or a
factor among the ints is the eight bytes of a float64. Of a request that is longer than ``FIRST_BYTES``, the rest
follows as a second message: a server that waits for anybody cannot know how much will come.

Left out: how buffers travel (``server_link.py``), who waits for whom (``server.py``, ``client.py``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps_compile.errors import RunError

VERSION = 4
HEADER_BYTES = 64
FIRST_BYTES = 1 << 20
_MOST_BYTES = 1 << 40

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Kind(IntEnum):
    """What a request asks for."""

    PULL = 1
    PUSH = 2
    SAVE = 3
    STOP = 4
    NORM = 5
    SCALE = 6
    COUNT = 7


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the server reads it.

    Attributes:
        kind: What it asks for.
        worker: The rank it comes from.
        step: See above.
        ints: Its int64 numbers.
        floats: Its floats, as float32.
    """

    kind: Kind
    worker: int
    step: int
    ints: NDArray[np.int64]
    floats: NDArray[np.float32]

    def rows(self, tables: int) -> list[NDArray[np.int64]]:
        """Return the rows asked for, table by table.

        Raises:
            RunError: where their numbers do not add up.
        """
        ints = self.ints[1:] if self.kind is Kind.PUSH else self.ints
        counts = ints[:tables]
        if len(counts) < tables or (counts < 0).any() or int(counts.sum()) != len(ints) - tables:
            raise RunError(f"rank {self.worker} sent a request whose rows do not add up; it may run another version")
        return np.split(ints[tables:], np.cumsum(counts)[:-1])

    @property
    def number(self) -> float:
        """Return the learning rate of a PUSH, the factor of a SCALE.

        Raises:
            RunError: where it is none.
        """
        number = float(self.ints[:1].view(np.float64)[0]) if len(self.ints) else -1.0
        if not (math.isfinite(number) and number >= 0):
            raise RunError(f"rank {self.worker} sent {number:g} as a learning rate or a factor; it must be 0 or more")
        return number


def pack_number(number: float) -> NDArray[np.int64]:
    """Return a float64 as it travels among the ints of a request."""
    return np.array([number], np.float64).view(np.int64)


def wire_dtype(wire: str) -> torch.dtype:
    """Return the type in which floats travel."""
    return _DTYPES[wire]


def pack_request(
    kind: Kind,
    worker: int,
    step: int,
    ints: Sequence[NDArray[np.int64]] = (),
    *,
    floats: Sequence[NDArray[np.float32]] = (),
    wire: str = "float32",
) -> Tensor:
    """Return a request as one buffer of bytes; the parts are joined in order."""
    dtype = wire_dtype(wire)
    int_count, float_count = sum(part.size for part in ints), sum(part.size for part in floats)
    floats_at = HEADER_BYTES + 8 * int_count
    buffer = torch.empty(floats_at + float_count * dtype.itemsize, dtype=torch.uint8)
    numbers = buffer[:floats_at].numpy().view(np.int64)
    numbers[:8] = (VERSION, kind, worker, step, int_count, float_count, 0, 0)
    if ints:
        np.concatenate(ints, out=numbers[8:])
    if float_count:
        pack_floats(floats, buffer[floats_at:].view(dtype))
    return buffer


def pack_floats(parts: Sequence[NDArray[np.float32]], out: Tensor) -> None:
    """Copy parts one after the other into a flat tensor of the wire's type."""
    at = 0
    for part in parts:
        out[at : at + part.size] = torch.from_numpy(part).flatten()
        at += part.size


def unpack_request(buffer: Tensor, wire: str = "float32") -> Request:
    """Read a request; its arrays may share the buffer's memory.

    Raises:
        RunError: where it is none of this version.
    """
    header = buffer[:HEADER_BYTES].numpy().view(np.int64)
    version, kind, worker, step, int_count, float_count = (int(number) for number in header[:6])
    dtype = wire_dtype(wire)
    floats_at = HEADER_BYTES + 8 * int_count
    if version != VERSION or kind not in Kind._value2member_map_ or min(int_count, float_count) < 0:
        raise RunError(
            f"a parameter server received what is no request of version {VERSION}; do all ranks run the same?"
        )
    if len(buffer) != floats_at + float_count * dtype.itemsize:
        raise RunError(f"a parameter server received {len(buffer)} bytes of a request that should have another length")
    ints = buffer[HEADER_BYTES:floats_at].numpy().view(np.int64)
    floats = buffer[floats_at:].view(dtype).float() if float_count else torch.empty(0)
    return Request(Kind(kind), worker, step, ints, floats.numpy())


def request_bytes(first: Tensor, wire: str) -> int:
    """Return the length of a request from its first bytes.

    Raises:
        RunError: where it is no request.
    """
    header = first[:HEADER_BYTES].numpy().view(np.int64)
    size = HEADER_BYTES + 8 * int(header[4]) + int(header[5]) * wire_dtype(wire).itemsize
    if int(header[0]) != VERSION or not HEADER_BYTES <= size < _MOST_BYTES:
        raise RunError(
            f"a parameter server received what is no request of version {VERSION}; do all ranks run the same?"
        )
    return size
