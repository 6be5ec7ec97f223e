"""A table that grows: rows by id, any int64, which appear when they are pushed and go when they are seldom seen.

A look-up makes no row. An id whose row is not there gets its initial one: that of the compiled table where there is
one, else numbers drawn from a normal distribution with the mean and the standard deviation of the compiled table, a
function of seed, id and column alone. So it does not matter on how many servers, or in which order, ids come.

A push makes rows::

    pushes of id 7   1   2   3   4          admitted after 3: the gradients of the first two are dropped
    row                      new

Every ``every`` steps, rows are looked over: the show score of each, which every push raises by 1, is multiplied by
``decay``; rows whose score is then below ``least_shows``, or that no push has touched for ``unseen_steps``, are
evicted, and begin anew if their id comes again. Rows that wait to be admitted are looked over too.

The sparse accessors of PaddlePaddle's CTR tables count so (show_click_decay_rate, delete_threshold,
delete_after_unseen_days), in days; steps are what a run has. Clicks are not counted apart from shows.

Left out: rows on disk; the tier is memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .optimizers import SparseOptimizer
from .shard import CHUNK_ROWS
from .spec import FLOAT_BYTES, TableSpec
from .tiered_cache import Floats, Ints

COUNTERS = 8
"""Float32 numbers in a saved record that hold the bytes of id, pushes, last step and score, eight each."""

_LEAST_SLOTS = 1024
_INDEX_BYTES = 120  # of a row in the index of ids, about


@dataclass(frozen=True, slots=True)
class Initial:
    """The rows that ids begin with.

    Attributes:
        compiled: Those of this server in the compiled table, [rows, width].
        index, count: Of this server, and how many there are.
        mean, deviation: Of the whole compiled table.
        seed: Of what is drawn.
    """

    compiled: Floats
    index: int
    count: int
    mean: float
    deviation: float
    seed: int

    def rows(self, ids: Ints) -> Floats:
        """Return the initial rows of ids."""
        found = np.empty((len(ids), self.compiled.shape[1]), np.float32)
        is_compiled = (ids >= 0) & (ids // self.count < len(self.compiled))
        found[is_compiled] = self.compiled[ids[is_compiled] // self.count]
        found[~is_compiled] = self._drawn(ids[~is_compiled])
        return found

    def _drawn(self, ids: Ints) -> Floats:
        """Draw by Box and Muller's method from two uniform numbers for each place of a row."""
        columns = np.arange(self.compiled.shape[1], dtype=np.uint64)
        key = _mixed(ids.astype(np.uint64) ^ _mixed(np.array([self.seed], np.uint64)))[:, None]
        first, second = (_mixed(key + _mixed(2 * columns + np.uint64(part))) for part in (0, 1))
        radius = np.sqrt(-2 * np.log((first >> np.uint64(11)) * 2.0**-53 + 2.0**-54))
        normal = radius * np.cos(2 * np.pi * ((second >> np.uint64(11)) * 2.0**-53))
        drawn: Floats = (self.mean + self.deviation * normal).astype(np.float32)
        return drawn


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the splitmix64 hash of whole numbers (Steele et al., OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class GrowingShard:
    """The rows of a growing table on one server.

    Attributes:
        table: Which table.
        updates: How many updates it has had.
        record_width: Numbers of a saved row: weights, state, counters.
        new_rows, evicted: How many rows this server has made and evicted.
    """

    def __init__(self, table: TableSpec, optimizer: SparseOptimizer, initial: Initial) -> None:
        """Begin without rows."""
        assert table.growth is not None  # noqa: S101 - a caller's mistake
        self.table, self.updates, self._growth = table, 0, table.growth
        self._optimizer, self._initial = optimizer, initial
        self.record_width = table.width * (1 + optimizer.states) + COUNTERS
        self._slot_of: dict[int, int] = {}
        self._free: list[int] = []
        self._weights = np.zeros((0, table.width), np.float32)
        self._state = np.zeros((0, optimizer.states * table.width), np.float32)
        self._counters = np.zeros((0, 3), np.int64)  # id, pushes, last step
        self._shows = np.zeros(0, np.float64)
        self.new_rows = self.evicted = 0

    @property
    def rows(self) -> int:
        """Return how many ids have a row, those that wait to be admitted among them."""
        return len(self._slot_of)

    @property
    def waiting(self) -> int:
        """Return how many of them wait to be admitted."""
        slots = np.fromiter(self._slot_of.values(), np.int64, len(self._slot_of))
        return int((~self._is_admitted(slots)).sum())

    @property
    def memory_bytes(self) -> int:
        """Return what rows, state, counters and about what the index takes."""
        arrays = (self._weights, self._state, self._counters, self._shows, self._initial.compiled)
        return sum(array.nbytes for array in arrays) + _INDEX_BYTES * self.rows

    def pull(self, rows: Ints, out: Floats) -> None:
        """Copy the weights of distinct ids, the initial ones where none was trained."""
        slots = self._slots(rows)
        is_trained = slots >= 0
        is_trained[is_trained] = self._is_admitted(slots[is_trained])
        out[is_trained] = self._weights[slots[is_trained]]
        out[~is_trained] = self._initial.rows(rows[~is_trained])

    def push(self, rows: Ints, gradients: Floats, lr: float, step: int) -> None:
        """Count distinct ids, update those that are admitted, and evict where it is time.

        Args:
            rows: Ids, in order.
            gradients: [len(rows), width].
            lr: The learning rate of this step.
            step: Its number.
        """
        self.updates += 1
        slots = self._slots(rows)
        is_new = slots < 0
        slots[is_new] = self._make(rows[is_new])
        self._counters[slots, 1] += 1
        self._counters[slots, 2] = np.maximum(self._counters[slots, 2], step)
        self._shows[slots] += 1
        is_admitted = self._is_admitted(slots)
        mine = slots[is_admitted]
        weights, state = self._weights[mine], self._state[mine]
        self._optimizer.update(weights, state, gradients[is_admitted], self.updates, lr)
        self._weights[mine], self._state[mine] = weights, state
        if (step + 1) % self._growth.every == 0:
            self._evict(step)

    def records(self) -> Iterator[tuple[int, Floats]]:
        """Yield all rows with state and counters in the order of their ids, some at a time."""
        ids = np.array(sorted(self._slot_of), np.int64)
        for first in range(0, len(ids), CHUNK_ROWS):
            slots = self._slots(ids[first : first + CHUNK_ROWS])
            counters = np.concatenate((self._counters[slots], self._shows[slots].view(np.int64)[:, None]), axis=1)
            yield first, np.concatenate((self._weights[slots], self._state[slots], counters.view(np.float32)), axis=1)

    def fill(self, records: Floats) -> None:
        """Take the rows of a checkpoint that belong to this server."""
        counters = np.ascontiguousarray(records[:, -COUNTERS:]).view(np.int64)
        is_mine = counters[:, 0] % self._initial.count == self._initial.index
        records, counters = records[is_mine], counters[is_mine]
        slots = self._make(counters[:, 0])
        self._weights[slots] = records[:, : self.table.width]
        self._state[slots] = records[:, self.table.width : -COUNTERS]
        self._counters[slots] = counters[:, :3]
        self._shows[slots] = np.ascontiguousarray(counters[:, 3]).view(np.float64)
        self.new_rows = 0

    def _slots(self, ids: Ints) -> Ints:
        find = self._slot_of.get
        return np.fromiter((find(one, -1) for one in ids.tolist()), np.int64, len(ids))

    def _is_admitted(self, slots: Ints) -> NDArray[np.bool_]:
        admitted: NDArray[np.bool_] = self._counters[slots, 1] >= self._growth.admit_after
        return admitted

    def _make(self, ids: Ints) -> Ints:
        """Make rows for ids that have none; return their slots."""
        self._reserve(len(ids))
        slots = np.array([self._free.pop() for _ in range(len(ids))], np.int64)
        self._slot_of.update(zip(ids.tolist(), slots.tolist(), strict=True))
        self._weights[slots] = self._initial.rows(ids)
        self._state[slots] = self._optimizer.initial
        self._counters[slots] = np.stack((ids, np.zeros_like(ids), np.full_like(ids, -1)), axis=1)
        self._shows[slots] = 0
        self.new_rows += len(ids)
        return slots

    def _reserve(self, count: int) -> None:
        missing = count - len(self._free)
        if missing <= 0:
            return
        before = len(self._shows)
        more = max(missing, before, _LEAST_SLOTS)
        self._weights = np.concatenate((self._weights, np.zeros((more, self._weights.shape[1]), np.float32)))
        self._state = np.concatenate((self._state, np.zeros((more, self._state.shape[1]), np.float32)))
        self._counters = np.concatenate((self._counters, np.zeros((more, 3), np.int64)))
        self._shows = np.concatenate((self._shows, np.zeros(more)))
        self._free += range(before + more - 1, before - 1, -1)

    def _evict(self, step: int) -> None:
        """Decay all scores, and let go of rows that are seldom or long not seen."""
        growth = self._growth
        slots = np.fromiter(self._slot_of.values(), np.int64, len(self._slot_of))
        self._shows[slots] *= growth.decay
        goes = np.zeros(len(slots), np.bool_)
        if growth.least_shows is not None:
            goes |= self._shows[slots] < growth.least_shows
        if growth.unseen_steps is not None:
            goes |= step - self._counters[slots, 2] >= growth.unseen_steps
        for slot, one in zip(slots[goes].tolist(), self._counters[slots[goes], 0].tolist(), strict=True):
            del self._slot_of[one]
            self._free.append(slot)
        self.evicted += int(goes.sum())

    @property
    def row_bytes(self) -> int:
        """Return what all rows take with their state."""
        return self.rows * (self.record_width - COUNTERS) * FLOAT_BYTES
