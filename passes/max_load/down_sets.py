"""Down-sets: the sets of blocks that the first devices of a contiguous split may hold together.

A down-set holds, with every block, all blocks before it (``passes/partial_orders.py`` finds them). A contiguous split
is a chain of down-sets from the empty one to all blocks, and what lies between two neighbours of the chain is what one
device holds::

    {}  <  {a}  <  {a b c}  <  {a b c d e}        device 0: a | device 1: b c | device 2: d e

A wide graph has exponentially many down-sets, a deep one few: 242 for ResNet-50's 177 layers, 36,596 for the 326 of
Inception v3. :func:`tabulate` turns a family of them into arrays.

Left out: which chain is best (``best_chain.py``).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_compile.passes.deadline import NO_DEADLINE, Deadline

from .blocks import Blocks, Bools, Floats

_MOST_ROWS, _MOST_PRODUCTS = 4096, 10**9
"""Down-sets handled at once where a table is built, so that temporaries stay small, and a part takes a tenth of a
second or so: between two parts the clock is asked."""


@dataclass(frozen=True, slots=True, eq=False)
class DownSets:
    """A family of N down-sets as arrays, in the order of their accelerator time, smaller ones first among equals.

    So what a down-set lies within always stands behind it.

    Attributes:
        holds: [n, N], whether down-set d holds block b; a row is contiguous.
        accelerator_ms: [N], time of its blocks on an accelerator, ascending.
        cpu_ms: [N], time of its blocks on a CPU.
        size_bytes: [N].
        no_accelerator, no_cpu: [N], how many of its blocks cannot run on that kind of device.
        net_counts: [nets, N], how many blocks of the net it holds.
        cut_ms: [N], time of the nets that lie partly in it.
        edge_blocks: Per down-set, its blocks with no block after them inside: they are in a larger down-set exactly
            when all of it is.
        open_nets: Per down-set, the nets that lie partly in it.
        net_sizes: [nets], how many blocks each net has.
    """

    holds: Bools
    accelerator_ms: Floats
    cpu_ms: Floats
    size_bytes: Floats
    no_accelerator: NDArray[np.int32]
    no_cpu: NDArray[np.int32]
    net_counts: NDArray[np.uint16]
    cut_ms: Floats
    edge_blocks: tuple[NDArray[np.intp], ...]
    open_nets: tuple[NDArray[np.intp], ...]
    net_sizes: NDArray[np.uint16]

    @property
    def count(self) -> int:
        """N."""
        return int(self.accelerator_ms.shape[0])


def tabulate(blocks: Blocks, family: Iterable[int], deadline: Deadline = NO_DEADLINE) -> DownSets:
    """Turn a family of down-sets, the empty one and the full one among them, into arrays.

    Takes O(N * n * (n + nets)) multiplications, in dense matrix products.

    Raises:
        TimeUpError: where the deadline comes first.
    """
    masks = sorted(family)
    width = (blocks.count + 7) // 8
    packed = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), np.uint8)
    rows = np.unpackbits(packed.reshape(len(masks), width), axis=1, count=blocks.count, bitorder="little")
    # Times are multiples of one power of two and sum exactly, so no rounding can break the order.
    time_ms = np.concatenate(
        [part.astype(np.float64) @ blocks.accelerator_ms for part in _parts(rows, blocks, deadline)]
    )
    order = np.lexsort((rows.sum(axis=1, dtype=np.int64), time_ms))
    rows = rows[order]

    incidence = np.zeros((blocks.count, len(blocks.nets)), np.float32)
    for number, net in enumerate(blocks.nets):
        incidence[list(net), number] = 1
    successors = np.zeros((blocks.count, blocks.count), np.float32)
    for block, after in enumerate(blocks.after):
        successors[list(after), block] = 1
    per_block = np.stack(
        [blocks.cpu_ms, blocks.size_bytes, ~blocks.on_accelerator, ~blocks.on_cpu], axis=1, dtype=np.float64
    )
    net_sizes = incidence.sum(axis=0).astype(np.uint16)
    sums, counts, cuts = [], [], []
    edge_blocks: list[NDArray[np.intp]] = []
    open_nets: list[NDArray[np.intp]] = []
    for part in _parts(rows, blocks, deadline):
        held = part.astype(np.float32)
        sums.append(part.astype(np.float64) @ per_block)
        counts.append((held @ incidence).astype(np.uint16))
        is_open = (counts[-1] > 0) & (counts[-1] < net_sizes)
        cuts.append(is_open.astype(np.float64) @ blocks.net_ms)
        open_nets += _true_columns(is_open)
        edge_blocks += _true_columns(part.astype(bool) & (held @ successors == 0))
    total = np.concatenate(sums)
    return DownSets(
        holds=np.ascontiguousarray(rows.T).astype(bool),
        accelerator_ms=time_ms[order],
        cpu_ms=np.ascontiguousarray(total[:, 0]),
        size_bytes=np.ascontiguousarray(total[:, 1]),
        no_accelerator=total[:, 2].astype(np.int32),
        no_cpu=total[:, 3].astype(np.int32),
        net_counts=np.ascontiguousarray(np.concatenate(counts).T),
        cut_ms=np.concatenate(cuts),
        edge_blocks=tuple(edge_blocks),
        open_nets=tuple(open_nets),
        net_sizes=net_sizes,
    )


def _parts(rows: NDArray[np.uint8], blocks: Blocks, deadline: Deadline) -> Iterator[NDArray[np.uint8]]:
    """Yield the rows in parts, as long as there is time."""
    products = blocks.count * (blocks.count + len(blocks.nets))
    step = min(_MOST_ROWS, max(1, _MOST_PRODUCTS // max(products, 1)))
    for start in range(0, len(rows), step):
        deadline.check()
        yield rows[start : start + step]


def _true_columns(table: Bools) -> list[NDArray[np.intp]]:
    """Give, per row, the columns that are true."""
    row, column = np.nonzero(table)
    return np.split(column, np.searchsorted(row, np.arange(1, len(table))))
