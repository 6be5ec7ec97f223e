"""Bounds on steps of sets of machines, beyond those that cost nothing: by what every stage needs (``stage_needs.py``).

Needs are computed for a kind of units once, when the first set that may still win has it, up to an effort; without them
the bound stays the one that costs nothing.

Left out: which sets there are (``sets.py``), and which of them are bounded (``search.py``).
"""

from collections.abc import Sequence

import numpy as np

from heterps_compile.cost.problem import Floats
from heterps_compile.passes.placement.steps.step_segments import StepSegments, classes
from heterps_compile.schedule.load import micro_batch_counts

from .goal import Goal
from .sets import Candidate, Kind
from .stage_needs import LayerParts, PairNeeds, StageNeeds, needs_of, parts_of
from .step_times import StepTimes


class StepBounds:
    """Bounds on steps of training one model on sets of some kinds of machines."""

    def __init__(self, times: StepTimes, kinds: Sequence[Kind], goal: Goal, most_cells: int) -> None:
        """Begin; ``most_cells`` are the runs of layers times numbers of replicas that may be looked at in all."""
        self._times, self._most_cells = times, most_cells
        self._kinds = {kind.hardware: kind for kind in kinds}
        self._most_units = goal.most_machines * max(kind.units for kind in kinds)
        self._segments: dict[tuple[object, int], StepSegments | None] = {}
        self._quickest: dict[int, list[LayerParts]] = {}
        self._needs: dict[tuple[object, int], StageNeeds | None] = {}
        self.cells = 0

    def of_one(self, kind: Kind, units: Floats, batch: int, low_s: Floats) -> Floats:
        """Return [N], bounds on steps on so many units of a kind alone, none below ``low_s``, which are some."""
        needs = self._of(kind, batch)
        if needs is None:
            return low_s
        return np.array(needs.least_steps_s([int(each) for each in units], low_s.tolist()))

    def of_two(self, kind: Kind, other: Kind, batch: int) -> PairNeeds | None:
        """Return what stages need on two kinds; None where that is not known."""
        first, second = self._of(kind, batch), self._of(other, batch)
        if first is None or second is None or first.length != second.length:
            return None
        work_s, other_s = (self._times.work_s(each.device, batch) for each in (kind, other))
        return PairNeeds.of(first, second, work_s, other_s)

    def of_shared(self, candidate: Candidate, high_s: float) -> float:
        """Return a bound, up to ``high_s``, on steps on a set of two kinds of plans of which some stage has both."""
        kind, other = candidate.kinds
        needs = self.of_two(kind, other, candidate.batch)
        if needs is None:
            return candidate.least_s
        counts = [count for _, count in candidate.machines.parts]
        units = np.array([[counts[0] * kind.units, counts[1] * other.units]], np.float64)
        low_s, most_s = (np.array([each]) for each in (candidate.least_s, high_s))
        return float(needs.least_steps_s(units, low_s, most_s, shared=True)[0])

    def _of(self, kind: Kind, batch: int) -> StageNeeds | None:
        key = (kind.hardware, batch)
        if key not in self._needs:
            self._needs[key] = self._needs_of(kind, batch)
        return self._needs[key]

    def _needs_of(self, kind: Kind, batch: int) -> StageNeeds | None:
        segments, counts = self._stages(kind, batch), self._counts(batch)
        if segments is None:
            return None
        cells = len(segments.type) * sum(len(classes(segments.of.problem, count)[0]) for count in counts)
        if self.cells + cells > self._most_cells:
            return None
        quickest = self._quickest_of(batch)
        self.cells += cells
        return needs_of(segments, counts, quickest) if quickest else None

    def _counts(self, batch: int) -> list[int]:
        """Return all numbers of micro-batches that a plan may have."""
        if not self._times.is_divisible(batch):
            return [1]
        return micro_batch_counts(batch, min(self._most_units, batch))

    def _stages(self, kind: Kind, batch: int) -> StepSegments | None:
        key = (kind.hardware, batch)
        if key not in self._segments:
            self._segments[key] = self._times.segments_of(kind.device, self._most_units, batch)
        return self._segments[key]

    def _quickest_of(self, batch: int) -> list[LayerParts]:
        """Return for every number of micro-batches what the quickest of all kinds takes; none where chains differ."""
        if batch not in self._quickest:
            found: list[LayerParts] = []
            every = [self._stages(kind, batch) for kind in self._kinds.values()]
            if None not in every and len({each.chain.length for each in every if each is not None}) == 1:
                for count in self._counts(batch):
                    parts = [parts_of(each, count) for each in every if each is not None]
                    least = parts[0]
                    for other in parts[1:]:
                        least = least.quicker(other)
                    found.append(least)
            self._quickest[batch] = found
        return self._quickest[batch]
