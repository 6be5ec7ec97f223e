"""The fewest units that the stages of a step need for it to last no longer than some time, and bounds that follow.

A step of M micro-batches that lasts at most T has only stages whose own bound is at most T (``stage_times.py``). For a
run of layers on a kind of unit that gives the fewest replicas, each with n of the micro-batches, and for all runs
together the fewest units of a plan, with what its stages wait for (``stage_waits.py``).

Few micro-batches wait for pipelines to fill, many pay every launch again: each number M is bounded by itself, and the
set's bound is the least of all. More than 32 are only taken with a stage of at least M / 8 replicas::

    M = 8     T >= 1.3 s
    M = 32    T >= 1.1 s    so that T >= 1.1 s
    M = 128   T >= 1.4 s

Left out: sets of two kinds (``pair_needs.py``); whole machines, which prices have (``sets.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log

import numpy as np

from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.passes.placement.steps.step_segments import StepSegments
from heterps_compile.schedule.load import ROUNDS_OF_REPLICAS, USUAL_MICRO_BATCHES

from .begun_plans import BegunPlan, begun_plans
from .stage_times import LayerParts, StageTimes, parts_of, stage_times
from .stage_waits import Small, StageWaits, Within, are_enough, rounded_up

_STEP = log(1.005)  # times are looked at on a grid of this ratio
_COARSE = 40  # steps of the grid, to find where to look
_WIDEST = 70  # of these from the lowest bound on
_SHORTEST_S = 1e-15  # of the grid; a model may have nothing to compute
_SURE = 1 - 1e-9  # of a bound, for what rounding makes of equal numbers
_HALVINGS = 8
"""Of the grid between the steps that a bound lies between: a ratio of 3.6 ends at one step of the grid, a larger one at
the 256th part of it; each halving is a look at all numbers of micro-batches that are still open."""

_CLOSE = 1  # steps of the grid, between which a bound is not looked for
_ONE = np.ones((1, 1))  # the weight of units that are all of one kind


def grid_below(time_s: float) -> int:
    """Return the number of the last time of the grid that is no longer."""
    return floor(log(max(time_s, _SHORTEST_S)) / _STEP)


def grid_above(time_s: float) -> int:
    """Return the number of the first time of the grid that is no shorter."""
    return ceil(log(max(time_s, _SHORTEST_S)) / _STEP)


def grid_s(numbers: Ints) -> Floats:
    """Return times of the grid."""
    return np.asarray(np.exp(numbers * _STEP), np.float64)


def least_paths(length: int, each: Small, one_of: Small | None = None) -> Small:
    """Return [C], the least sum over a path of runs [C, R] from the first block to the end.

    With ``one_of`` [C, R], of paths alone of which at least one run costs what that says.
    """
    least = np.zeros((len(each), length + 1), each.dtype)
    least_with = np.full((len(each), length + 1), np.inf, each.dtype)
    end = each.shape[1]
    for position in range(length - 1, -1, -1):
        runs = slice(end - length + position, end)
        least[:, position] = (each[:, runs] + least[:, position + 1 :]).min(axis=1)
        if one_of is not None:
            through = np.minimum(
                each[:, runs] + least_with[:, position + 1 :], one_of[:, runs] + least[:, position + 1 :]
            )
            least_with[:, position] = through.min(axis=1)
        end = runs.start
    return (least if one_of is None else least_with)[:, 0]


def _fewest(times_s: Small, values: Floats, limits_s: Floats) -> Small:
    """Return [J, R], for ascending limits the least of ascending values [A] with times [R, A] within; inf for none.

    Times do not rise with the values.
    """
    place = np.searchsorted(limits_s.astype(np.float32), times_s)
    found, runs = np.full((len(limits_s) + 1, len(times_s)), np.inf, np.float32), np.arange(len(times_s))
    for number in range(len(values) - 1, -1, -1):
        found[place[:, number], runs] = values[number]
    return np.minimum.accumulate(found[:-1], axis=0)


def most_replicas(count: int) -> int:
    """Return how many replicas some stage has at least for a plan to have so many micro-batches."""
    return 1 if count <= USUAL_MICRO_BATCHES else -(-count // ROUNDS_OF_REPLICAS)


def _totals(units: Floats) -> Ints:
    """Return [C], numbers of units, rounded up to few of them: what holds of more units holds of fewer."""
    return np.asarray([rounded_up(int(each)) for each in np.ceil(units)], np.int64)


def usual_first(counts: Sequence[int]) -> list[int]:
    """Return numbers of micro-batches, those that are usual first."""
    return sorted(counts, key=lambda count: abs(log(count / USUAL_MICRO_BATCHES)))


@dataclass(frozen=True, eq=False)
class StageNeeds:
    """What stages need on one kind of unit, for every number of micro-batches that a plan may have.

    Attributes:
        segments: The stages there may be.
        counts: Of micro-batches.
        known, known_parts: What was computed, by these.
    """

    segments: StepSegments
    counts: tuple[int, ...]
    known: dict[int, StageTimes] = field(default_factory=dict, repr=False)
    known_parts: dict[int, LayerParts] = field(default_factory=dict, repr=False)

    @property
    def length(self) -> int:
        """Return how many blocks the chain has."""
        return self.segments.chain.length

    @property
    def runs(self) -> int:
        """Return how many runs of blocks there are."""
        return self.length * (self.length + 1) // 2

    def parts(self, count: int) -> LayerParts:
        """Return what so many parts of a batch take in every block."""
        if count not in self.known_parts:
            self.known_parts[count] = parts_of(self.segments, count)
        return self.known_parts[count]

    def times(self, count: int) -> StageTimes:
        """Return what stages take with so many micro-batches."""
        if count not in self.known:
            self.known[count] = stage_times(self.segments, count)
        return self.known[count]

    def least_steps_s(self, units: Floats, low_s: Floats) -> Floats:
        """Return [C], bounds on the steps of so many units of this kind alone, none below ``low_s``, which are some."""
        found, totals = low_s.copy(), _totals(units)
        for total in np.unique(totals):
            here = np.flatnonzero(totals == total)
            least = np.full(len(here), np.inf)
            for count in usual_first(self.counts):
                least = np.minimum(least, self._least_of(count, units[here], low_s[here], least, int(total)))
            found[here] = np.maximum(least, low_s[here])
        return found

    def closer_steps_s(self, units: Floats, low_s: Floats, high_s: Floats) -> Floats:
        """Return [C], bounds between ``low_s``, which are some, and ``high_s``, by what stages wait for too."""
        found = low_s.copy()
        for place in np.flatnonzero(low_s < high_s).tolist():
            most, low, high = int(units[place]), grid_below(float(low_s[place])), grid_above(float(high_s[place]))
            open_counts = self._open_counts(most, high, usual_first(self.counts))
            if not open_counts:  # no step is as short as what would matter
                found[place] = max(float(low_s[place]), grid_s(np.array([high]))[0] * _SURE)
                continue
            for _ in range(_HALVINGS):
                if high - low <= _CLOSE:
                    break
                middle = (low + high) // 2
                still_open = self._open_counts(most, middle, open_counts)
                low, high = (low, middle) if still_open else (middle, high)
                open_counts = still_open or open_counts
            found[place] = max(float(low_s[place]), grid_s(np.array([low]))[0] * _SURE)
        return found

    def _open_counts(self, most: int, number: int, counts: Sequence[int]) -> list[int]:
        """Return the numbers of micro-batches with which so many units may have steps of a time of the grid."""
        return [count for count in counts if self._is_open(count, most, float(grid_s(np.array([number]))[0]))]

    def _is_open(self, count: int, most: int, time_s: float) -> bool:
        many = most_replicas(count)
        if self.parts(count).whole_s > time_s or many > most:
            return False
        return bool(are_enough([self._waits(count, most)], np.array([[most]]), Within(time_s, _ONE, many))[0])

    def _waits(self, count: int, most: int) -> StageWaits:
        """Return what plans on so many units at the most are made of."""
        times = self.times(count)
        return times.waits(times.parts.around(), rounded_up(most))

    def begun(self, units: int) -> tuple[BegunPlan, ...]:
        """Return plans on so many units that a search may begin with."""
        return begun_plans(
            [count for count in usual_first(self.counts) if most_replicas(count) <= units],
            lambda count: self.parts(count).whole_s,
            lambda count: [self._waits(count, units)],
            lambda count, time_s: Within(time_s, _ONE, most_replicas(count)),
            np.array([units]),
        )

    def _least_of(self, count: int, units: Floats, low_s: Floats, most_s: Floats, total: int) -> Floats:
        """Return [C], bounds on steps of so many micro-batches; those that reach ``most_s`` may be any longer."""
        low = grid_below(max(float(low_s.min()), self.parts(count).whole_s))
        high = low + _COARSE * _WIDEST
        if np.isfinite(most_s).all():
            high = min(high, grid_above(float(most_s.max())))
        if high < low or most_replicas(count) > total:
            return np.full(len(units), np.inf)
        times = self.times(count)
        least_s = times.least_s(times.parts.around(), total)
        coarse = np.arange(low, high + _COARSE, _COARSE)
        needed = self._needed(times, least_s, coarse)
        first, last = (int(np.searchsorted(-needed, -float(each))) for each in (units.max(), units.min()))
        if first == len(coarse):
            return np.full(len(units), np.inf)  # too few for any step that is not out of all proportion
        numbers = np.arange(coarse[max(first - 1, 0)], min(coarse[min(last, len(coarse) - 1)], high) + 1)
        needed = self._needed(times, least_s, numbers)
        place = np.searchsorted(-needed, -units)
        within = np.append(grid_s(numbers - 1) * _SURE, np.inf)[place]
        return np.where(place > 0, within, np.minimum(low_s, within))

    def _needed(self, times: StageTimes, least_s: Small, numbers: Ints) -> Floats:
        """Return [J], the units that steps of times of the grid need at the least; they do not rise."""
        each, many = _fewest(least_s, times.units, grid_s(numbers)), most_replicas(times.count)
        one_of = np.maximum(each, np.float32(many)) if many > 1 else None
        return np.asarray(least_paths(times.length, each, one_of), np.float64)
