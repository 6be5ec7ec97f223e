"""Partial orders and their down-sets: the sets of items that may come first together.

A down-set holds, with every item, all items before it::

    a -> c       down-sets: {}, {a}, {b}, {a b}, {a c}, {a b c}
    b            a chain of them, from the empty one to all, is a division into parts that run one after the other

A wide order has exponentially many down-sets, a deep one few: 242 for ResNet-50's 177 layers, 36,596 for the 326 of
Inception v3. A down-set is a Python int, bit i standing for item i, until :class:`DownSets` turns a family of them into
arrays.

Left out: what the items are: blocks of a workload (``max_load/``), layers of a model (``placement/orders/``).
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.problem import Bools, Floats
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline

_ASKED = 256
"""Down-sets found between two looks at the clock."""
_MOST_ROWS, _MOST_PRODUCTS = 4096, 10**9
"""Down-sets of one part of a table, and multiplications: a tenth of a second between two looks at the clock."""


class PartialOrder(Protocol):
    """Items 0 .. n - 1, some of which come before others."""

    @property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """Return [n], the items that come before each; those that follow from others may be left out."""
        ...

    @property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """Return [n], the same relation the other way."""
        ...


def enumerate_down_sets(items: PartialOrder, limit: int, deadline: Deadline = NO_DEADLINE) -> set[int] | None:
    """Return every down-set, or None where there are more than ``limit``.

    Raises:
        TimeUpError: where the deadline comes first.
    """
    needs = [sum(1 << b for b in before) for before in items.before]
    free = sum(1 << i for i, need in enumerate(needs) if need == 0)
    found = {0}
    waiting = [(0, free)]
    while waiting:
        down_set, free = waiting.pop()
        rest = free
        while rest:
            bit = rest & -rest
            rest ^= bit
            larger = down_set | bit
            if larger in found:
                continue
            found.add(larger)
            if len(found) > limit:
                return None
            if len(found) % _ASKED == 0:
                deadline.check()
            opened = free ^ bit
            for later in items.after[bit.bit_length() - 1]:
                if needs[later] & ~larger == 0:
                    opened |= 1 << later
            waiting.append((larger, opened))
    return found


def sample_down_sets(
    items: PartialOrder, orders: int, rng: np.random.Generator, through: Sequence[int] = ()
) -> set[int]:
    """Return the prefixes of some topological orders: depth first, breadth first, and mixtures of both.

    Every order alone makes a chain, so a sample always holds some contiguous split, memory permitting.

    Args:
        items: n items.
        orders: How many.
        rng: Makes it repeatable.
        through: A chain of down-sets, ascending. Every order passes through some of them, so the sample holds
            variations of that chain; all of them are in the sample.
    """
    found = {0, *through}
    for turn in range(orders):
        eagerness = float(turn == 1) if turn < 2 else rng.random()
        stops = [stop for stop in through if rng.random() < 0.7]
        waiting = [len(before) for before in items.before]
        ready = [i for i, count in enumerate(waiting) if count == 0]
        down_set = 0
        while ready:
            while stops and stops[0] & ~down_set == 0:
                stops.pop(0)
            open_now = [at for at, item in enumerate(ready) if not stops or stops[0] >> item & 1]
            at = open_now[-1] if rng.random() < eagerness else open_now[0]
            if turn > 1 and rng.random() < 0.5:
                at = open_now[int(rng.integers(len(open_now)))]
            item = ready.pop(at)
            down_set |= 1 << item
            found.add(down_set)
            for later in items.after[item]:
                waiting[later] -= 1
                if waiting[later] == 0:
                    ready.append(later)
    return found


def unpack(masks: Sequence[int], count: int) -> NDArray[np.uint8]:
    """Return [N, n], 1 where a down-set holds an item."""
    width = (count + 7) // 8
    packed = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), np.uint8)
    return np.unpackbits(packed.reshape(len(masks), width), axis=1, count=count, bitorder="little")


class DownSets:
    """A family of N down-sets of n items as arrays, by ascending weight, smaller ones first among equals.

    The down-sets around one of them have higher indices than it has.

    Attributes:
        rows: [N, n], 1 where a down-set holds an item.
        holds: [n, N], the same transposed.
        weight: [N], the sum over the items of a down-set.
        edges: Per down-set, its items with none after them inside: others hold these exactly if they hold all of it.
    """

    def __init__(
        self, items: PartialOrder, family: Collection[int], weights: Floats, deadline: Deadline = NO_DEADLINE
    ) -> None:
        """Build the arrays in O(N * n^2) multiplications.

        Args:
            items: n items.
            family: Down-sets, the empty one and that of all items included.
            weights: [n], 0 or more, of which sums are exact.
            deadline: When to stop.

        Raises:
            TimeUpError: if the deadline comes first.
        """
        count = len(weights)
        self.rows = unpack(sorted(family), count)
        weight = np.concatenate([part @ weights for part in self.parts(count, deadline)])
        order = np.lexsort((self.rows.sum(axis=1, dtype=np.int64), weight))
        self.rows, self.weight = self.rows[order], weight[order]
        self.holds: Bools = np.ascontiguousarray(self.rows.T).astype(np.bool_)
        successors = np.zeros((count, count), np.float32)
        for item, after in enumerate(items.after):
            successors[list(after), item] = 1
        self.edges: list[NDArray[np.intp]] = []
        for part in self.parts(count, deadline):
            self.edges += true_columns((part > 0) & (part.astype(np.float32) @ successors == 0))

    @property
    def count(self) -> int:
        """Return N."""
        return len(self.rows)

    def parts(self, products: int, deadline: Deadline) -> Iterator[NDArray[np.uint8]]:
        """Yield the rows in parts, by the multiplications per row and item.

        Raises:
            TimeUpError: if the deadline comes first.
        """
        step = min(_MOST_ROWS, max(1, _MOST_PRODUCTS // max(self.rows.shape[1] * products, 1)))
        for start in range(0, len(self.rows), step):
            deadline.check()
            yield self.rows[start : start + step]


def true_columns(table: Bools) -> list[NDArray[np.intp]]:
    """Return the columns that are true, row by row."""
    row, column = np.nonzero(table)
    return np.split(column, np.searchsorted(row, np.arange(1, len(table))))
