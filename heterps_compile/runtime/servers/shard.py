"""The rows of one table that lie on one server: read, updated, saved.

Left out: which rows are whose (``spec.py``), where they lie (``tiered_cache.py``), messages.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import RunError
from heterps_compile.units import format_bytes

from .optimizers import SparseOptimizer
from .spec import FLOAT_BYTES, TableSpec, record_bytes
from .tiered_cache import ColdFile, Floats, Ints, MemoryTier, Tier, TieredCache, hot_rows, take_rows

CHUNK_ROWS = 1 << 16  # rows that are copied at a time where all are


class Shard:
    """One table's rows on one server.

    Attributes:
        table: Which table.
        rows: How many of its rows are here.
        updates: How many updates it has had.
        record_width: Numbers of a row with its optimiser state.
        tier: Where they lie.
    """

    def __init__(
        self,
        table: TableSpec,
        rows: int,
        optimizer: SparseOptimizer,
        *,
        memory_bytes: int | None = None,
        directory: Path | None = None,
    ) -> None:
        """Make room for the rows; ``fill`` puts them there.

        Args:
            table: Which table.
            rows: How many of its rows are here.
            optimizer: What applies gradients.
            memory_bytes: What the shard may hold in memory; None for all it needs.
            directory: Where the rest lies.

        Raises:
            RunError: where the rest cannot lie there, or there is too little memory for any of it.
        """
        self.table, self.rows, self.updates = table, rows, 0
        self._optimizer = optimizer
        states = optimizer.states
        self.record_width = table.width * (1 + states)
        if memory_bytes is None or rows * record_bytes(table, optimizer.states) <= memory_bytes:
            self.tier: Tier = MemoryTier(rows, table.width, states)
            return
        if directory is None:
            raise RunError(
                f"table {table.shown} needs more than the {format_bytes(memory_bytes)} it may use on a server; "
                f"name a folder for the rows that do not fit, or give the servers more memory"
            )
        hot = hot_rows(rows, table.width, states, memory_bytes, table.shown)
        cold = ColdFile(directory, rows, self.record_width, table.shown)
        self.tier = TieredCache(rows, table.width, states, min(hot, rows), cold)

    def pull(self, rows: Ints, out: Floats) -> None:
        """Copy the weights of distinct rows.

        Args:
            rows: Numbers on this shard.
            out: [len(rows), width], where they go.

        Raises:
            RunError: where memory is too small for so many rows at once.
        """
        if len(rows) > self.tier.limit:
            raise RunError(
                f"one pull asks for {len(rows):,} rows of table {self.table.shown} on one server, whose memory holds "
                f"{self.tier.limit:,}; give the servers more memory, or use more servers or smaller micro-batches"
            )
        take_rows(self.tier.weights, self.tier.slots(rows, changes=False), out)

    @property
    def memory_bytes(self) -> int:
        """Return what the shard holds in memory."""
        return self.tier.memory_bytes

    @property
    def row_bytes(self) -> int:
        """Return what all rows take with their state."""
        return self.rows * self.record_width * FLOAT_BYTES

    def push(self, rows: Ints, gradients: Floats, lr: float | None = None, step: int = 0) -> None:
        """Update distinct rows by their gradients: one step of the table, even where no row was touched.

        Args:
            rows: Numbers on this shard, in order.
            gradients: [len(rows), width].
            lr: The learning rate of this step; None for the optimiser's own.
            step: Its number, which does not count here: rows of this shard stay.
        """
        self.updates += 1
        rate = self._optimizer.lr if lr is None else lr
        at_once = max(self.tier.limit, 1)  # a shard may be without rows
        for first in range(0, len(rows), at_once):
            part = slice(first, first + at_once)
            slots = self.tier.slots(rows[part], changes=True)
            weights, state = take_rows(self.tier.weights, slots), take_rows(self.tier.state, slots)
            self._optimizer.update(weights, state, gradients[part], self.updates, rate)
            self.tier.weights[slots] = weights
            self.tier.state[slots] = state

    def fill_weights(self, first: int, weights: Floats) -> None:
        """Put the first weights of neighbouring rows, their state as the optimiser starts with."""
        records = np.full((len(weights), self.record_width), self._optimizer.initial, np.float32)
        records[:, : self.table.width] = weights
        self.tier.fill(first, records)

    def records(self) -> Iterator[tuple[int, Floats]]:
        """Yield all rows with their state, some at a time: (number of the first, records)."""
        for first in range(0, self.rows, CHUNK_ROWS):
            yield first, self.tier.flush(first, min(CHUNK_ROWS, self.rows - first))


def sum_rows(rows: NDArray[np.int64], gradients: Floats) -> tuple[Ints, Floats]:
    """Return every row once, in order, with the sum of its gradients.

    Args:
        rows: [n], with repeats.
        gradients: [n, width].
    """
    if not len(rows):
        return rows, gradients
    order = np.argsort(rows, kind="stable")  # stable: sums do not depend on how the sort likes it
    ordered = rows[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    if len(starts) == len(rows):
        return ordered, gradients[order]
    return ordered[starts], np.add.reduceat(gradients[order], starts, axis=0)
