"""Down-sets of blocks with the times, sizes and nets of the blocks in them.

Left out: the down-sets themselves and their order (``passes/partial_orders.py``), loads (``device_loads.py``).
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_compile.passes.deadline import NO_DEADLINE, Deadline
from heterps_compile.passes.partial_orders import DownSets, true_columns

from .blocks import Blocks, Floats


@dataclass(frozen=True, slots=True, eq=False)
class BlockSets:
    """N down-sets, whose weights are times on an accelerator.

    Attributes:
        sets: The down-sets.
        cpu_ms: [N], time of its blocks on a CPU.
        size_bytes: [N].
        no_accelerator, no_cpu: [N], how many of its blocks cannot run on that kind of device.
        net_counts: [nets, N], how many blocks of the net it holds.
        cut_ms: [N], time of the nets that lie partly in it.
        open_nets: Per down-set, the nets that lie partly in it.
        net_sizes: [nets], how many blocks each net has.
    """

    sets: DownSets
    cpu_ms: Floats
    size_bytes: Floats
    no_accelerator: Floats
    no_cpu: Floats
    net_counts: NDArray[np.uint16]
    cut_ms: Floats
    open_nets: tuple[NDArray[np.intp], ...]
    net_sizes: NDArray[np.uint16]


def tabulate(blocks: Blocks, family: Collection[int], deadline: Deadline = NO_DEADLINE) -> BlockSets:
    """Turn a family of down-sets, the empty one and the full one among them, into arrays.

    Takes O(N * n * (n + nets)) multiplications, in dense matrix products.

    Raises:
        TimeUpError: where the deadline comes first.
    """
    # Times are multiples of one power of two and sum exactly, so no rounding can break the order.
    sets = DownSets(blocks, family, blocks.accelerator_ms, deadline)
    incidence = np.zeros((blocks.count, len(blocks.nets)), np.float32)
    for number, net in enumerate(blocks.nets):
        incidence[list(net), number] = 1
    per_block = np.stack(
        [blocks.cpu_ms, blocks.size_bytes, ~blocks.on_accelerator, ~blocks.on_cpu], axis=1, dtype=np.float64
    )
    net_sizes = incidence.sum(axis=0).astype(np.uint16)
    sums, counts, cuts = [], [], []
    open_nets: list[NDArray[np.intp]] = []
    for part in sets.parts(len(blocks.nets), deadline):
        sums.append(part @ per_block)
        counts.append((part.astype(np.float32) @ incidence).astype(np.uint16))
        is_open = (counts[-1] > 0) & (counts[-1] < net_sizes)
        cuts.append(is_open @ blocks.net_ms)
        open_nets += true_columns(is_open)
    cpu_ms, size_bytes, no_accelerator, no_cpu = np.ascontiguousarray(np.concatenate(sums).T)
    return BlockSets(
        sets=sets,
        cpu_ms=cpu_ms,
        size_bytes=size_bytes,
        no_accelerator=no_accelerator,
        no_cpu=no_cpu,
        net_counts=np.ascontiguousarray(np.concatenate(counts).T),
        cut_ms=np.concatenate(cuts),
        open_nets=tuple(open_nets),
        net_sizes=net_sizes,
    )
