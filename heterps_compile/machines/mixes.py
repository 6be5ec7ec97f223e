"""What no mix of machines of one region is better than, whatever their numbers: by what every stage is paid.

A step of M micro-batches that lasts at most T has only stages that keep T, each with u(T) units of a kind at the least,
or, where kinds share it, with what is worth v(T) of them (``stage_needs.py``). With p the price of a unit, a plan pays
at least, and a step between two times costs at least::

    C(T)  =  least over all cuts of  sum over stages of  least over kinds of  p min( u(T), v(T) )
    money of a step  >=  lower time * C(upper time)

which no number of machines, offers or kinds changes: what it rules out is ruled out for all sets of a region at once.
Times are cut into intervals, those that may be good enough into smaller ones. At first units of every kind compute
without waiting for anything, u = work / T; the kinds that the cheapest stages are of get their needs one after another.

Left out: whole machines, the limit on their number, and what stages wait for others (``stage_waits.py``).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.progress import check

from .goal import Goal
from .sets import Kind, longest_steps_s, values_of
from .stage_needs import StageNeeds, fewest_of, least_paths, most_replicas
from .stage_times import LayerParts, Small
from .step_bounds import StepBounds

_INTERVALS = 32  # at first
_PARTS = 4  # of an interval that is looked at more closely
_AT_ONCE = 16  # that are cut, those with the lowest values
_CLOSE = 1.01  # ends of an interval that is not cut
_ROUNDS = 80
_BELOW = 1 - 1e-5  # what sums of prices are rounded by, at the most


@dataclass(eq=False)
class _Times:
    """Steps of one number of micro-batches, by intervals of how long they last.

    Attributes:
        count: M.
        low_s, high_s: [J], of the intervals.
        worth: [J, R] by kind, what stages need of it; of those that were looked at.
        values: [J], what plans cannot be better than; None where that is to be found.
    """

    count: int
    low_s: Floats
    high_s: Floats
    worth: dict[int, Small] = field(default_factory=dict)
    values: Floats | None = None

    def take(self, rows: Ints) -> "_Times":
        """Return some of the intervals."""
        worth = {place: each[rows] for place, each in self.worth.items()}
        values = None if self.values is None else self.values[rows]
        return _Times(self.count, self.low_s[rows], self.high_s[rows], worth, values)

    def parts(self, rows: Ints) -> "_Times":
        """Return the parts of some of the intervals."""
        ends = np.geomspace(self.low_s[rows], self.high_s[rows], _PARTS + 1, axis=1)
        return _Times(self.count, ends[:, :-1].ravel(), ends[:, 1:].ravel())


class Mixes:
    """What mixes of some kinds cost with one batch."""

    def __init__(self, kinds: Sequence[Kind], bounds: StepBounds, goal: Goal, batch: int, best: float) -> None:
        """Begin; only values below ``best`` matter."""
        self._bounds, self._goal, self._batch, self._best = bounds, goal, batch, best
        self._place: dict[object, int] = {}
        for kind in kinds:
            self._place.setdefault(kind.hardware, len(self._place))
        first = {place: kind for kind in reversed(kinds) for place in [self._place[kind.hardware]]}
        self._kinds = [first[place] for place in range(len(first))]
        self._late = min(kind.late for kind in kinds)
        self._needs: dict[int, tuple[StageNeeds, ...]] = {}
        self._loose: set[int] = set()  # of which needs are not known, nor will be
        self._quicker: dict[int, LayerParts] = {}
        self._work_s: dict[int, Floats] = {}

    def least_values(self, regions: Sequence[Sequence[Kind]], least_s: float) -> list[float]:
        """Return what mixes of the kinds of every region cannot be better than, where no step is below ``least_s``."""
        longest_s = self._longest_s()
        one = self._any_needs()
        if one is None or not 0 < least_s < longest_s < float("inf"):
            return [0.0 if one is None or least_s < longest_s else float("inf")] * len(regions)
        self._borders, self._runs = one.segments.chain.borders, np.triu_indices(one.length)
        prices = [self._prices(region) for region in regions]
        ends = np.geomspace(least_s, longest_s, _INTERVALS + 1)
        of_counts = [_Times(count, ends[:-1], ends[1:]) for count in one.counts]
        of_counts = self._closer(of_counts, np.min(prices, axis=0))
        found = [float("inf")] * len(regions)
        is_open = list(range(len(regions)))
        for _ in range(_ROUNDS):
            for region in is_open:
                check()
                for each in of_counts:
                    each.values = None
                found[region] = self._least(of_counts, prices[region])
            is_open = [region for region in is_open if found[region] < self._best]
            if not is_open:
                break
            lowest = min(is_open, key=found.__getitem__)
            for each in of_counts:
                each.values = None
            if not self._look_closer(of_counts, prices[lowest]):
                break
        return found

    def _longest_s(self) -> float:
        """Return the step from which on no set, however cheap, is good enough."""
        return float(longest_steps_s(np.zeros(1), self._batch, self._goal, self._late, self._best)[0])

    def _values(self, prices: Floats, step_s: Floats) -> Floats:
        return values_of(prices, step_s, self._batch, self._goal, self._late)

    def _any_needs(self) -> StageNeeds | None:
        for place in range(len(self._kinds)):
            if self._know(place):
                return self._needs[place][0]
        return None

    def _know(self, place: int) -> bool:
        """Return whether the needs of a kind are known, which are computed unless they were."""
        if place not in self._needs and place not in self._loose:
            found = self._bounds.in_mixes(self._kinds[place], self._batch)
            lengths = {each.length for known in self._needs.values() for each in known}
            if found and (not lengths or {each.length for each in found} == lengths):
                self._needs[place] = found
            else:
                self._loose.add(place)
        return place in self._needs

    def _prices(self, kinds: Sequence[Kind]) -> Floats:
        """Return [H], the least price of a unit of every kind in a region; inf where it has none."""
        found = np.full(len(self._kinds), np.inf)
        for kind in kinds:
            place = self._place[kind.hardware]
            found[place] = min(found[place], kind.rental.price_per_hour / kind.units)
        return found

    def _closer(self, of_counts: list[_Times], prices: Floats) -> list[_Times]:
        """Return the intervals that may be good enough at some prices, small ones, with the needs that tell."""
        for _ in range(_ROUNDS):
            check()
            least = self._least(of_counts, prices)
            of_counts = [each.take(np.flatnonzero(each.values < self._best)) for each in of_counts]
            of_counts = [each for each in of_counts if len(each.low_s)]
            if least >= self._best:
                return []
            if not self._look_closer(of_counts, prices):
                values = np.concatenate([each.values for each in of_counts if each.values is not None])
                limit = np.sort(values)[min(_AT_ONCE, len(values)) - 1]
                cut = [self._cut(each, limit) for each in of_counts]
                if all(new is old for new, old in zip(cut, of_counts, strict=True)):
                    break
                of_counts = cut
        return of_counts

    def _cut(self, times: _Times, limit: float) -> _Times:
        """Return the intervals, wide ones with values up to a limit in parts; themselves where there is none."""
        is_cut = (times.values <= limit) & (times.high_s > times.low_s * _CLOSE)
        if not is_cut.any():
            return times
        kept, parts = times.take(np.flatnonzero(~is_cut)), times.parts(np.flatnonzero(is_cut))
        both = _Times(
            times.count, np.concatenate([kept.low_s, parts.low_s]), np.concatenate([kept.high_s, parts.high_s])
        )
        both.worth = {place: np.concatenate([each, self._worth(parts, place)]) for place, each in kept.worth.items()}
        return both

    def _least(self, of_counts: Sequence[_Times], prices: Floats) -> float:
        """Find the values of all intervals at some prices, where they are not known; return the least."""
        for each in of_counts:
            if each.values is None:
                each.values = self._values(self._costs(each, prices), each.low_s)
        return min((float(each.values.min(initial=np.inf)) for each in of_counts), default=float("inf"))

    def _costs(self, times: _Times, prices: Floats) -> Floats:
        """Return [J], the least that plans pay an hour whose steps end within an interval; inf where there is none."""
        each, many = self._stages(times, prices), most_replicas(times.count)
        one_of = None
        if many > 1:
            one_of = np.full_like(each, np.inf)
            for place in np.flatnonzero(np.isfinite(prices)).tolist():
                worth = np.maximum(self._worth(times, place), np.float32(many))
                np.minimum(one_of, worth * np.float32(prices[place]), out=one_of)
        length = len(self._borders) - 1
        return np.asarray(least_paths(length, each, one_of), np.float64) * _BELOW

    def _stages(self, times: _Times, prices: Floats) -> Small:
        """Return [J, R], the least that a stage pays an hour."""
        found = np.full((len(times.high_s), len(self._runs[0])), np.inf, np.float32)
        for place in np.flatnonzero(np.isfinite(prices)).tolist():
            np.minimum(found, self._worth(times, place) * np.float32(prices[place]), out=found)
        return found

    def _look_closer(self, of_counts: Sequence[_Times], prices: Floats) -> bool:
        """Look at the needs of kinds that the cheapest stages are of; return whether there were such kinds."""
        self._least(of_counts, prices)
        times = min(of_counts, key=lambda each: float(each.values.min(initial=np.inf)))
        row = int(np.argmin(times.values))
        inexact = [place for place in self._on_path(times, row, prices) if place not in self._needs]
        known = [place for place in inexact if self._know(place)]
        for each in of_counts if known else ():
            each.values = None
            for place in known:
                each.worth.pop(place, None)
        return bool(known)

    def _on_path(self, times: _Times, row: int, prices: Floats) -> list[int]:
        """Return the kinds that the stages of the cheapest plan of an interval are of."""
        one = times.take(np.array([row]))
        each, length = self._stages(one, prices)[0], len(self._borders) - 1
        least, following = np.full(length + 1, np.inf), np.zeros(length + 1, np.int64)
        least[length], end = 0.0, len(each)
        for position in range(length - 1, -1, -1):
            runs = slice(end - length + position, end)
            through = each[runs] + least[position + 1 :]
            following[position] = np.argmin(through)
            least[position], end = through[following[position]], runs.start
        found, position = [], 0
        while position < length:
            run = position * length - position * (position - 1) // 2 + int(following[position])
            places = np.flatnonzero(np.isfinite(prices)).tolist()
            found.append(min(places, key=lambda place: float(self._worth(one, place)[0, run]) * prices[place]))
            position += int(following[position]) + 1
        return list(dict.fromkeys(found))

    def _worth(self, times: _Times, place: int) -> Small:
        """Return [J, R], the units of a kind that a stage needs at the least, or is worth where kinds share it."""
        if place not in times.worth:
            if place in self._needs:
                times.worth[place] = self._needed(times, self._needs[place])
            else:
                times.worth[place] = self._computing(times, place)
        return times.worth[place]

    def _needed(self, times: _Times, of: Sequence[StageNeeds]) -> Small:
        count, around = times.count, self._quickest(times.count).around()
        found = np.full((len(times.high_s), len(self._runs[0])), np.inf, np.float32)
        for each in of:
            stages = each.times(count)
            np.minimum(found, fewest_of(stages.least_s(around), stages.units, times.high_s), out=found)
            shared_s = stages.shared_least_s(around, self._quickest(count))
            np.minimum(found, fewest_of(shared_s, count / stages.rounds, times.high_s), out=found)
        return found

    def _computing(self, times: _Times, place: int) -> Small:
        """Return the same where units only compute."""
        if place not in self._work_s:
            work_s = self._bounds.work_s(self._kinds[place], self._batch)
            usable = np.isfinite(work_s)
            sums, none = (
                np.concatenate([[0.0], np.cumsum(each)])[self._borders]
                for each in (np.where(usable, work_s, 0), ~usable)
            )
            first, end = self._runs[0], self._runs[1] + 1
            self._work_s[place] = np.where(none[end] > none[first], np.inf, sums[end] - sums[first])
        work_s = self._work_s[place]
        if not self._bounds.is_divisible(self._batch):
            return np.where(work_s <= times.high_s[:, None], np.float32(1), np.float32(np.inf))
        return np.maximum(work_s / times.high_s[:, None] * _BELOW, 1.0).astype(np.float32)

    def _quickest(self, count: int) -> LayerParts:
        """Return what a micro-batch takes on the quickest of all kinds, layer by layer."""
        if count not in self._quicker:
            units: defaultdict[object, int] = defaultdict(int)
            for place, kind in enumerate(self._kinds):
                units.setdefault(kind.unit, place)
            length = len(self._borders) - 1
            found = LayerParts(np.full(length, np.inf), np.full(length, np.inf))
            for place in units.values():
                parts = self._bounds.parts(self._kinds[place], self._batch, count)
                is_known = parts is not None and len(parts.forward_s) == length
                found = found.quicker(parts if is_known else LayerParts(np.zeros(length), np.zeros(length)))
            self._quicker[count] = found
        return self._quicker[count]
