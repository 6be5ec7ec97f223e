"""Simulated annealing of non-contiguous splits: many chains side by side, one move of each per step.

A move takes one block to another device. Only the loads of the two devices change, and only by the block's time and by
the nets it is in: with h the blocks of a net on a device, leaving a device spares its net_ms where h was 1 and costs
it where h was all, arriving costs it where h was 0 and spares it where h becomes all. All chains are rows of the same
arrays, so a step of 128 chains takes some 30 array operations, about 0.1 ms.

What is minimised is not the largest load, which most moves leave as it is, but the sum over devices of the load in
excess of a target just below the best value seen, plus a little of every load. Memory in excess is charged alike.

Left out: bounds (``split_programme.py``), contiguity.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_compile.passes.deadline import Deadline

from .blocks import Blocks, Bools, Floats

Ints = NDArray[np.int64]

CHAINS = 128
_BATCH = 200
"""Steps whose random numbers are drawn at once; between batches the best chain is looked for."""
_BETWEEN_CHECKS = 20
"""Steps between two checks of the deadline."""
_TARGET = 0.999
_EVERY_LOAD = 0.02


@dataclass(frozen=True, slots=True)
class Annealed:
    """The best split seen: its largest load, the device of every block, and how many moves were weighed."""

    value_ms: float
    devices: tuple[int, ...]
    evaluations: int


@dataclass(frozen=True, slots=True)
class Cooling:
    """How a temperature falls.

    Attributes:
        steps: Moves per chain.
        hot, cold: Temperature at the start and at the end, in mean loads.
    """

    steps: int
    hot: float
    cold: float


def anneal(
    blocks: Blocks, starts: Ints, cooling: Cooling, deadline: Deadline, *, best_ms: float, rng: np.random.Generator
) -> Annealed:
    """Anneal from given splits.

    Args:
        blocks: n blocks with their pool.
        starts: [chains, n], device of every block; each block on a device that can run it.
        cooling: How long, and how the temperature falls.
        deadline: Stop then, with the best split so far.
        best_ms: Best value known; sets the first target, inf where none is known.
        rng: Makes it repeatable.

    Returns:
        The best split that keeps the memory limit; its value is inf where no chain met one.
    """
    population, steps, hot, cold = _Population(blocks, starts), cooling.steps, cooling.hot, cooling.cold
    scale_ms = float(population.load_ms.mean())
    best = Annealed(np.inf, (), 0)
    done = 0
    while True:
        best = population.best(best)
        known_ms = min(best_ms, best.value_ms)
        if done >= steps or deadline.is_over:
            return Annealed(best.value_ms, best.devices, done * len(starts))
        target_ms = _TARGET * (known_ms if np.isfinite(known_ms) else float(population.load_ms.max(axis=1).min()))
        shape = (min(_BATCH, steps - done), len(starts))
        block = rng.integers(0, blocks.count, shape)
        to = population.first[block] + (rng.random(shape) * population.choices[block]).astype(np.int64)
        patience = -np.log1p(-rng.random(shape))  # exponential: the Metropolis rule, its logarithm taken once
        for step in range(shape[0]):
            if step % _BETWEEN_CHECKS == 0 and deadline.is_over:
                break
            temperature_ms = scale_ms * hot * (cold / hot) ** ((done + step) / steps)
            population.move(block[step], to[step], temperature_ms * patience[step], target_ms)
        done += shape[0]


def random_starts(blocks: Blocks, chains: int, rng: np.random.Generator) -> Ints:
    """Put every block on a random accelerator, or on a random CPU where no accelerator can run it; [chains, n]."""
    low = np.where(blocks.on_accelerator, 0, blocks.accelerators)
    high = np.where(blocks.on_accelerator, blocks.accelerators, blocks.accelerators + blocks.cpus)
    return rng.integers(low, high, (chains, blocks.count))


class _Population:
    """The chains: device of every block, blocks of every net on every device, load and memory of every device."""

    def __init__(self, blocks: Blocks, starts: Ints) -> None:
        self.blocks = blocks
        chains, n = starts.shape
        self.k, self.devices = blocks.accelerators, blocks.accelerators + blocks.cpus
        self.row = np.arange(chains)
        self.device = starts.copy()
        # The net after the last is nobody's: it fills up the rows of blocks in few nets, and costs nothing.
        nets_of: list[list[int]] = [[] for _ in range(n)]
        for number, pins in enumerate(blocks.nets):
            for block in pins:
                nets_of[block].append(number)
        filler = len(blocks.nets)
        width = max(map(len, nets_of), default=0)
        self.nets_of = np.array([nets + [filler] * (width - len(nets)) for nets in nets_of], np.int64).reshape(n, width)
        self.net_ms = np.append(blocks.net_ms, 0.0)
        self.net_size = np.array([len(net) for net in blocks.nets] + [2], np.int16)
        self.time_ms = np.where(
            np.arange(self.devices) < self.k, blocks.accelerator_ms[:, None], blocks.cpu_ms[:, None]
        )
        self.first = np.where(blocks.on_accelerator, 0, self.k)
        self.choices = np.where(blocks.on_cpu, self.devices, self.k) - self.first
        self.is_scarce = bool(blocks.size_bytes.sum() > blocks.memory_bytes)
        self.counts = np.zeros((chains, filler + 1, self.devices), np.int16)
        self.load_ms = np.zeros((chains, self.devices))
        self.size_bytes = np.zeros((chains, self.devices))
        for block in range(n):
            at = self.device[:, block]
            self.load_ms[self.row, at] += self.time_ms[block, at]
            self.size_bytes[self.row, at] += blocks.size_bytes[block]
            for net in nets_of[block]:
                self.counts[self.row, net, at] += 1
        is_cut = (self.counts > 0) & (self.counts < self.net_size[:, None])
        self.load_ms[:, : self.k] += np.einsum("n,cnd->cd", self.net_ms, is_cut[:, :, : self.k])

    def best(self, best: Annealed) -> Annealed:
        """Return the best chain that keeps the memory limit where it beats what was seen before."""
        value_ms = self.load_ms.max(axis=1)
        if self.is_scarce:
            is_full = self.size_bytes[:, : self.k].max(axis=1, initial=0.0) > self.blocks.memory_bytes
            value_ms[is_full] = np.inf
        chain = int(value_ms.argmin())
        if value_ms[chain] >= best.value_ms:
            return best
        return Annealed(float(value_ms[chain]), tuple(map(int, self.device[chain])), 0)

    def move(self, block: Ints, to: Ints, allowed_ms: Floats, target_ms: float) -> None:
        """Move one block of every chain where that raises the chain's energy by no more than allowed."""
        row, k = self.row, self.k
        at = self.device[row, block]
        nets = self.nets_of[block]
        net_ms, size = self.net_ms[nets], self.net_size[nets]
        here, there = self.counts[row[:, None], nets, at[:, None]], self.counts[row[:, None], nets, to[:, None]]
        spared_ms = (net_ms * ((here == 1) * 1.0 - (here == size))).sum(axis=1)
        added_ms = (net_ms * ((there == 0) * 1.0 - (there + 1 == size))).sum(axis=1)
        old_at, old_to = self.load_ms[row, at], self.load_ms[row, to]
        # A net of one device pays nothing, and "spared" is then the cost of becoming cut: hence one formula for both.
        new_at = old_at - self.time_ms[block, at] - np.where(at < k, spared_ms, 0.0)
        new_to = old_to + self.time_ms[block, to] + np.where(to < k, added_ms, 0.0)
        rise_ms = _EVERY_LOAD * (new_at + new_to - old_at - old_to)
        for new, old in ((new_at, old_at), (new_to, old_to)):
            rise_ms += np.maximum(new - target_ms, 0.0) - np.maximum(old - target_ms, 0.0)
        accepted: Bools = (rise_ms <= allowed_ms) & (at != to)
        size_bytes = self.blocks.size_bytes[block]
        if self.is_scarce:
            rise_ms += self._memory_rise(at, -size_bytes, target_ms) + self._memory_rise(to, size_bytes, target_ms)
            accepted = (rise_ms <= allowed_ms) & (at != to)
        chosen = np.flatnonzero(accepted)
        at, to, nets = at[chosen], to[chosen], nets[chosen]
        self.device[chosen, block[chosen]] = to
        self.load_ms[chosen, at], self.load_ms[chosen, to] = new_at[chosen], new_to[chosen]
        self.size_bytes[chosen, at] -= size_bytes[chosen]
        self.size_bytes[chosen, to] += size_bytes[chosen]
        self.counts[chosen[:, None], nets, at[:, None]] -= 1
        self.counts[chosen[:, None], nets, to[:, None]] += 1

    def _memory_rise(self, device: Ints, change_bytes: Floats, target_ms: float) -> Floats:
        """Return how much more memory in excess costs; an accelerator twice as full as it may be costs a full load."""
        limit = max(self.blocks.memory_bytes, 1.0)
        old = self.size_bytes[self.row, device]
        excess = np.maximum(old + change_bytes - limit, 0.0) - np.maximum(old - limit, 0.0)
        return np.where(device < self.k, target_ms * excess / limit, 0.0)
