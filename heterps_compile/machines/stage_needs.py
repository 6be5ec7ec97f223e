"""The fewest units that a stage needs for a step to last no longer than some time, and bounds on steps that follow.

A step of M micro-batches that lasts at most T has only stages whose own bound is at most T
(``passes/placement/steps/step_segments.py``). For a run of layers on a kind of unit that gives the fewest replicas
``u(T)``, each with n of the micro-batches. Where replicas of two kinds share a stage, a unit that takes n is worth
n / M of it, and the stage needs at least ``v(T) = M / n(T)`` units of one kind or as much of the other. A set of K
units of kind 1 and K' of kind 2 has no step of T where for some weights w, w'::

    least over all cuts of  sum over stages of  min( w u, w' u',  max( min(w v, w' v'), w + w' ) )   >   w K + w' K'

The weights that tell the most are near the speeds of the units. All M count at once, each stage by the one that suits
it best, and what a micro-batch takes in the other stages is what the quickest kind of all takes for each layer, so that
needs are computed kind by kind and hold in every pair.

In a stage that two kinds share, all replicas are one ring over the slower network, of at least two, and of no fewer
than it takes the quickest kind to work off the micro-batches: with w the time of one there and S of the gradients::

    T >= a + S (1 - 1 / k),  k >= 2,  k >= M w / (T - before)          a: all but the sum, as of a stage of one kind

Left out: delays between stages; whole machines, which prices have (``sets.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.problem import Bools, Floats, Ints
from heterps_compile.passes.placement.steps.step_segments import (
    Around,
    StepSegments,
    busy_at_least_s,
    class_times,
    classes,
)

_STEP = log(1.005)  # times are looked at on a grid of this ratio
_SHORTEST_S = 1e-15  # of the grid; a model may have nothing to compute
_SURE = 1 - 1e-9  # of a bound, for what rounding makes of equal numbers
_QUANTILES = (0.5, 0.1, 0.9)  # of the layers' work, whose ratios of speed are the weights
_HALVINGS = 12
_AT_ONCE = 64  # times


def grid_below(time_s: float) -> int:
    """Return the number of the last time of the grid that is no longer."""
    return floor(log(max(time_s, _SHORTEST_S)) / _STEP)


def grid_above(time_s: float) -> int:
    """Return the number of the first time of the grid that is no shorter."""
    return ceil(log(max(time_s, _SHORTEST_S)) / _STEP)


def grid_s(number: int) -> float:
    """Return a time of the grid."""
    return float(np.exp(number * _STEP))


@dataclass(frozen=True, eq=False)
class LayerParts:
    """What one of M equal parts of a batch takes in every block of the chain, at the least; [n] each.

    Attributes:
        forward_s, backward_s: Where the gradients are made anew or added to, whichever is quicker; inf where none may.
    """

    forward_s: Floats
    backward_s: Floats

    def quicker(self, other: "LayerParts") -> "LayerParts":
        """Return the least of two kinds."""
        return LayerParts(
            np.minimum(self.forward_s, other.forward_s), np.minimum(self.backward_s, other.backward_s)
        )  # fmt: skip

    def around(self) -> Around:
        """Return what the stages before and behind a position take at the least."""
        forward_s, backward_s = _sums(self.forward_s), _sums(self.backward_s)
        both_s = forward_s + backward_s
        return Around(forward_s, backward_s, both_s[-1] - both_s)


def _sums(each: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(each), each, 0.0))])


def parts_of(segments: StepSegments, count: int) -> LayerParts:
    """Return what parts of a batch take on the one type of a problem."""
    part, chain = segments.of.parts(count), segments.chain
    is_usable = chain.usable_blocks()[0]
    times = (part.forward_s, np.minimum(part.backward_s, part.accumulate_s))
    forward_s, backward_s = (np.where(is_usable, np.diff(chain.prefix_sums(each)[0]), np.inf) for each in times)
    return LayerParts(forward_s, backward_s)


@dataclass(frozen=True, eq=False)
class StageNeeds:
    """What all runs of blocks [R] of a chain need on one kind of unit, sorted by first block and end.

    Attributes:
        length: Blocks of the chain.
        units: [A], numbers of replicas, ascending.
        units_s: [R, A], the least step with a stage that has no more replicas than that.
        worth: [B], parts M / n, ascending.
        worth_s: [R, B], the least step with a stage that is shared, where each of its units does at most that.
        known: Rows of needs by the time of the grid.
    """

    length: int
    units: Floats
    units_s: NDArray[np.float32]
    worth: Floats
    worth_s: NDArray[np.float32]
    known: dict[int, tuple[Floats, Floats]] = field(default_factory=dict, repr=False)

    def at(self, number: int) -> tuple[Floats, Floats]:
        """Return u and v, [R] each, at a time of the grid; inf where no number of units is enough."""
        if number not in self.known:
            time_s = grid_s(number)
            units, worth = (
                np.append(values, np.inf)[(times_s > time_s).sum(axis=1)]
                for values, times_s in ((self.units, self.units_s), (self.worth, self.worth_s))
            )
            self.known[number] = units, worth
        return self.known[number]

    def least_steps_s(self, units: Sequence[int], low_s: Sequence[float]) -> list[float]:
        """Return bounds on the steps of so many units of this kind alone, none below ``low_s``; ascending units."""
        found = []
        for count, least_s in zip(units, low_s, strict=True):
            low, high = grid_below(least_s), grid_above(least_s * 1e6)
            if not self._is_short(high, count):
                found.append(float("inf"))
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if self._is_short(middle, count) else (middle, high)
            found.append(max(least_s, grid_s(low) * _SURE if not self._is_short(low, count) else least_s))
        return found

    def _is_short(self, number: int, units: int) -> bool:
        """Return whether so many units may be enough for steps of a time of the grid."""
        return bool(least_paths(self.length, self.at(number)[0][None, :])[0] <= units)


def least_paths(length: int, each: Floats, one_of: Floats | None = None) -> Floats:
    """Return [C], the least sum over a path of runs [C, R] from the first block to the end.

    With ``one_of`` [C, R], of paths alone of which at least one run costs what that says.
    """
    least, least_with = np.zeros((len(each), length + 1)), np.full((len(each), length + 1), np.inf)
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


def needs_of(segments: StepSegments, counts: Sequence[int], quickest: Sequence[LayerParts]) -> StageNeeds:
    """Return what stages need on the one type of a problem.

    Args:
        segments: Of the problem.
        counts: All numbers of micro-batches that a plan may have.
        quickest: For each of them what the quickest of all kinds takes.
    """
    length = segments.chain.length
    row: Ints = segments.first * length - segments.first * (segments.first - 1) // 2 + segments.end - segments.first - 1
    units = np.unique(np.concatenate([classes(segments.of.problem, count)[0] for count in counts]))
    rounds = [np.unique(-(-count // np.arange(1, count + 1))) for count in counts]
    worth = np.unique(np.concatenate([count / each for count, each in zip(counts, rounds, strict=True)]))
    runs = length * (length + 1) // 2
    units_s, worth_s = (np.full((runs, len(values)), np.inf, np.float32) for values in (units, worth))
    gradients_s = _gradients_s(segments)
    for count, of_count, parts in zip(counts, rounds, quickest, strict=True):
        around = parts.around()
        times = class_times(segments, count, around)
        column: Ints = np.searchsorted(units, times.fewest[0])
        _lower(units_s, row, column, times.least_s)
        column = np.searchsorted(worth, count / of_count)
        _lower(worth_s, row, column, _shared_s(segments, parts, count, of_count.astype(np.float64), gradients_s))
    return StageNeeds(
        length, units, np.minimum.accumulate(units_s, axis=1), worth, np.minimum.accumulate(worth_s, axis=1)
    )


def _lower(into: NDArray[np.float32], row: Ints, column: Ints, times_s: Floats) -> None:
    """Lower some cells to times, rounded down."""
    cells = np.ix_(row, column)
    into[cells] = np.minimum(into[cells], times_s.astype(np.float32) * np.float32(1 - 2e-7))


def _gradients_s(segments: StepSegments) -> Floats:
    """Return [N], what ever more replicas on this network take to sum the gradients of a run, without latencies."""
    sums = segments.chain.prefix_sums(segments.of.problem.sync_s)[0]
    return np.asarray(np.maximum(sums[segments.end] - sums[segments.first], 0.0), np.float64)


def _shared_s(segments: StepSegments, quickest: LayerParts, count: int, rounds: Floats, gradients_s: Floats) -> Floats:
    """Return [N, B], the least step with a run that is shared, in which each of its units here takes so many rounds."""
    own, around = parts_of(segments, count), quickest.around()
    first, end = segments.first, segments.end

    def between(each: Floats) -> Floats:
        sums = _sums(each)
        return np.asarray((sums[end] - sums[first])[:, None], np.float64)

    forward_s, backward_s = between(own.forward_s), between(own.backward_s)
    before_s, end_s = around.before_s[first][:, None], around.before_backward_s[first][:, None]
    rest_s = around.after_s[end][:, None]
    alone_s = before_s + busy_at_least_s(rounds, forward_s, backward_s, forward_s + backward_s, rest_s)
    sum_s, works_s = gradients_s[:, None], count * (between(quickest.forward_s) + between(quickest.backward_s))
    ratio = np.divide(sum_s, works_s, out=np.zeros_like(sum_s), where=works_s > 0)  # all at once where nothing is done
    of_many_s = np.where(works_s > 0, (alone_s + sum_s + ratio * before_s) / (1 + ratio), 0.0)
    return np.asarray(np.maximum(np.maximum(alone_s + end_s, alone_s + sum_s / 2), of_many_s), np.float64)


@dataclass(frozen=True, eq=False)
class PairNeeds:
    """What stages need on two kinds of units.

    Attributes:
        first, second: Of each kind.
        weights: [W, 2], of one unit of each.
    """

    first: StageNeeds
    second: StageNeeds
    weights: Floats

    @property
    def runs(self) -> int:
        """Return how many runs of blocks there are."""
        return len(self.first.units_s)

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
        for start in range(0, len(matters), _AT_ONCE):
            here = matters[start : start + _AT_ONCE]
            closer_s = self._between(units[here], low_s[here], high_s[here], shared=shared)
            found[here] = np.maximum(found[here], closer_s)
        return found

    def least_together_s(self, units: Floats, low_s: Floats, high_s: Floats) -> tuple[Floats, int]:
        """Return [C], bounds that hold of many numbers at once, and how many numbers were looked at.

        What is too little with the most units of both kinds is so with fewer: of the numbers that no other exceeds
        it is asked whether the longest time that matters to those below is too short. Arguments are those of
        :meth:`least_steps_s`.
        """
        at_least = np.all(units[:, None, :] >= units[None, :, :], axis=2)
        corners = np.flatnonzero((at_least & ~at_least.T).sum(axis=0) == 0)
        if len(corners) * 2 > len(units):
            return low_s, 0
        longest_s = np.where(at_least[corners], high_s, 0.0).max(axis=1)
        numbers = np.array([grid_above(each) for each in longest_s.tolist()])
        is_out = self._are_out(units[corners], numbers, shared=False)
        covered_s = np.where(at_least[corners] & is_out[:, None], np.exp(numbers * _STEP)[:, None] * _SURE, 0.0)
        return np.maximum(low_s, covered_s.max(axis=0, initial=0.0)), len(corners)

    def _between(self, units: Floats, low_s: Floats, high_s: Floats, *, shared: bool) -> Floats:
        low = np.array([grid_below(time_s) for time_s in low_s.tolist()])
        high = np.array([grid_above(time_s) for time_s in high_s.tolist()])
        is_out = self._are_out(units, high, shared=shared)  # no step is as short as what would matter
        low = np.where(is_out, high, low)
        proven = is_out.copy()
        for _ in range(_HALVINGS):
            still = np.flatnonzero(high - low > 1)
            if not len(still):
                break
            middle = (low[still] + high[still]) // 2
            out = self._are_out(units[still], middle, shared=shared)
            low[still] = np.where(out, middle, low[still])
            high[still] = np.where(out, high[still], middle)
            proven[still] |= out
        return np.where(proven, np.exp(low * _STEP) * _SURE, low_s)

    def _are_out(self, units: Floats, numbers: Ints, *, shared: bool) -> Bools:
        """Return [C], whether so many units are too few for steps of times of the grid."""
        found, still = np.zeros(len(units), np.bool_), np.arange(len(units))
        rows = [(*self.first.at(number), *self.second.at(number)) for number in numbers.tolist()]
        own, worth, other, other_worth = (np.array([row[each] for row in rows], np.float64) for each in range(4))
        for weight, other_weight in self.weights:
            both = np.maximum(
                np.minimum(_weighted(weight, worth), _weighted(other_weight, other_worth)), weight + other_weight
            )
            both[np.isinf(worth) | np.isinf(other_worth)] = np.inf
            each = np.minimum(np.minimum(_weighted(weight, own), _weighted(other_weight, other)), both)
            least = least_paths(self.first.length, each, both if shared else None)
            is_out: Bools = least > (units[still] @ (weight, other_weight)) * (1 + 1e-9)
            found[still[is_out]] = True
            still = still[~is_out]
            own, worth, other, other_worth = (rest[~is_out] for rest in (own, worth, other, other_worth))
            if not len(still):
                break
        return found


def _weighted(weight: float, units: Floats) -> Floats:
    """Return units times a weight; inf stays inf, whatever the weight."""
    return units * weight if weight > 0 else np.where(np.isinf(units), np.inf, 0.0)
