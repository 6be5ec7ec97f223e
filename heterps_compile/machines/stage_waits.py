"""The fewest units of a pipeline whose step lasts no longer than some time, stage after stage.

A stage begins when a micro-batch has come through all stages before it, and ends before its gradients have gone back
through them and the last of these has summed its own (``schedule/shortest_step.py``). With w(s) what a micro-batch
computes in stage s, m what it moves there, and ``way`` of its values to the next stage and of their gradients back::

    X(0) = 0,   X(s + 1) = w(s) + way(s) + max( X(s), before(s) + sync(s) )
    step >= X(s) - m(s) + what passes from the first forward of stage s to its last backward

so that a cut costs every stage behind it a way there and back, and a sum of gradients that takes long is waited for
where its stage stands early. Steps of at most T have at every position a least X for every number u of units::

    position    0    1    2    3  ...  n          least[c][u + k] = least over runs (a, c) and replicas k that keep T
    u = 0       0    -    -    -       -
    u = 1       -    .    .    .       -
    u = 2       -    .    .    .       .  <- the fewest units of any plan

Left out: what stages behind add to those before beyond what they compute; two kinds of units (``stage_needs.py``).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.problem import Floats, Ints

Small = NDArray[np.float32]
"""Of what there is much of."""


@dataclass(frozen=True, eq=False)
class StageWaits:
    """What all runs of blocks [R] do to a step with some number of micro-batches, by classes of replicas [A].

    Attributes:
        length: Blocks of the chain.
        first, end: [R], sorted by these.
        units: [A], the fewest replicas of every class, ascending.
        least_s: [R, A], the least step with such a stage, whatever the others are; inf where there is none.
        rest_s: [R, A], what a step with it lasts beyond X.
        sync_s: [R, A], before it and its sum of gradients.
        adds_s: [R], w + way.
    """

    length: int
    first: Ints
    end: Ints
    units: Floats
    least_s: Small
    rest_s: Small
    sync_s: Small
    adds_s: Floats

    def fewest_units(self, time_s: float, most: int, one_has: int = 1) -> float:
        """Return the fewest units, up to ``most``, of plans with steps of at most some time; inf where none has so few.

        With ``one_has`` of plans alone of which some stage has at least so many replicas.
        """
        within = self.least_s <= np.float32(time_s)
        fewest = np.where(within.any(axis=1), self.units[within.argmax(axis=1)], np.inf)
        before, behind = self._from_start(fewest), self._to_end(fewest)
        if behind[0] > most:
            return float("inf")
        within &= (before[self.first] + behind[self.end])[:, None] + self.units <= most
        run, number = np.nonzero(within)
        rows = np.searchsorted(self.first[run], np.arange(self.length + 1))
        kinds = 1 if one_has <= 1 else 2  # paths without such a stage so far, and with one
        least = np.full((kinds, self.length + 1, most + 1), np.inf)
        least[0, 0] = 0.0
        for position in range(self.length):
            here = slice(rows[position], rows[position + 1])
            least[:, position] = np.minimum.accumulate(least[:, position], axis=1)
            for place in np.unique(number[here]).tolist():
                these, replicas = run[here][number[here] == place], int(self.units[place])
                for kind in range(kinds):
                    to = kinds - 1 if replicas >= one_has else kind
                    waited_s = self._behind(least[kind, position, : most + 1 - replicas], these, place, time_s)
                    ends = self.end[these]
                    least[to, ends, replicas:] = np.minimum(least[to, ends, replicas:], waited_s)
        found = np.flatnonzero(np.isfinite(least[-1, -1]))
        return float(found[0]) if len(found) else float("inf")

    def _behind(self, waited_s: Floats, runs: Ints, place: int, time_s: float) -> Floats:
        """Return [S, U], X behind runs [S] of a class that begin where it is ``waited_s`` [U]; inf where T is over."""
        sync_s, rest_s = (each[runs, place].astype(np.float64)[:, None] for each in (self.sync_s, self.rest_s))
        keeps = np.isfinite(waited_s) & ((waited_s + rest_s <= time_s) | (self.first[runs] == 0)[:, None])
        return np.where(keeps, self.adds_s[runs][:, None] + np.maximum(waited_s, sync_s), np.inf)

    def _from_start(self, each: Floats) -> Floats:
        """Return [n + 1], the least sum of what runs [R] cost from the first block to a position."""
        least = np.full(self.length + 1, np.inf)
        least[0] = 0.0
        rows = np.searchsorted(self.first, np.arange(self.length + 1))
        for position in range(self.length):
            here = slice(rows[position], rows[position + 1])
            ends = self.end[here]
            least[ends] = np.minimum(least[ends], least[position] + each[here])
        return least

    def _to_end(self, each: Floats) -> Floats:
        """Return [n + 1], the least sum of what runs cost from a position to the end."""
        least = np.full(self.length + 1, np.inf)
        least[-1] = 0.0
        rows = np.searchsorted(self.first, np.arange(self.length + 1))
        for position in range(self.length - 1, -1, -1):
            here = slice(rows[position], rows[position + 1])
            least[position] = (each[here] + least[self.end[here]]).min()
        return least
