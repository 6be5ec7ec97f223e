"""Whether units of two kinds may have a step that lasts no longer than some time, whatever the plan.

Every number of micro-batches is looked at by itself, with what the quicker of the kinds takes around a stage. The
stages that a plan may have are those of each kind, and those that both share (``stage_waits.py``). Where units may be
enough for plans of all of these, they are looked at again: plans without shared stages have the bounds by their
schedules, and plans with some must have one.

Units of two kinds are added up by weights near their speeds: what tells the most is a weight at which the units of both
do about as much.

Left out: what stages need of one kind (``stage_needs.py``); which sets are looked at (``open_sets.py``).
"""

from dataclasses import replace

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints

from .begun_plans import BegunPlan, begun_plans
from .stage_needs import StageNeeds, most_replicas, usual_first
from .stage_times import LayerParts, shared_waits
from .stage_waits import SharedWaits, StageWaits, Tally, Within, are_enough, rounded_up

_QUANTILES = (0.5, 0.1, 0.9)  # of the layers' work, whose ratios of speed are the weights
_ALIKE = 1.01
"""Sets whose times are in this ratio are looked at together, within the longest time: each look serves more sets, and
a bound is proven of up to 1 % shorter steps than it could be."""


def weights_of(work_s: Floats, other_s: Floats) -> Floats:
    """Return [W, 2], weights of one unit of each kind, by what layers [L] compute for there; inf where they may not."""
    both = np.isfinite(work_s) & np.isfinite(other_s) & (work_s > 0) & (other_s > 0)
    if not both.any():
        return np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    ratio = other_s[both] / work_s[both]  # units of the second that do what one of the first does
    order = np.argsort(ratio)
    done = np.cumsum(work_s[both][order])
    of_quantiles = [ratio[order][np.searchsorted(done, part * done[-1])] for part in _QUANTILES]
    return np.array([[weight, 1.0] for weight in dict.fromkeys(of_quantiles)])


class PairNeeds:
    """What stages need on two kinds of units."""

    def __init__(self, first: StageNeeds, second: StageNeeds, weights: Floats, tally: Tally) -> None:
        """Begin with what stages need of each kind, with the same numbers of micro-batches, and weights [W, 2].

        What looking takes is added to the tally.
        """
        self._needs, self._weights, self._tally = (first, second), weights, tally
        self._quicker_parts: dict[int, LayerParts] = {}
        self._stages: dict[object, tuple[StageWaits, StageWaits]] = {}
        self._shared_stages: dict[int, SharedWaits] = {}

    def are_out(self, units: Floats, times_s: Floats, *, is_shared: bool = False) -> Bools:
        """Return [C], whether units are too few for any plan whose step lasts no longer than some time.

        Times are looked at together: what units are too few for within the longest of them, they are within all.

        Args:
            units: [C, 2], of each kind.
            times_s: [C].
            is_shared: Of plans alone of which some stage has units of both kinds.
        """
        found, waiting = np.zeros(len(units), np.bool_), [np.arange(len(units))]
        numbers = np.ceil(units - 1e-9).astype(np.int64)
        while waiting:
            here = waiting.pop()
            if not len(here):
                continue
            longest_s = float(times_s[here].max())
            out = ~self._may_be(numbers[here], longest_s, is_shared=is_shared)
            found[here[out]] = True
            left = here[~out]
            left = left[times_s[left] * _ALIKE < longest_s]
            if len(left):
                middle_s = np.sqrt(times_s[left].min() * times_s[left].max())
                waiting += [left[times_s[left] <= middle_s], left[times_s[left] > middle_s]]
        return found

    def _may_be(self, units: Ints, time_s: float, *, is_shared: bool) -> Bools:
        """Return [C], whether units may be enough for a step of at most T, with any number of micro-batches."""
        found = np.zeros(len(units), np.bool_)
        for count in usual_first(self._needs[0].counts):
            quicker = self._quicker(count)
            if quicker.whole_s > time_s:
                continue
            here = np.flatnonzero(~found & (units.sum(axis=1) >= most_replicas(count)))
            if len(here):
                found[here] = self._may_be_with(count, quicker, units[here], time_s, is_shared=is_shared)
            if found.all():
                break
        return found

    def _may_be_with(self, count: int, quicker: LayerParts, units: Ints, time_s: float, *, is_shared: bool) -> Bools:
        """Return [C], the same with so many micro-batches."""
        many, shared, found = most_replicas(count), self._shared(count, quicker), np.zeros(len(units), np.bool_)
        any_plans, left = self._waits(count, quicker, None), np.arange(len(units))
        within = Within(time_s, self._weights, many, shared, tally=self._tally)
        if not is_shared:  # of all plans at once: most sets are out
            left = np.flatnonzero(are_enough(any_plans, units, within))
        if len(left):
            found[left] = are_enough(any_plans, units[left], replace(within, is_shared=True))
        left = left[~found[left]]
        if len(left) and not is_shared:
            plain = self._waits(count, quicker, rounded_up(int(units[left].sum(axis=1).max())))
            found[left] = are_enough(plain, units[left], replace(within, shared=None))
        return found

    def begun(self, units: Ints) -> tuple[BegunPlan, ...]:
        """Return plans on units [2] that a search may begin with."""
        total = rounded_up(int(units.sum()))
        counts = [count for count in usual_first(self._needs[0].counts) if most_replicas(count) <= total]
        return begun_plans(
            counts,
            lambda count: self._quicker(count).whole_s,
            lambda count: self._waits(count, self._quicker(count), total),
            lambda count, time_s: Within(time_s, self._weights, most_replicas(count)),
            units,
        )

    def _quicker(self, count: int) -> LayerParts:
        if count not in self._quicker_parts:
            first, second = (needs.parts(count) for needs in self._needs)
            self._quicker_parts[count] = first.quicker(second)
        return self._quicker_parts[count]

    def _shared(self, count: int, quicker: LayerParts) -> SharedWaits:
        if count not in self._shared_stages:
            first, second = (needs.times(count) for needs in self._needs)
            self._shared_stages[count] = shared_waits(first, second, quicker)
        return self._shared_stages[count]

    def _waits(self, count: int, quicker: LayerParts, total: int | None) -> tuple[StageWaits, StageWaits]:
        """Return what plans on so many units are made of; with shared stages too where no number is given."""
        key, around = (count, total), quicker.around()
        if key not in self._stages:
            first, second = (needs.times(count).waits(around, total) for needs in self._needs)
            self._stages[key] = (first, second)
        return self._stages[key]
