"""What a server answers when it has saved its shards: counts of every table, and the hashes of the files.

Left out: the files (``saved_tables.py``).
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch
from torch import Tensor

_HASH_NUMBERS = 4  # of eight bytes in a SHA-256
_COUNTS = 5  # of a table: the fields of SavedCounts


@dataclass(frozen=True, slots=True)
class SavedCounts:
    """What a server says of a shard that it has saved.

    Attributes:
        updates: How many updates the table has had.
        rows: How many rows there are.
        new, evicted: Rows that were made and evicted since the run began; 0 where a table does not grow.
        waiting: Rows that wait to be admitted.
    """

    updates: int
    rows: int
    new: int = 0
    evicted: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class SavedShard:
    """What a server answers when it has saved its shard.

    Attributes:
        counts: Of every table.
        hashes: SHA-256 of the files of every table.
    """

    counts: tuple[SavedCounts, ...]
    hashes: tuple[str, ...]


def add_counts(of_servers: Sequence[SavedCounts]) -> SavedCounts:
    """Return the counts of a whole table."""
    return SavedCounts(
        of_servers[0].updates,
        sum(one.rows for one in of_servers),
        sum(one.new for one in of_servers),
        sum(one.evicted for one in of_servers),
        sum(one.waiting for one in of_servers),
    )


def counted_numbers(tables: int) -> int:
    """Return how many whole numbers a server answers with when it has counted the rows of so many tables."""
    return tables * _COUNTS


def pack_counts(counts: Sequence[SavedCounts]) -> Tensor:
    """Return what a server answers: the counts of its tables."""
    return torch.tensor([astuple(one) for one in counts], dtype=torch.int64).reshape(-1)


def unpack_counts(answer: Tensor) -> tuple[SavedCounts, ...]:
    """Return the counts of a server's tables."""
    return tuple(SavedCounts(*numbers) for numbers in answer.reshape(-1, _COUNTS).tolist())


def saved_numbers(tables: int) -> int:
    """Return how many whole numbers a server answers with when it has saved so many tables."""
    return tables * (_COUNTS + _HASH_NUMBERS)


def pack_saved(counts: Sequence[SavedCounts], hashes: Sequence[bytes]) -> Tensor:
    """Return what a server answers: the counts of its tables, then the SHA-256 of their files."""
    of_files = np.frombuffer(b"".join(hashes), "<i8").astype(np.int64)
    return torch.cat([pack_counts(counts), torch.from_numpy(of_files)])


def unpack_saved(answer: Tensor) -> SavedShard:
    """Return what a server says of the shard that it has saved."""
    tables = len(answer) // (_COUNTS + _HASH_NUMBERS)
    of_tables, of_files = answer[: tables * _COUNTS], answer[tables * _COUNTS :]
    counts = unpack_counts(of_tables)
    digests = of_files.numpy().astype("<i8").reshape(tables, _HASH_NUMBERS)
    return SavedShard(counts, tuple(digest.tobytes().hex() for digest in digests))
