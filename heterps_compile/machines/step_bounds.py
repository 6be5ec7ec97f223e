"""Bounds on steps of sets of machines, by the fewest units that the stages of a step need.

A step of M micro-batches that lasts at most T has only stages whose own bound is at most T (``stage_times.py``). For a
run of layers on a kind of unit that gives the fewest replicas, and the cheapest path through all runs gives the fewest
units of any plan. More than 32 micro-batches are only taken with a stage of at least M / 8 replicas. Each number M is
bounded by itself, and the bound of a set is the least of all::

    M = 8     T >= 1.3 s
    M = 32    T >= 1.1 s    so that T >= 1.1 s
    M = 128   T >= 1.4 s

Units of two kinds are added up by weights w near their speeds, as what tells the most is a weight at which the units of
both do about as much. A run of layers costs ``min(w k, w' k')`` of the fewest replicas of either kind, and as a stage
that both share no less than the same of replicas that count as shared: ``n / k + n' / k' >= 1`` of n and n' units.

Needs are computed for a kind of units once, when the first set that may still win has it, up to an effort; without them
the bound stays the one that costs nothing.

Left out: which sets there are (``sets.py``), which are bounded (``open_sets.py``); whole machines, which prices have.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil, floor, log

import numpy as np

from heterps_compile.cluster.devices import DeviceType
from heterps_compile.cost.problem import Bools, Floats, Ints
from heterps_compile.passes.placement.steps.step_segments import StepSegments, classes
from heterps_compile.schedule.load import ROUNDS_OF_REPLICAS, USUAL_MICRO_BATCHES, micro_batch_counts

from .goal import Goal
from .sets import Candidate, Kind
from .stage_times import LayerParts, Small, StageTimes, parts_of, shared_least_s, stage_times
from .step_times import StepTimes

_STEP = log(1.005)  # times are looked at on a grid of this ratio
_COARSE = 40  # steps of the grid, to find where to look
_WIDEST = 70  # of these from the lowest bound on
_SHORTEST_S = 1e-15  # of the grid; a model may have nothing to compute
_SURE = 1 - 1e-9  # of a bound, for what rounding makes of equal numbers
_HALVINGS = 5
"""Of the ratio between the steps that a bound of two kinds lies between: each halving is a look at all numbers of
micro-batches."""

_FURTHEST = 100.0  # nor below the part 1 / this of the longest is a bound looked for
_ROUNDED_UP = 1 + 1e-5  # what sums of weighted units are rounded by, at the most
_QUANTILES = (0.5, 0.1, 0.9)  # of the layers' work, whose ratios of speed are the weights
_ALIKE = 1.01
"""Sets whose times are in this ratio are looked at together, within the longest time: each look serves more sets, and
a bound is proven of up to 1 % shorter steps than it could be."""


def grid_below(time_s: float) -> int:
    """Return the number of the last time of the grid that is no longer."""
    return floor(log(max(time_s, _SHORTEST_S)) / _STEP)


def grid_above(time_s: float) -> int:
    """Return the number of the first time of the grid that is no shorter."""
    return ceil(log(max(time_s, _SHORTEST_S)) / _STEP)


def grid_s(numbers: Ints) -> Floats:
    """Compute times of the grid, in seconds."""
    return np.asarray(np.exp(numbers * _STEP), np.float64)


def least_paths(length: int, each: Small | Floats, one_of: Small | Floats | None = None) -> Floats:
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
    return np.asarray((least if one_of is None else least_with)[:, 0], np.float64)


def most_replicas(count: int) -> int:
    """Return how many replicas some stage has at least for a plan to have so many micro-batches."""
    return 1 if count <= USUAL_MICRO_BATCHES else -(-count // ROUNDS_OF_REPLICAS)


def usual_first(counts: Sequence[int]) -> list[int]:
    """Return numbers of micro-batches, those that are usual first."""
    return sorted(counts, key=lambda count: abs(log(count / USUAL_MICRO_BATCHES)))


def _fewest(times_s: Small, values: Floats, limits_s: Floats) -> Small:
    """Return [J, R], for ascending limits the least of ascending values [A] with times [R, A] within; inf for none.

    Times do not rise with the values.
    """
    place = np.searchsorted(limits_s.astype(np.float32), times_s)
    found, runs = np.full((len(limits_s) + 1, len(times_s)), np.inf, np.float32), np.arange(len(times_s))
    for number in range(len(values) - 1, -1, -1):
        found[place[:, number], runs] = values[number]
    return np.minimum.accumulate(found[:-1], axis=0)


def _rounded_up(units: int) -> int:
    """Return the next of 1, 2, 3, ..., 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...: no more than a quarter above."""
    step = 1 << max(0, units.bit_length() - 3)
    return -(-units // step) * step


def _totals(units: Floats) -> Ints:
    """Return [C], numbers of units, rounded up to few of them: what holds of more units holds of fewer."""
    return np.asarray([_rounded_up(int(each)) for each in np.ceil(units)], np.int64)


@dataclass(frozen=True, eq=False)
class StageNeeds:
    """What stages need on one kind of unit, for every number of micro-batches that a plan may have.

    Attributes:
        segments: The stages there may be.
        counts: Of micro-batches, the usual ones first.
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
            for count in self.counts:
                least = np.minimum(least, self._least_of(count, units[here], low_s[here], least, int(total)))
            found[here] = np.maximum(least, low_s[here])
        return found

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
        return least_paths(times.length, each, one_of)


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
    """What stages need on units of two kinds, whatever the plan."""

    def __init__(self, first: StageNeeds, second: StageNeeds, weights: Floats) -> None:
        """Begin with what stages need of each kind, with the same numbers of micro-batches, and weights [W, 2]."""
        self._needs, self._weights = (first, second), weights
        self._least_s: dict[int, tuple[Small, ...]] = {}
        self.looks = 0

    def are_out(self, units: Floats, times_s: Floats, *, is_shared: bool = False) -> Bools:
        """Return [C], whether units are too few for any plan whose step lasts no longer than some time.

        Times are looked at together: what units are too few for within the longest of them, they are within all.

        Args:
            units: [C, 2], of each kind.
            times_s: [C].
            is_shared: Of plans alone of which some stage has units of both kinds.
        """
        found, waiting = np.zeros(len(units), np.bool_), [np.arange(len(units))]
        while waiting:
            here = waiting.pop()
            if not len(here):
                continue
            longest_s = float(times_s[here].max())
            out = ~self._may_be(units[here], longest_s, is_shared=is_shared)
            found[here[out]] = True
            left = here[~out]
            left = left[times_s[left] * _ALIKE < longest_s]
            if len(left):
                middle_s = np.sqrt(times_s[left].min() * times_s[left].max())
                waiting += [left[times_s[left] <= middle_s], left[times_s[left] > middle_s]]
        return found

    def _may_be(self, units: Floats, time_s: float, *, is_shared: bool) -> Bools:
        """Return [C], whether units may be enough for a step of at most T, with any number of micro-batches."""
        found, there = np.zeros(len(units), np.bool_), units @ self._weights.T * _ROUNDED_UP
        first, second = self._needs
        for count in first.counts:
            if found.all():
                break
            quicker = first.parts(count).quicker(second.parts(count))
            if quicker.whole_s > time_s:
                continue
            self.looks += 1
            needed = self._needed(count, quicker, time_s, is_shared=is_shared)
            found |= np.all(needed <= there, axis=1) & (units.sum(axis=1) >= most_replicas(count))
        return found

    def _needed(self, count: int, quicker: LayerParts, time_s: float, *, is_shared: bool) -> Floats:
        """Find the weighted units [W] that steps within T need."""
        first, second = (needs.times(count) for needs in self._needs)
        worth, limit_s = count / first.rounds, np.array([time_s])
        values = (first.units, second.units, worth, worth)
        alone, other, shared, other_shared = (
            _fewest(least_s, units, limit_s)[0]
            for least_s, units in zip(self._known(count, quicker), values, strict=True)
        )
        is_none = np.isinf(shared) | np.isinf(other_shared)  # a kind that cannot have the stage at all
        each, both = [], []
        for weight, other_weight in self._weights.tolist():
            of_both = np.maximum(_weighted(weight, shared, other_weight, other_shared), weight + other_weight)
            both.append(np.where(is_none, np.inf, of_both))
            each.append(np.minimum(_weighted(weight, alone, other_weight, other), both[-1]))
        one_of = np.array(both) if is_shared else None
        return least_paths(first.length, np.array(each), one_of)

    def _known(self, count: int, quicker: LayerParts) -> tuple[Small, ...]:
        """Bound the steps with every stage [R, A], on one kind of unit or shared by both."""
        if count not in self._least_s:
            first, second = (needs.times(count) for needs in self._needs)
            own = (times.least_s(quicker.around()) for times in (first, second))
            self._least_s[count] = (*own, *shared_least_s(first, second, quicker))
        return self._least_s[count]


def _weighted(weight: float, units: Small, other_weight: float, others: Small) -> Floats:
    """Return [R], the less of so many units of either kind by their weights; inf stays inf, whatever the weight."""
    with np.errstate(invalid="ignore"):  # 0 * inf, which fmin leaves out
        found = np.fmin(weight * units.astype(np.float64), other_weight * others.astype(np.float64))
    return np.where(np.isnan(found), np.inf, found)


class StepBounds:
    """Bounds on steps of training one model on sets of some kinds of machines.

    Attributes:
        cells: Runs of layers times numbers of replicas that were looked at.
        looks: At the needs of two kinds, each for one time and one number of micro-batches.
    """

    def __init__(self, times: StepTimes, kinds: Sequence[Kind], goal: Goal, most_cells: int) -> None:
        """Begin; ``most_cells`` are the runs of layers times numbers of replicas that may be looked at in all."""
        self._times, self._most_cells = times, most_cells
        self._most_machines = goal.most_machines
        self._most_units = goal.most_machines * max(kind.units for kind in kinds)
        self._needs: dict[tuple[object, int, object], StageNeeds | None] = {}
        self._last_of: object = None
        self._last: dict[tuple[bool, ...], PairNeeds] = {}  # of the two kinds that were looked at last
        self.cells, self.looks = 0, 0

    def of_one(self, kind: Kind, machines: Ints, batch: int, low_s: Floats) -> Floats:
        """Return [C], bounds on steps on so many machines of a kind, none below ``low_s``, which are some."""
        found = low_s.copy()
        for alone in (True, False):
            here = np.flatnonzero((machines == 1) == alone)
            needs = self._of(kind, batch, kind.device, alone=alone) if len(here) else None
            if needs is not None:
                found[here] = needs.least_steps_s(machines[here].astype(np.float64) * kind.units, low_s[here])
        return found

    def are_out(
        self, kinds: tuple[Kind, Kind], machines: Ints, batch: int, times_s: Floats, *, is_shared: bool = False
    ) -> Bools:
        """Return [C], whether machines [C, 2] of two kinds have no plan whose step lasts no longer than some time.

        Units of one machine talk inside it: where a set has one machine of a kind, its stages are others.

        Args:
            kinds: The two.
            machines: Of each.
            batch: Samples in a step.
            times_s: [C].
            is_shared: Of plans alone of which some stage has units of both kinds.
        """
        found = np.zeros(len(machines), np.bool_)
        for here, units, pair in self._pairs(kinds, machines, batch):
            before = pair.looks
            found[here] = pair.are_out(units, times_s[here], is_shared=is_shared)
            self.looks += pair.looks - before
        return found

    def of_shared(self, candidate: Candidate, high_s: float) -> float:
        """Return a bound, up to ``high_s``, on steps on a set of two kinds of plans of which some stage has both."""
        kind, other = candidate.kinds
        machines = np.array([[count for _, count in candidate.machines.parts]])
        low_s, time_s = candidate.least_s, high_s
        for _ in range(_HALVINGS):
            if self.are_out((kind, other), machines, candidate.batch, np.array([time_s]), is_shared=True)[0]:
                low_s = max(low_s, time_s * _SURE)
            else:
                high_s = time_s
            if low_s >= high_s * _SURE:
                break
            time_s = float(np.sqrt(max(low_s, high_s / _FURTHEST) * high_s))
        return min(low_s, high_s)

    def runs(self, kind: Kind, batch: int) -> int:
        """Return how many runs of layers a bound of a set of two kinds looks at; 0 where it looks at none."""
        needs = self._of(kind, batch, _quickest_inside(kind.device), alone=False)
        return 0 if needs is None else needs.runs

    def _pairs(self, kinds: tuple[Kind, Kind], machines: Ints, batch: int) -> Iterator[tuple[Ints, Floats, PairNeeds]]:
        """Yield which machines [C, 2] have what needs, and their units, by how many are alone."""
        units = machines.astype(np.float64) * [kind.units for kind in kinds]
        for alone in product((False, True), repeat=2):
            here = np.flatnonzero(((machines == 1) == alone).all(axis=1))
            pair = self._pair(kinds, alone, batch) if len(here) else None
            if pair is not None:
                yield here, units[here], pair

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
            self._last[tuple(alone)] = PairNeeds(first, second, weights_of(*work_s))
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
        return StageNeeds(segments, tuple(usual_first(counts)))

    def _counts(self, batch: int) -> list[int]:
        """Return all numbers of micro-batches that a plan may have."""
        if not self._times.is_divisible(batch):
            return [1]
        return micro_batch_counts(batch, min(self._most_units, batch))


def _quickest_inside(device: DeviceType) -> DeviceType:
    """Return units that talk inside a machine no slower than over its card, which stages of another kind are behind."""
    return replace(device, inner_bytes_per_s=max(device.inner_bytes_per_s, device.network_bytes_per_s))
