"""Bounds on steps of sets of machines, beyond those that cost nothing: by what every stage needs (``stage_needs.py``).

Needs are computed for a kind of units once, when the first set that may still win has it, up to an effort; without them
the bound stays the one that costs nothing.

Left out: which sets there are (``sets.py``), and which of them are bounded (``search.py``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from heterps_compile.cluster.devices import DeviceType
from heterps_compile.cost.problem import Bools, Floats, Ints
from heterps_compile.passes.placement.steps.step_segments import classes
from heterps_compile.schedule.load import micro_batch_counts

from .begun_plans import BegunPlan
from .goal import Goal
from .pair_needs import PairNeeds, weights_of
from .sets import Candidate, Kind
from .stage_needs import StageNeeds
from .stage_waits import Tally
from .step_times import StepTimes

_CLOSE = 1.005  # the ratio of steps between which no bound is looked for
_FURTHEST = 100.0  # nor below the part 1 / this of the longest
_HALVINGS = 5
"""Of the ratio between the steps that a bound lies between: it ends within 100 ** (1 / 32) = 1.155 of what could be
proven, or closer; each halving is a look at all numbers of micro-batches."""

_SURE = 1 - 1e-9  # of a bound, for what rounding makes of equal numbers


class StepBounds:
    """Bounds on steps of training one model on sets of some kinds of machines.

    Attributes:
        cells: Runs of layers times numbers of replicas that were looked at.
        tally: What bounding sets of two kinds took.
    """

    def __init__(self, times: StepTimes, kinds: Sequence[Kind], goal: Goal, most_cells: int) -> None:
        """Begin; ``most_cells`` are the runs of layers times numbers of replicas that may be looked at in all."""
        self._times, self._most_cells = times, most_cells
        self._most_machines = goal.most_machines
        self._most_units = goal.most_machines * max(kind.units for kind in kinds)
        self._needs: dict[tuple[object, int, object], StageNeeds | None] = {}
        self._last_of: object = None
        self._last: dict[tuple[bool, ...], PairNeeds] = {}  # of the two kinds that were looked at last
        self.cells, self.tally = 0, Tally()

    def of_one(self, kind: Kind, machines: Ints, batch: int, low_s: Floats, high_s: Floats | None = None) -> Floats:
        """Return [C], bounds on steps on so many machines of a kind, none below ``low_s``, which are some.

        With ``high_s``, up to which a bound matters, closer ones.
        """
        found = low_s.copy()
        for alone in (True, False):
            here = np.flatnonzero((machines == 1) == alone)
            needs = self._of(kind, batch, kind.device, alone=alone) if len(here) else None
            if needs is not None:
                units = machines[here].astype(np.float64) * kind.units
                found[here] = needs.least_steps_s(units, low_s[here])
                if high_s is not None:
                    found[here] = needs.closer_steps_s(units, found[here], high_s[here])
        return found

    def of_two(
        self,
        kinds: tuple[Kind, Kind],
        machines: Ints,
        batch: int,
        low_s: Floats,
        high_s: Floats,
        *,
        shared: bool = False,
    ) -> Floats:
        """Return [C], bounds on steps on machines [C, 2] of two kinds, none below ``low_s``, which are some.

        Units of one machine talk inside it: where a set has one machine of a kind, its stages are others.

        Args:
            kinds: The two.
            machines: Of each.
            batch: Samples in a step.
            low_s: [C].
            high_s: [C], up to which a bound matters.
            shared: Of plans alone of which some stage has units of both kinds.
        """
        found = low_s.copy()
        for here, units, pair in self._pairs(kinds, machines, batch, low_s < high_s):
            found[here] = _between(pair, units, low_s[here], high_s[here], is_shared=shared)
        return found

    def are_out(self, kinds: tuple[Kind, Kind], machines: Ints, batch: int, times_s: Floats) -> Bools:
        """Return [C], whether machines [C, 2] of two kinds have no plan whose step lasts no longer than some time."""
        found = np.zeros(len(machines), np.bool_)
        for here, units, pair in self._pairs(kinds, machines, batch, np.ones(len(machines), np.bool_)):
            found[here] = pair.are_out(units, times_s[here])
        return found

    def _pairs(
        self, kinds: tuple[Kind, Kind], machines: Ints, batch: int, matter: Bools
    ) -> Iterator[tuple[Ints, Floats, PairNeeds]]:
        """Yield which machines [C, 2] have what needs, and their units, by how many are alone; those alone matter."""
        units = machines.astype(np.float64) * [kind.units for kind in kinds]
        for alone in product((False, True), repeat=2):
            here = np.flatnonzero(((machines == 1) == alone).all(axis=1) & matter)
            pair = self._pair(kinds, alone, batch) if len(here) else None
            if pair is not None:
                yield here, units[here], pair

    def runs(self, kind: Kind, batch: int) -> int:
        """Return how many runs of layers a bound of a set of two kinds looks at; 0 where it looks at none."""
        needs = self._of(kind, batch, _quickest_inside(kind.device), alone=False)
        return 0 if needs is None else needs.runs

    def of_shared(self, candidate: Candidate, high_s: float) -> float:
        """Return a bound, up to ``high_s``, on steps on a set of two kinds of plans of which some stage has both."""
        kind, other = candidate.kinds
        machines = np.array([[count for _, count in candidate.machines.parts]])
        low_s, most_s = (np.array([each]) for each in (candidate.least_s, high_s))
        return float(self.of_two((kind, other), machines, candidate.batch, low_s, most_s, shared=True)[0])

    def begun(self, candidate: Candidate) -> tuple[BegunPlan, ...]:
        """Return plans on a set that a search may begin with; their kinds are in the order of the set's."""
        counts, batch = [count for _, count in candidate.machines.parts], candidate.batch
        units = np.array([count * kind.units for count, kind in zip(counts, candidate.kinds, strict=True)])
        if len(counts) == 1:
            (kind,) = candidate.kinds
            needs = self._of(kind, batch, kind.device, alone=counts[0] == 1)
            return () if needs is None else needs.begun(int(units[0]))
        pair = self._pair(candidate.kinds, (counts[0] == 1, counts[1] == 1), batch)
        return () if pair is None else pair.begun(units)

    def _pair(self, kinds: Sequence[Kind], alone: Sequence[bool], batch: int) -> PairNeeds | None:
        """Return the needs of two kinds; None where those of one of them are not known."""
        first, second = (
            self._of(kind, batch, _quickest_inside(kind.device), alone=own)
            for kind, own in zip(kinds, alone, strict=True)
        )
        if first is None or second is None or first.length != second.length:
            return None
        hardware = (batch, *(kind.hardware for kind in kinds))
        if self._last_of != hardware:
            self._last_of, self._last = hardware, {}
        if tuple(alone) not in self._last:
            work_s = (self._times.work_s(kind.device, batch) for kind in kinds)
            self._last[tuple(alone)] = PairNeeds(first, second, weights_of(*work_s), self.tally)
        return self._last[tuple(alone)]

    def _of(self, kind: Kind, batch: int, device: DeviceType, *, alone: bool) -> StageNeeds | None:
        alone = alone and kind.units > 1
        key = (kind.hardware, batch, alone and device.inner_bytes_per_s)
        if key not in self._needs:
            machines = 1 if alone else self._most_machines
            self._needs[key] = self._needs_of(device if alone else kind.device, machines * kind.units, batch)
        return self._needs[key]

    def _needs_of(self, device: DeviceType, units: int, batch: int) -> StageNeeds | None:
        segments, counts = self._times.segments_of(device, units, batch), self._counts(batch)
        if segments is None or not len(segments.type):  # no unit has the memory for a block
            return None
        cells = len(segments.type) * sum(len(classes(segments.of.problem, count)[0]) for count in counts)
        if self.cells + cells > self._most_cells:
            return None
        self.cells += cells
        return StageNeeds(segments, tuple(counts))

    def _counts(self, batch: int) -> list[int]:
        """Return all numbers of micro-batches that a plan may have."""
        if not self._times.is_divisible(batch):
            return [1]
        return micro_batch_counts(batch, min(self._most_units, batch))


def _quickest_inside(device: DeviceType) -> DeviceType:
    """Return units that talk inside a machine no slower than over its card, which stages of another kind are behind."""
    return replace(device, inner_bytes_per_s=max(device.inner_bytes_per_s, device.network_bytes_per_s))


def _between(pair: PairNeeds, units: Floats, low_s: Floats, high_s: Floats, *, is_shared: bool) -> Floats:
    """Return [C], bounds on steps of units [C, 2]: the high ones where these are proven, else some between."""
    low_s, high_s = low_s.copy(), high_s.copy()
    out = pair.are_out(units, high_s, is_shared=is_shared)
    low_s[out] = high_s[out]
    for _ in range(_HALVINGS):
        still = np.flatnonzero(low_s * _CLOSE < high_s)
        if not len(still):
            break
        middle_s = np.sqrt(np.maximum(low_s[still], high_s[still] / _FURTHEST) * high_s[still])
        out = pair.are_out(units[still], middle_s, is_shared=is_shared)
        low_s[still[out]], high_s[still[~out]] = middle_s[out], middle_s[~out]
    return np.asarray(low_s * _SURE, np.float64)
