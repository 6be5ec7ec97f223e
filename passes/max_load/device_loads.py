"""Loads of the devices of a contiguous split, each of which holds the blocks between two down-sets.

With h(D) the blocks of a net that the down-set D holds, the device between D and a larger D' has the load::

    time(D') - time(D)  +  cut(D') - cut(D)  +  sum over nets open at D of net_ms * ([h(D') > h(D)] + [D' has it all])

on an accelerator, so with ``key = time + cut`` only the few nets open at D are looked at; on a CPU it is the time.

All pairs are too many (17,914 down-sets have 10^8). Only loads up to a threshold T count, so D' is within reach of T
in accelerator time, and D itself is of use only if the devices that are left do all before it at T each, where CPUs
relieve accelerators as well as a fractional knapsack allows (``load_bounds.py``).

Left out: the search (``passes/chain_search.py``), which thresholds to try (``contiguous.py``).
"""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from heterps_compile.cost.problem import Ints
from heterps_compile.passes.chain_search import Ends, Link, find_chain
from heterps_compile.passes.deadline import Deadline

from .blocks import Blocks, Bools, Floats
from .down_sets import BlockSets
from .load_bounds import Relief

_SLACK = 1 + 1e-12  # the knapsack is not exact to the last bit


class DeviceLoads:
    """Blocks and their down-sets, between which devices are put.

    Attributes:
        blocks: n blocks with their pool.
        table: Their down-sets.
        evaluations: How many pairs of down-sets were weighed.
    """

    def __init__(self, blocks: Blocks, table: BlockSets) -> None:
        self.blocks, self.table, self.evaluations = blocks, table, 0
        self._relief = Relief(blocks)
        self._key_ms = table.sets.weight + table.cut_ms

    def best_chain(self, limit_ms: float, deadline: Deadline) -> tuple[float, list[Link]] | None:
        """Find the contiguous split whose largest load is least, if it is at most a threshold.

        Raises:
            TimeUpError: if the deadline comes first.
        """
        k, cpus, weight = self.blocks.accelerators, self.blocks.cpus, self.table.sets.weight
        # of the devices before a down-set, by those used behind it; one too many leaves nothing possible
        of_accelerators = np.append(np.arange(k, -1, -1) * limit_ms + 1e-12 * float(weight[-1]), -np.inf)
        of_cpus = np.array([*(self._relief(count * limit_ms) for count in range(cpus, -1, -1)), -np.inf])
        reach = _SLACK * max(limit_ms if k else 0.0, self._relief(limit_ms) if cpus else 0.0)

        def extend(begin: int, ends: Ends) -> Iterator[Ends]:
            down_sets, *used, largest_ms = ends
            self.evaluations += len(down_sets)
            for is_accelerator in (False, True):
                own = used[0] + (not is_accelerator), used[1] + is_accelerator
                left_ms = of_cpus[own[0].astype(np.int64)] + of_accelerators[own[1].astype(np.int64)]
                at = np.flatnonzero((weight[begin] <= left_ms) & self._takes(begin, down_sets, is_accelerator))
                load_ms = self._load_ms(begin, down_sets[at], is_accelerator)
                at, load_ms = at[load_ms <= limit_ms], load_ms[load_ms <= limit_ms]
                yield at, own[0][at], own[1][at], np.maximum(load_ms, largest_ms[at])

        return find_chain(self.table.sets, reach, extend, deadline)

    def _takes(self, begin: int, ends: Ints, is_accelerator: bool) -> Bools:
        """Check if devices can run and hold the blocks between a down-set and each larger one."""
        table = self.table
        if not is_accelerator:
            return cast("Bools", table.no_cpu[ends] == table.no_cpu[begin])
        fits = table.size_bytes[ends] - table.size_bytes[begin] <= self.blocks.memory_bytes * _SLACK
        return cast("Bools", fits & (table.no_accelerator[ends] == table.no_accelerator[begin]))

    def _load_ms(self, begin: int, ends: Ints, is_accelerator: bool) -> Floats:
        """Return the loads of devices that hold the blocks between a down-set and each larger one."""
        table = self.table
        if not is_accelerator:
            return cast("Floats", table.cpu_ms[ends] - table.cpu_ms[begin])
        load_ms: Floats = self._key_ms[ends] - self._key_ms[begin]
        for net in table.open_nets[begin]:
            counts, size = table.net_counts[net], int(table.net_sizes[net])
            price_ms = np.zeros(size + 1)
            price_ms[int(counts[begin]) + 1 :] = self.blocks.net_ms[net]
            price_ms[size] *= 2
            load_ms += price_ms[counts[ends]]
        return load_ms

    def devices(self, chain: Sequence[Link]) -> list[int]:
        """Return the device of every block; devices of each kind are numbered along the line."""
        device_of, free = [0] * self.blocks.count, [self.blocks.accelerators, 0]
        for link in chain:
            holds = self.table.sets.rows[link.end] > self.table.sets.rows[link.begin]
            for block in np.flatnonzero(holds):
                device_of[block] = free[link.option]
            free[link.option] += 1
        return device_of
