"""What replicas do by themselves behind the last backward of a step: the optimizer's step, and a rule's own work.

With u, a, b and c sums over the layers of a stage on its type (``step_rates.py``), k replicas take besides what their
exchange takes the link ::

    u                                  the optimizer, which every replica runs on all weights that it holds
    a + b (k - 1) / k + c (k - 1)      the rule, of two replicas or more

once in a step. That is in a step, and not in the steady state, as latencies of an exchange are.

Left out: what the optimizers of servers take, which is theirs; clipping, and whatever else a training file does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heterps_compile.ir.layers import LayerGraph
from heterps_compile.sync_rules.handling import Work
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.sync_rules.rules import USUAL, faults_of
from heterps_compile.sync_rules.sparse_rows import handling

from .layer_cost import LayerCost
from .layer_times import LayerTimes
from .memory import stepped_parts
from .problem import Floats
from .step_rates import of_replicas
from .sync_groups import groups_of_layers


@dataclass(frozen=True, eq=False)
class HandlingTimes:
    """The own work of a rule, [L, T] each: a, b and c."""

    once_s: Floats
    shared_s: Floats
    each_s: Floats

    def time_s(self, sums: Callable[[Floats], Floats], units: Floats) -> Floats:
        """Return what stages take with so many replicas each.

        Args:
            sums: Returns the sums of a table over the layers of every stage, of the shape of ``units``.
            units: k.
        """
        return of_replicas(sums(self.once_s), sums(self.shared_s), sums(self.each_s), units)


@dataclass(frozen=True, eq=False)
class OwnWork:
    """The own work of every layer.

    Attributes:
        update_s: [L, T], u.
        handling: Of the rules of the problem in their order; of an all-reduce where it has none.
    """

    update_s: Floats
    handling: tuple[HandlingTimes, ...]

    def updates_s(self, layers: tuple[int, int], types: Sequence[int]) -> float:
        """Return the optimizer's step of a stage, from a layer to before another; on several types the longest."""
        return float(max(self.update_s[slice(*layers), type_].sum() for type_ in types))

    def handling_s(self, layers: tuple[int, int], types: Sequence[int], replicas: int) -> float:
        """Return the own work of the first rule, likewise, of so many replicas."""
        units = np.asarray(replicas, np.float64)

        def taken_s(type_: int) -> float:
            return float(self.handling[0].time_s(lambda table: np.asarray(table[slice(*layers), type_].sum()), units))

        return max(map(taken_s, types))


def own_work(
    layers: LayerGraph,
    costs: Sequence[LayerCost],
    times: LayerTimes,
    optimizer: str,
    rules: Sequence[SyncRule] = (USUAL,),
) -> OwnWork:
    """Return the own work of the layers of a training on the types of a pool; O(layers * types * rules).

    Raises:
        PlugInError: where a third party's rule fails.
    """
    groups = groups_of_layers(layers, costs, tied=True)
    of_rules = []
    for rule in rules:
        with faults_of(type(rule)):
            found = [handling(rule, group) for group in groups]
        parts = ([each.once for each in found], [each.shared for each in found], [each.each for each in found])
        of_rules.append(HandlingTimes(*(_seconds(times, works) for works in parts)))
    return OwnWork(update_times(layers, costs, times, optimizer), tuple(of_rules))


def update_times(layers: LayerGraph, costs: Sequence[LayerCost], times: LayerTimes, optimizer: str) -> Floats:
    """Return [L, T], what a step of the optimizer takes for every layer."""
    parts = [stepped_parts(layers, index, cost, optimizer=optimizer) for index, cost in enumerate(costs)]
    return np.array([[rates.optimizer_s(optimizer, *part) for rates in times.step_rates] for part in parts])


def _seconds(times: LayerTimes, works: Sequence[Work]) -> Floats:
    return np.array([[rates.work_s(work) for rates in times.step_rates] for work in works])
