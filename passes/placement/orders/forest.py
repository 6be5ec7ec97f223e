"""The values between layers that make no circle, the largest first: a forest, on which labels are cheap to choose.

Dynamic programming from the leaves minimises the cost of layers and of values between layers of different types, in
O(layers * types^2).
"""

from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Floats, Problem
from heterps_compile.cost.segments import problem_tables
from heterps_compile.passes.placement.proof.trivial_bounds import GAP


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Layers, and values between them that make no circle.

    Attributes:
        compute_s, data_s: [L, T], of a layer on one unit; inf where the type cannot run it.
        seconds_per_byte: [T].
        edges: (layer, parent, bytes), each layer once, after all layers of which it is the parent.
        roots: Layers without a parent.
    """

    compute_s: Floats
    data_s: Floats
    seconds_per_byte: Floats
    edges: tuple[tuple[int, int, float], ...]
    roots: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem, slow_s: float) -> "Forest":
        """Return the forest of the largest values, of plans that take at most ``slow_s`` for a batch."""
        usable, compute_s = problem_tables(problem).usable, problem.compute_s
        if np.isfinite(slow_s):
            types = np.broadcast_to(np.arange(problem.type_count), usable.shape)
            alone = problem_tables(problem).layers.work(problem, types)
            usable = usable & np.isfinite(alone.demand().units(slow_s * (1 + GAP)))
            if problem.objective != "latency":
                alpha = problem.alpha
                with np.errstate(divide="ignore", invalid="ignore"):  # where the type is not usable
                    shared_s = compute_s * alpha * slow_s / (slow_s * (1 + GAP) - compute_s * (1 - alpha))
                compute_s = np.fmax(compute_s, shared_s)
        edges, roots = _rooted(problem.layer_count, _links(problem))
        compute_s, data_s = (np.where(usable, table, np.inf) for table in (compute_s, problem.data_s))
        return cls(compute_s, data_s, problem.seconds_per_byte, edges, roots)

    def least(self, of_compute: Floats, of_data: Floats) -> float:
        """Minimise the sum over types of layers.

        Args:
            of_compute: [T], price of a second of computation on each type.
            of_data: [T], price of a second of data movement on each type.
        """
        per_byte = of_data * self.seconds_per_byte
        apart = per_byte[:, None] + per_byte
        np.fill_diagonal(apart, 0.0)
        with np.errstate(invalid="ignore"):  # 0 * inf: a type that cannot run the layer
            costs = self.compute_s * of_compute + self.data_s * of_data
        costs = np.where(np.isnan(costs) | np.isinf(self.compute_s), np.inf, costs)
        for layer, parent, size in self.edges:
            costs[parent] += (costs[layer] + size * apart).min(axis=1)
        return float(sum(costs[root].min() for root in self.roots))


def _links(problem: Problem) -> list[tuple[float, int, int]]:
    """Return (bytes, maker, reader) of values that make no circle, the largest first."""
    home = list(range(problem.layer_count))

    def root(layer: int) -> int:
        while home[layer] != layer:
            home[layer] = home[home[layer]]
            layer = home[layer]
        return layer

    starts = problem.edge_starts
    found = []
    for value in np.argsort(-problem.edge_bytes, kind="stable").tolist():
        maker = int(problem.edge_producer[value])
        for reader in problem.edge_readers[starts[value] : starts[value + 1]].tolist():
            if root(maker) != root(reader):
                home[root(maker)] = root(reader)
                found.append((float(problem.edge_bytes[value]), maker, reader))
                break  # a value counts once, however many readers it has
    return found


def _rooted(
    layers: int, links: list[tuple[float, int, int]]
) -> tuple[tuple[tuple[int, int, float], ...], tuple[int, ...]]:
    """Hang each tree up by its first layer."""
    near: list[list[tuple[int, float]]] = [[] for _ in range(layers)]
    for size, maker, reader in links:
        near[maker].append((reader, size))
        near[reader].append((maker, size))
    edges: list[tuple[int, int, float]] = []
    roots, seen = [], [False] * layers
    for first in range(layers):
        if seen[first]:
            continue
        roots.append(first)
        seen[first], waiting = True, [first]
        while waiting:
            layer = waiting.pop()
            for other, size in near[layer]:
                if not seen[other]:
                    seen[other] = True
                    edges.append((other, layer, size))
                    waiting.append(other)
    return tuple(reversed(edges)), tuple(roots)
