"""The fewest units that the stages of a step need for it to last no longer than some time, and bounds that follow.

A step of M micro-batches that lasts at most T has only stages whose own bound is at most T (``stage_times.py``). For a
run of layers on a kind of unit that gives the fewest replicas ``u(T)``, each with n of the micro-batches. Where
replicas of two kinds share a stage, a unit that takes n is worth n / M of it, and the stage needs at least
``v(T) = M / n(T)`` units of one kind or as much of the other. A set of K units of kind 1 and K' of kind 2 has no step
of M micro-batches within T where for some weights w, w'::

    least over all cuts of  sum over stages of  min( w u, w' u',  max( min(w v, w' v'), w + w' ) )   >   w K + w' K'

The weights that tell the most are near the speeds of the units. Few micro-batches wait for pipelines to fill, many pay
every launch again: each number M is bounded by itself, with what the quicker of these two kinds takes around a stage,
and the set's bound is the least of all. More than 32 are only taken with a stage of at least M / 8 replicas::

    M = 8     T >= 1.3 s
    M = 32    T >= 1.1 s    so that T >= 1.1 s
    M = 128   T >= 1.4 s

Left out: that a stage's last backward comes before the sums of gradients of the stages before it; whole machines,
which prices have (``sets.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints
from heterps_compile.passes.placement.steps.step_segments import StepSegments
from heterps_compile.schedule.load import ROUNDS_OF_REPLICAS, USUAL_MICRO_BATCHES

from .stage_times import LayerParts, StageTimes, parts_of, stage_times
from .stage_waits import Small

_STEP = log(1.005)  # times are looked at on a grid of this ratio
_COARSE = 40  # steps of the grid, to find where to look
_WIDEST = 70  # of these from the lowest bound on
_SHORTEST_S = 1e-15  # of the grid; a model may have nothing to compute
_SURE = 1 - 1e-9  # of a bound, for what rounding makes of equal numbers
_QUANTILES = (0.5, 0.1, 0.9)  # of the layers' work, whose ratios of speed are the weights
_HALVINGS, _FEW_HALVINGS = 5, 3  # of the steps between which a bound is looked for
_ROUNDED_UP = 1 + 1e-5  # what sums of weighted units are rounded by, at the most
_CLOSE = 2  # steps of the grid, between which a bound is not looked for


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


def _most_replicas(count: int) -> int:
    """Return how many replicas some stage has at least for a plan to have so many micro-batches."""
    return 1 if count <= USUAL_MICRO_BATCHES else -(-count // ROUNDS_OF_REPLICAS)


def _totals(units: Floats) -> Ints:
    """Return [C], numbers of units, rounded up to few of them: what holds of more units holds of fewer."""
    return np.asarray([_up(int(each)) for each in np.ceil(units)], np.int64)


def _up(units: int) -> int:
    """Return the next of 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, ..."""
    step = 1 << max(0, units.bit_length() - 3)
    return -(-units // step) * step


def _usual_first(counts: Sequence[int]) -> list[int]:
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
            for count in _usual_first(self.counts):
                least = np.minimum(least, self._least_of(count, units[here], low_s[here], least, int(total)))
            found[here] = np.maximum(least, low_s[here])
        return found

    def closer_steps_s(self, units: Floats, low_s: Floats, high_s: Floats) -> Floats:
        """Return [C], bounds between ``low_s``, which are some, and ``high_s``, by what stages wait for too."""
        found = low_s.copy()
        for place in np.flatnonzero(low_s < high_s).tolist():
            most, low, high = int(units[place]), grid_below(float(low_s[place])), grid_above(float(high_s[place]))
            open_counts = self._open_counts(most, high, _usual_first(self.counts))
            if not open_counts:  # no step is as short as what would matter
                found[place] = max(float(low_s[place]), grid_s(np.array([high]))[0] * _SURE)
                continue
            for _ in range(_FEW_HALVINGS):
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
        many = _most_replicas(count)
        if self.parts(count).whole_s > time_s or many > most:
            return False
        times = self.times(count)
        waits = times.waits(times.parts.around(), _up(most))
        return waits.fewest_units(time_s, most, many) <= most

    def _least_of(self, count: int, units: Floats, low_s: Floats, most_s: Floats, total: int) -> Floats:
        """Return [C], bounds on steps of so many micro-batches; those that reach ``most_s`` may be any longer."""
        low = grid_below(max(float(low_s.min()), self.parts(count).whole_s))
        high = low + _COARSE * _WIDEST
        if np.isfinite(most_s).all():
            high = min(high, grid_above(float(most_s.max())))
        if high < low or _most_replicas(count) > total:
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
        each, many = _fewest(least_s, times.units, grid_s(numbers)), _most_replicas(times.count)
        one_of = np.maximum(each, np.float32(many)) if many > 1 else None
        return np.asarray(least_paths(times.length, each, one_of), np.float64)


@dataclass(frozen=True, eq=False)
class PairNeeds:
    """What stages need on two kinds of units.

    Attributes:
        first, second: Of each kind, with the same numbers of micro-batches.
        weights: [W, 2], of one unit of each.
    """

    first: StageNeeds
    second: StageNeeds
    weights: Floats

    @classmethod
    def of(cls, first: StageNeeds, second: StageNeeds, work_s: Floats, other_s: Floats) -> "PairNeeds":
        """Return the needs of two kinds, by what layers [L] compute for on a unit of each; inf where they may not."""
        both = np.isfinite(work_s) & np.isfinite(other_s) & (work_s > 0) & (other_s > 0)
        if not both.any():
            return cls(first, second, np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]))
        ratio = other_s[both] / work_s[both]  # units of the second that do what one of the first does
        order = np.argsort(ratio)
        done = np.cumsum(work_s[both][order])
        of_quantiles = [ratio[order][np.searchsorted(done, part * done[-1])] for part in _QUANTILES]
        return cls(first, second, np.array([[weight, 1.0] for weight in dict.fromkeys(of_quantiles)]))

    def least_steps_s(self, units: Floats, low_s: Floats, high_s: Floats, *, shared: bool = False) -> Floats:
        """Return [C], bounds on steps, between ``low_s``, which are some, and ``high_s``, beyond which none matters.

        Args:
            units: [C, 2], of each kind.
            low_s: [C], bounds that are known.
            high_s: [C], which a bound need not be above.
            shared: Of plans alone of which some stage has units of both kinds.
        """
        found = low_s.copy()
        matters = np.flatnonzero(low_s < high_s)
        if len(matters):
            closer_s = _Pair(self, shared=shared).between(units[matters], low_s[matters], high_s[matters])
            found[matters] = np.maximum(found[matters], closer_s)
        return found


class _Pair:
    """The needs of two kinds with what the quicker of them takes around a stage."""

    def __init__(self, needs: PairNeeds, *, shared: bool) -> None:
        self._needs, self._shared = needs, shared
        self._quicker = {
            count: needs.first.parts(count).quicker(needs.second.parts(count))
            for count in _usual_first(needs.first.counts)
        }
        self._least: dict[tuple[int, int | None], _Steps] = {}

    def between(self, units: Floats, low_s: Floats, high_s: Floats) -> Floats:
        """Return [C], as :meth:`PairNeeds.least_steps_s`."""
        low = np.array([grid_below(time_s) for time_s in low_s.tolist()])
        high = np.array([grid_above(time_s) for time_s in high_s.tolist()])
        is_out = self._are_out(units, high)  # no step is as short as what would matter
        low = np.where(is_out, high, low)
        proven = is_out.copy()
        for _ in range(_HALVINGS):
            still = np.flatnonzero(high - low > _CLOSE)
            if not len(still):
                break
            middle = (low[still] + high[still]) // 2
            out = self._are_out(units[still], middle)
            low[still] = np.where(out, middle, low[still])
            high[still] = np.where(out, high[still], middle)
            proven[still] |= out
        return np.where(proven, grid_s(low) * _SURE, low_s)

    def _are_out(self, units: Floats, numbers: Ints) -> Bools:
        """Return [C], whether so many units are too few for steps of times of the grid, whatever the micro-batches.

        Where they may be enough it is asked apart of plans with shared stages and of those without.
        """
        if self._shared:
            return self._hold(units, numbers, is_shared=True)
        found = self._hold(units, numbers)
        left = np.flatnonzero(~found)
        left = left[self._hold(units[left], numbers[left], is_shared=True)]
        found[left] = self._hold(units[left], numbers[left], is_plain=True)
        return found

    def _hold(self, units: Floats, numbers: Ints, *, is_shared: bool = False, is_plain: bool = False) -> Bools:
        """Return [C], the same of plans with shared stages alone, of those without, or of all."""
        found, limits = np.ones(len(units), np.bool_), grid_s(numbers)
        totals = _totals(units.sum(axis=1))
        for count, quicker in self._quicker.items():
            may_be = (quicker.whole_s <= limits) & (totals >= _most_replicas(count))
            for total in np.unique(totals) if is_plain else [None]:
                still = np.flatnonzero(found & may_be & (True if total is None else totals == total))
                if len(still):
                    steps = self._steps(count, None if total is None else int(total))
                    found[still] = self._are_few(steps, units[still], numbers[still], is_shared=is_shared)
        return found

    def _are_few(self, steps: "_Steps", units: Floats, numbers: Ints, *, is_shared: bool) -> Bools:
        """Return [C], the same of one number of micro-batches."""
        limits, row = np.unique(numbers, return_inverse=True)
        limits_s, many = grid_s(limits), float(_most_replicas(steps.first.count))
        needs = _fewest(steps.first_s, steps.first.units, limits_s)
        others = _fewest(steps.second_s, steps.second.units, limits_s)
        worth, other_worth = (
            None if each is None else _fewest(each, steps.first.count / steps.first.rounds, limits_s)
            for each in (steps.first_shared_s, steps.second_shared_s)
        )
        found = np.zeros(len(units), np.bool_)
        for weight, other_weight in self._needs.weights.tolist():
            still = np.flatnonzero(~found)
            rows, place = np.unique(row[still], return_inverse=True)
            own, other = _weighted(weight, needs[rows]), _weighted(other_weight, others[rows])
            each, both = np.minimum(own, other), None
            if worth is not None and other_worth is not None:
                of_both = (_weighted(weight, worth[rows]), _weighted(other_weight, other_worth[rows]))
                both = np.maximum(np.minimum(*of_both), weight + other_weight)
                both[np.isinf(np.maximum(*of_both))] = np.inf
                np.minimum(each, both, out=each)
            one_of = both if is_shared else None
            if not is_shared and many > 1:
                one_of = np.minimum(np.maximum(own, weight * many), np.maximum(other, other_weight * many))
                if both is not None:
                    np.minimum(one_of, np.maximum(both, min(weight, other_weight) * many), out=one_of)
            least = least_paths(steps.first.length, each, one_of)
            found[still] = least[place] > (units[still] @ (weight, other_weight)) * _ROUNDED_UP
            if found.all():
                break
        return found

    def _steps(self, count: int, total: int | None) -> "_Steps":
        key = (count, total)
        if key not in self._least:
            own, other, quicker = self._needs.first.times(count), self._needs.second.times(count), self._quicker[count]
            around = quicker.around()
            shared: tuple[Small | None, Small | None] = (None, None)
            if total is None:
                sum_s = np.maximum(own.gradients_s, other.gradients_s)  # one ring, as slow as the slower kind's
                shared = (own.shared_least_s(around, quicker, sum_s), other.shared_least_s(around, quicker, sum_s))
            self._least[key] = _Steps(own, other, own.least_s(around, total), other.least_s(around, total), *shared)
        return self._least[key]


@dataclass(frozen=True, eq=False)
class _Steps:
    """The least steps with the stages of two kinds, alone [R, A] and shared [R, B]; None where none may be shared."""

    first: StageTimes
    second: StageTimes
    first_s: Small
    second_s: Small
    first_shared_s: Small | None = None
    second_shared_s: Small | None = None


def _weighted(weight: float, units: Small) -> Small:
    """Return units times a weight; inf stays inf, whatever the weight."""
    return units * np.float32(weight) if weight > 0 else np.where(np.isinf(units), units, np.float32(0))
