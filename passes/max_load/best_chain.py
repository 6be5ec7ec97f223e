"""The best contiguous split: a bottleneck shortest path through down-sets, layered by the devices used so far.

``best[a, c][D]`` is the least possible largest load when the down-set D lies on a accelerators and c CPUs. From D the
next device may hold D' - D for every larger down-set D'. With h(D) the blocks of a net that D holds, its load is::

    time(D') - time(D)  +  cut(D') - cut(D)  +  sum over nets open at D of net_ms * ([h(D') > h(D)] + [D' has it all])

on an accelerator, so with ``key = time + cut`` only the few nets open at D are looked at; on a CPU it is the time.

All pairs are too many (17,914 down-sets have 10^8). A *threshold* T on the answer cuts them: only loads up to T
count, so D' lies in a window of accelerator time above D, and D itself is of use only if what is left fits the devices
that are left at T each, CPUs relieving accelerators as well as a fractional knapsack allows. The narrower T, the fewer
pairs: T therefore grows from a lower bound upwards. A threshold without a split is a proven bound; the first with one
gives the optimum, since every split below T was looked at.

Exact (NeurIPS 2020, section 5, has the same recursion without the threshold); O(N^2) vector operations at worst.

Left out: which thresholds to try, what to do when there are too many down-sets (``contiguous.py``).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_compile.passes.deadline import Deadline

from .blocks import Blocks, Floats
from .down_sets import DownSets


@dataclass(frozen=True, slots=True)
class Chain:
    """A contiguous split: the largest load, and the device of every block."""

    value_ms: float
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChainResult:
    """What one threshold gave.

    Attributes:
        chain: The best chain at or below the threshold, None where there is none.
        is_complete: False where the deadline came first; the chain is then only one that was seen.
        evaluations: How many pairs of down-sets were weighed.
    """

    chain: Chain | None
    is_complete: bool
    evaluations: int


class Relief:
    """The most accelerator time that a given CPU time can replace: a fractional knapsack."""

    def __init__(self, blocks: Blocks) -> None:
        both = blocks.on_accelerator & blocks.on_cpu
        worth = blocks.accelerator_ms[both]
        cpu_ms = blocks.cpu_ms[both]
        with np.errstate(divide="ignore", invalid="ignore"):
            order = np.argsort(-(worth / cpu_ms), kind="stable")  # nan, for 0 / 0, goes last: it is worth 0
        self._cpu_ms = np.concatenate([[0.0], np.cumsum(cpu_ms[order])])
        self._worth = np.concatenate([[0.0], np.cumsum(worth[order])])

    def __call__(self, cpu_ms: float) -> float:
        """Return the worth of what fits into so much CPU time."""
        at = int(np.searchsorted(self._cpu_ms, cpu_ms, side="right")) - 1
        if at + 1 == len(self._cpu_ms):
            return float(self._worth[-1])
        step_cpu_ms = self._cpu_ms[at + 1] - self._cpu_ms[at]
        step = self._worth[at + 1] - self._worth[at]
        return float(self._worth[at] + step * (cpu_ms - self._cpu_ms[at]) / step_cpu_ms)


def best_chain(blocks: Blocks, table: DownSets, limit_ms: float, deadline: Deadline) -> ChainResult:
    """Find the contiguous split over a family of down-sets whose largest load is least, if it is at most a threshold.

    Args:
        blocks: n blocks with their pool.
        table: N down-sets.
        limit_ms: The threshold T.
        deadline: Stop then, with the best chain seen.
    """
    return _Search(blocks, table, limit_ms).run(deadline)


class _Search:
    """One threshold's layers: values and parents of every down-set for every (accelerators, CPUs) used."""

    def __init__(self, blocks: Blocks, table: DownSets, limit_ms: float) -> None:
        self.blocks, self.table, self.limit_ms = blocks, table, limit_ms
        self.relief = Relief(blocks)
        self.key_ms = table.accelerator_ms + table.cut_ms
        self.room_bytes = blocks.memory_bytes * (1 + 1e-12)
        self.best: dict[tuple[int, int], Floats] = {(0, 0): np.full(table.count, np.inf)}
        self.parent: dict[tuple[int, int], NDArray[np.int32]] = {}
        self.evaluations = 0

    def run(self, deadline: Deadline) -> ChainResult:
        k, last = self.blocks.accelerators, self.table.count - 1
        self.best[0, 0][0] = 0.0
        is_complete = True
        for used in range(k + self.blocks.cpus):
            for a in range(max(0, used - self.blocks.cpus), min(k, used) + 1):
                is_complete = is_complete and self._expand(a, used - a, deadline)
        state = min(self.best, key=lambda layer: self.best[layer][last])
        if not np.isfinite(self.best[state][last]):
            return ChainResult(None, is_complete, self.evaluations)
        chain = Chain(float(self.best[state][last]), self._trace(state))
        return ChainResult(chain, is_complete, self.evaluations)

    def _first_useful(self, a: int, c: int) -> int:
        """Return the first down-set that leaves no more than the unused devices can do."""
        k, cpus = self.blocks.accelerators, self.blocks.cpus
        done_ms = self.table.accelerator_ms
        left_ms = (k - a) * self.limit_ms + self.relief((cpus - c) * self.limit_ms)
        # The knapsack is not exact to the last bit; the total is far above its rounding.
        return int(np.searchsorted(done_ms, float(done_ms[-1]) * (1 - 1e-12) - left_ms, side="left"))

    def _layer(self, a: int, c: int) -> Floats | None:
        """Return the layer of so many devices, None where the pool has fewer."""
        if a > self.blocks.accelerators or c > self.blocks.cpus:
            return None
        if (a, c) not in self.best:
            self.best[a, c] = np.full(self.table.count, np.inf)
            self.parent[a, c] = np.full(self.table.count, -1, np.int32)
        return self.best[a, c]

    def _expand(self, a: int, c: int, deadline: Deadline) -> bool:
        """Choose the next device of every down-set of a layer; False where the deadline came first."""
        table, done_ms = self.table, self.table.accelerator_ms
        value_ms = self._layer(a, c)
        if value_ms is None:
            return True
        useful = value_ms < np.inf
        for fewer in ((a - 1, c), (a, c - 1)):
            if fewer in self.best:  # the same with a device to spare is at least as good
                useful &= value_ms < self.best[fewer]
        reach_ms = {True: self.limit_ms, False: self.relief(self.limit_ms)}
        targets = []
        for is_accelerator, state in ((True, (a + 1, c)), (False, (a, c + 1))):
            layer = self._layer(*state)
            if layer is not None:
                targets.append((is_accelerator, layer, self.parent[state], self._first_useful(*state)))
        for start in np.flatnonzero(useful):
            if deadline.is_over:
                return False
            for is_accelerator, layer, parent, first in targets:
                low = max(int(start) + 1, first)
                reach = done_ms[start] + reach_ms[is_accelerator] * (1 + 1e-12)
                high = int(np.searchsorted(done_ms, reach, side="right"))
                if low >= high:
                    continue
                ends = self._supersets(start, low, high)
                if ends.size == 0:
                    continue
                if is_accelerator:
                    load_ms = self._accelerator_load(start, ends)
                    ok = load_ms <= self.limit_ms
                    ok &= table.size_bytes[ends] - table.size_bytes[start] <= self.room_bytes
                    ok &= table.no_accelerator[ends] == table.no_accelerator[start]
                else:
                    load_ms = table.cpu_ms[ends] - table.cpu_ms[start]
                    ok = (load_ms <= self.limit_ms) & (table.no_cpu[ends] == table.no_cpu[start])
                load_ms = np.maximum(load_ms, value_ms[start])
                ok &= load_ms < layer[ends]
                better = ends[ok]
                layer[better] = load_ms[ok]
                parent[better] = 2 * start + is_accelerator
        return True

    def _supersets(self, start: np.intp, low: int, high: int) -> NDArray[np.intp]:
        """Return the down-sets in a window that hold all of a down-set."""
        self.evaluations += high - low
        inside = np.ones(high - low, np.bool_)
        for block in self.table.edge_blocks[start]:
            inside &= self.table.holds[block, low:high]
        return np.flatnonzero(inside) + low

    def _accelerator_load(self, start: np.intp, ends: NDArray[np.intp]) -> Floats:
        """Return the load of an accelerator that holds what lies between a down-set and each larger one."""
        table = self.table
        load_ms: Floats = self.key_ms[ends] - self.key_ms[start]
        for net in table.open_nets[start]:
            counts, size = table.net_counts[net], int(table.net_sizes[net])
            price_ms = np.zeros(size + 1)
            price_ms[int(counts[start]) + 1 :] = self.blocks.net_ms[net]
            price_ms[size] *= 2
            load_ms += price_ms[counts[ends]]
        return load_ms

    def _trace(self, state: tuple[int, int]) -> tuple[int, ...]:
        """Follow the parents back from the full down-set; devices of each kind are numbered along the line."""
        table, (a, c) = self.table, state
        devices = np.zeros(self.blocks.count, np.int64)
        end = table.count - 1
        while end != 0:
            start, is_accelerator = divmod(int(self.parent[a, c][end]), 2)
            a, c = (a - 1, c) if is_accelerator else (a, c - 1)
            device = a if is_accelerator else self.blocks.accelerators + c
            devices[table.holds[:, end] & ~table.holds[:, start]] = device
            end = start
        return tuple(int(device) for device in devices)
