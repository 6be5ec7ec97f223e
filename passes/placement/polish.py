"""The polish: a local search around a plan, at a fixed time of a batch.

At a fixed time a plan's price is a sum over its stages, so a move costs no more than the stages it touches. A
*window* is one, two or three neighbouring stages; a move puts one stage or two in its place::

    stages   | cpu       | gpu            | npu      |
    window   [----------------------------]
    moves    | any type                   | npu      |     merge, another type
             | any type    | any type     | npu      |     split, shift the boundary, swap types, drop a middle one

Every cut inside the window and every pair of types is tried. All windows are looked at in one round, and the best
moves that do not overlap are made together. Where no window gains, runs of a few layers are carved out of stages.
Equal prices are told apart by the work that is left, so that plans keep moving on the flat parts.

Limits on units and bounds on the number of stages are kept by a price on what exceeds them.

Left out: which time to polish at, and kicks (``climb.py``). The result is a local optimum, nothing is proven.
"""

from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints

from .paths import Deadline
from .spans import Spans

_WIDEST = 3  # stages in a window
_RUNS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # layers carved out of a stage
_SHIFTS = np.array([-16, -12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12, 16])  # of both ends of a stage
_WORK_WEIGHT = 1e-3  # price of work, against the price of whole replicas
_EXCESS_WEIGHT = 30.0  # price of a unit or a stage beyond its limit, in units of the dearest type
_STUCK = 1e6  # price of every position inside a stage that no number of replicas makes feasible, likewise
_LEAST_GAIN = 1e-9  # relative


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A plan as stages between positions.

    Attributes:
        bounds: [S + 1], indices of positions, ascending; the first is 0, the last P - 1.
        types: [S].
    """

    bounds: Ints
    types: Ints

    def replaced(self, first: int, end: int, inner: list[int], types: list[int]) -> "Cut":
        """Put stages with these inner bounds and types in the place of stages first .. end - 1."""
        return Cut(
            np.concatenate([self.bounds[: first + 1], np.array(inner, np.int64), self.bounds[end:]]),
            np.concatenate([self.types[:first], np.array(types, np.int64), self.types[end:]]),
        )


@dataclass(frozen=True, slots=True)
class _Move:
    """Put stages with these inner bounds and types in the place of stages first .. end - 1."""

    gain: float
    first: int
    end: int
    inner: list[int]
    types: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class _Priced:
    """Stages on all types: price and units [X, T], the least price [X]."""

    price: Floats
    units: Floats
    least: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Round:
    """What all moves of a round share.

    Attributes:
        cut: The plan.
        price: [S], of its stages.
        units: [S], of its stages.
        used: [T], units of all stages.
        heads: The stages from every bound s to each of the positions after it, up to _WIDEST bounds on; one block
            after the other.
        head_at: [S], where the block of bound s begins.
        tails: Likewise the stages that end at bound s, from each of the positions before it; ascending.
        tail_at: [S + 1], where the block of bound s ends.
    """

    cut: Cut
    price: Floats
    units: Floats
    used: Floats
    heads: _Priced
    head_at: Ints
    tails: _Priced
    tail_at: Ints


class Polish:
    """A local search on one problem; ``priced`` counts the stages it has priced."""

    def __init__(self, spans: Spans, deadline: Deadline | None = None) -> None:
        problem = spans.problem
        self.priced = 0
        self._spans = spans
        self._deadline = deadline or Deadline.after(None)
        self._type_count = problem.type_count
        self._rate = problem.price_per_hour
        self._limits = problem.max_units.astype(np.float64)
        self._fewest, self._most = problem.min_stages, problem.max_stages
        self._dearest = float(self._rate.max()) or 1.0

    def descend(self, cut: Cut, batch_s: float, *, most_rounds: int = 60) -> Cut:
        """Improve a plan until no move helps.

        Args:
            cut: Where to begin; it may be infeasible.
            batch_s: The time that a batch may take.
            most_rounds: Stop after so many rounds in any case.
        """
        total = self.total(cut, batch_s)
        for _ in range(most_rounds):
            if self._deadline.left_s() < 0:
                break
            moves = self._find_moves(cut, batch_s)
            for chosen in (_apart(moves), moves[:1]):
                better = _apply(cut, chosen)
                price = self.total(better, batch_s)
                if price < total * (1 - _LEAST_GAIN):
                    cut, total = better, price
                    break
            else:
                break
        self._rate = self._spans.problem.price_per_hour
        return cut

    def total(self, cut: Cut, batch_s: float) -> float:
        """Give the price of a plan, with the price on what exceeds limits in it."""
        price, units = self._price(cut.bounds[:-1], cut.bounds[1:], cut.types, batch_s)
        excess = np.maximum(np.bincount(cut.types, units, self._type_count) - self._limits, 0.0).sum()
        return float(price.sum() + self._excess_price * excess + self._count_price(len(cut.types)))

    # prices ------------------------------------------------------------------------------------------------

    @property
    def _excess_price(self) -> float:
        return _EXCESS_WEIGHT * self._dearest

    def _count_price(self, stages: int) -> float:
        """Price a number of stages that is out of bounds."""
        return self._excess_price * (max(self._fewest - stages, 0) + max(stages - self._most, 0))

    def _price(self, first: Ints, end: Ints, types: Ints, batch_s: float) -> tuple[Floats, Floats]:
        """Give price and units [N]; what no number of replicas makes feasible takes no units and a huge price."""
        self.priced += len(first)
        units, work = self._spans.price_stages(first, end, types, batch_s)
        stuck = np.isinf(units)
        units[stuck] = 0.0
        stuck_price = np.where(stuck, _STUCK * self._dearest * (end - first), 0.0)
        return self._rate[types] * units + _WORK_WEIGHT * work + stuck_price, units

    def _price_on_all_types(self, first: Ints, end: Ints, batch_s: float) -> _Priced:
        count = self._type_count
        types = np.tile(np.arange(count), len(first))
        price, units = self._price(np.repeat(first, count), np.repeat(end, count), types, batch_s)
        price = price.reshape(-1, count)
        return _Priced(price, units.reshape(-1, count), price.min(axis=1, initial=np.inf))

    # moves -------------------------------------------------------------------------------------------------

    def _find_moves(self, cut: Cut, batch_s: float) -> list[_Move]:
        """Give the moves that gain, the best first."""
        bounds, count = cut.bounds, len(cut.types)
        price, units = self._price(bounds[:-1], bounds[1:], cut.types, batch_s)
        after = bounds[np.minimum(np.arange(count) + _WIDEST, count)] - bounds[:-1]
        before = bounds - bounds[np.maximum(np.arange(count + 1) - _WIDEST, 0)]
        now = _Round(
            cut=cut,
            price=price,
            units=units,
            used=np.bincount(cut.types, units, self._type_count).astype(np.float64),
            heads=self._price_on_all_types(
                np.repeat(bounds[:-1], after), np.repeat(bounds[:-1], after) + 1 + _ranges(after), batch_s
            ),
            head_at=np.cumsum(after) - after,
            tails=self._price_on_all_types(
                np.repeat(bounds - before, before) + _ranges(before), np.repeat(bounds, before), batch_s
            ),
            tail_at=np.cumsum(before),
        )
        moves = self._find_pairs(now) or self._find_triples(now, batch_s)
        return sorted(moves, key=lambda move: -move.gain)

    def _find_pairs(self, now: _Round) -> list[_Move]:
        """Give, for every window, the best one or two stages in its place, where that gains."""
        bounds, count = now.cut.bounds, len(now.cut.types)
        first = np.concatenate([np.arange(count - width + 1) for width in range(1, min(_WIDEST, count) + 1)])
        width = np.repeat(np.arange(1, min(_WIDEST, count) + 1), count - np.arange(min(_WIDEST, count)))
        length = bounds[first + width] - bounds[first]
        window = np.repeat(np.arange(len(first)), length)  # of every choice: a cut at each position, no cut last
        place = _ranges(length)
        head = now.head_at[first][window] + place
        tail = now.tail_at[first + width][window] - length[window] + 1 + place
        is_single = place == length[window] - 1
        tail[is_single] = 0  # there is none; any will do
        if self._limits_matter(now):
            outside = (
                now.used
                - np.add.reduceat(
                    self._by_type(now)[first[:, None] + np.minimum(np.arange(_WIDEST), width[:, None] - 1)]
                    * (np.arange(_WIDEST) < width[:, None])[..., None],
                    [0],
                    axis=1,
                )[:, 0]
            )
            price, types = self._pairs_within_limits(
                now, np.maximum(self._limits - outside, 0.0)[window], head, tail, is_single
            )
            paid_excess = self._excess_price * (
                np.maximum(now.used - self._limits, 0.0).sum() - np.maximum(outside - self._limits, 0.0).sum(1)
            )
        else:
            price = now.heads.least[head] + np.where(is_single, 0.0, now.tails.least[tail])
            types, paid_excess = None, np.zeros(len(first))
        counts = np.array([self._count_price(count - _WIDEST + change) for change in range(_WIDEST + 2)])
        price += counts[_WIDEST - width[window] + np.where(is_single, 1, 2)]
        sums = np.append(0.0, np.cumsum(now.price))
        paid = sums[first + width] - sums[first] + paid_excess + self._count_price(count)
        starts = np.cumsum(length) - length
        gain = paid - np.minimum.reduceat(price, starts)
        moves = []
        for index in np.flatnonzero(gain > _LEAST_GAIN * paid):
            own = slice(starts[index], starts[index] + length[index])
            at = int(starts[index] + np.argmin(price[own]))
            pair = (
                divmod(int(types[at]), self._type_count)
                if types is not None
                else (int(np.argmin(now.heads.price[head[at]])), int(np.argmin(now.tails.price[tail[at]])))
            )
            low = int(bounds[first[index]])
            inner = [] if is_single[at] else [low + int(place[at]) + 1]
            moves.append(
                _Move(
                    float(gain[index]),
                    int(first[index]),
                    int(first[index] + width[index]),
                    inner,
                    [*pair][: len(inner) + 1],
                )
            )
        return moves

    def _limits_matter(self, now: _Round) -> bool:
        """Whether any move, or the plan itself, could exceed a limit on units."""
        most = now.used + now.heads.units.max(axis=0) + now.tails.units.max(axis=0, initial=0.0)
        return bool(np.any(most > self._limits))

    def _by_type(self, now: _Round) -> Floats:
        """Give [S, T], the units of every stage in the column of its type."""
        units = np.zeros((len(now.units), self._type_count))
        units[np.arange(len(now.units)), now.cut.types] = now.units
        return units

    def _pairs_within_limits(
        self, now: _Round, room: Floats, head: Ints, tail: Ints, is_single: Bools
    ) -> tuple[Floats, Ints]:
        """Give, for every choice, the best pair of types and its price with what exceeds the room [N, T] in it."""
        weight = self._excess_price
        head_price, head_units = now.heads.price[head], now.heads.units[head]
        tail_price, tail_units = (
            np.where(is_single[:, None], 0.0, part[tail]) for part in (now.tails.price, now.tails.units)
        )
        pairs = (head_price + weight * np.maximum(head_units - room, 0.0))[:, :, None] + (
            tail_price + weight * np.maximum(tail_units - room, 0.0)
        )[:, None, :]
        same = np.arange(self._type_count)
        pairs[:, same, same] = head_price + tail_price + weight * np.maximum(head_units + tail_units - room, 0.0)
        flat = pairs.reshape(len(pairs), -1)
        types = flat.argmin(axis=1)
        return flat[np.arange(len(flat)), types], types

    def _find_triples(self, now: _Round, batch_s: float) -> list[_Move]:
        """Give moves that put three stages in place of one or three; limits are left to whoever applies them."""
        bounds, count = now.cut.bounds, len(now.cut.types)
        windows = [(stage, stage + 1, *_carved(int(bounds[stage]), int(bounds[stage + 1]))) for stage in range(count)]
        windows += [(first, first + 3, *_shifted(bounds[first : first + 4])) for first in range(count - 2)]
        windows = [window for window in windows if len(window[2])]
        if not windows:
            return []
        lengths = np.array([len(begins) for _, _, begins, _ in windows])
        begins = np.concatenate([begins for _, _, begins, _ in windows])
        ends = np.concatenate([ends for _, _, _, ends in windows])
        first, end = (np.array([window[i] for window in windows]) for i in (0, 1))
        middle = self._price_on_all_types(begins, ends, batch_s)
        head = np.repeat(now.head_at[first] - bounds[first], lengths) + begins - 1
        tail = np.repeat(now.tail_at[end] - bounds[end], lengths) + ends
        price = now.heads.least[head] + middle.least + now.tails.least[tail]
        starts = np.cumsum(lengths) - lengths
        sums = np.append(0.0, np.cumsum(now.price))
        paid = sums[end] - sums[first]
        gain = paid - np.minimum.reduceat(price, starts)
        moves = []
        for index in np.flatnonzero(gain > _LEAST_GAIN * paid):
            at = int(starts[index] + np.argmin(price[starts[index] : starts[index] + lengths[index]]))
            rows = now.heads.price[head[at]], middle.price[at], now.tails.price[tail[at]]
            types = [int(row.argmin()) for row in rows]
            inner = [int(begins[at]), int(ends[at])]
            moves.append(_Move(float(gain[index]), int(first[index]), int(end[index]), inner, types))
        return moves


def _ranges(lengths: Ints) -> Ints:
    """Give 0 .. length - 1 for every length, one after the other."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _carved(low: int, high: int) -> tuple[Ints, Ints]:
    """Give begins and ends of runs strictly inside a stage."""
    runs = np.array([run for run in _RUNS if run <= high - low - 2], np.int64)
    places = high - low - 1 - runs
    begins = low + 1 + _ranges(places)
    return begins, begins + np.repeat(runs, places)


def _shifted(bounds: Ints) -> tuple[Ints, Ints]:
    """Give begins and ends of the middle one of three stages, both moved a little."""
    begins, ends = (grid.ravel() for grid in np.meshgrid(bounds[1] + _SHIFTS, bounds[2] + _SHIFTS))
    inside = (bounds[0] < begins) & (begins < ends) & (ends < bounds[3])
    return begins[inside], ends[inside]


def _apart(moves: list[_Move]) -> list[_Move]:
    """Give the moves, best first, that do not overlap a better one."""
    chosen: list[_Move] = []
    for move in moves:
        if all(move.end <= other.first or other.end <= move.first for other in chosen):
            chosen.append(move)
    return chosen


def _apply(cut: Cut, moves: list[_Move]) -> Cut:
    for move in sorted(moves, key=lambda move: -move.first):
        cut = cut.replaced(move.first, move.end, move.inner, move.types)
    return cut
