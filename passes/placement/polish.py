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

from heterps_compile.cost.problem import Floats, Ints

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
    gain: float
    first: int
    end: int
    inner: list[int]
    types: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """Stages that share their begin (or their end): price and units [X, T] by where they end (or begin)."""

    price: Floats
    units: Floats

    def part(self, chosen: slice) -> "_Ends":
        return _Ends(self.price[chosen], self.units[chosen])


def _units_by_type(types: Ints, units: Floats, count: int) -> Floats:
    return np.asarray(np.bincount(types, units, count), np.float64)


class Polish:
    """A local search on one problem; ``priced`` counts the stages it has priced."""

    def __init__(self, spans: Spans, deadline: Deadline) -> None:
        problem = spans.problem
        self.priced = 0
        self._spans = spans
        self._deadline = deadline
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
        return cut

    # prices ------------------------------------------------------------------------------------------------

    def _price(self, first: Ints, end: Ints, types: Ints, batch_s: float) -> _Ends:
        """Price stages [N]; what no number of replicas makes fast enough takes no units and a huge price."""
        self.priced += len(first)
        units, work = self._spans.price_stages(first, end, types, batch_s)
        stuck = np.isinf(units)
        units[stuck] = 0.0
        stuck_price = np.where(stuck, _STUCK * self._dearest * (end - first), 0.0)
        return _Ends(self._rate[types] * units + _WORK_WEIGHT * work + stuck_price, units)

    def _price_on_all_types(self, first: Ints, end: Ints, batch_s: float) -> _Ends:
        count = self._type_count
        types = np.tile(np.arange(count), len(first))
        flat = self._price(np.repeat(first, count), np.repeat(end, count), types, batch_s)
        return _Ends(flat.price.reshape(-1, count), flat.units.reshape(-1, count))

    def _excess(self, used: Floats, stages: Ints | int) -> Floats:
        """Price what exceeds the limits on units [..., T] and the bounds on the number of stages."""
        units = np.maximum(used - self._limits, 0.0).sum(axis=-1)
        beyond = np.maximum(self._fewest - stages, 0) + np.maximum(stages - self._most, 0)
        return np.asarray(_EXCESS_WEIGHT * self._dearest * (units + beyond))

    def total(self, cut: Cut, batch_s: float) -> float:
        """Give the price of a plan, with the price on what exceeds limits in it."""
        now = self._price(cut.bounds[:-1], cut.bounds[1:], cut.types, batch_s)
        used = _units_by_type(cut.types, now.units, self._type_count)
        return float(now.price.sum() + self._excess(used, len(cut.types)))

    # moves -------------------------------------------------------------------------------------------------

    def _find_moves(self, cut: Cut, batch_s: float) -> list[_Move]:
        """Give the moves that gain, the best first."""
        bounds, count = cut.bounds, len(cut.types)
        now = self._price(bounds[:-1], bounds[1:], cut.types, batch_s)
        used = _units_by_type(cut.types, now.units, self._type_count)
        heads, tails = self._heads(bounds, batch_s), self._tails(bounds, batch_s)
        moves = []
        for first in range(count):
            for end in range(first + 1, min(count, first + _WIDEST) + 1):
                length = int(bounds[end] - bounds[first])
                rest = used - _units_by_type(cut.types[first:end], now.units[first:end], self._type_count)
                paid = now.price[first:end].sum() + self._excess(used, count) - self._excess(rest, self._fewest)
                head, tail = heads[first].part(slice(length)), tails[end].part(slice(-length, None))
                price, cut_at, types = self._best_pair(head, tail, rest, count - (end - first))
                if price < paid * (1 - _LEAST_GAIN):
                    inner = [int(bounds[first]) + cut_at] if cut_at < length else []
                    moves.append(_Move(float(paid - price), first, end, inner, types))
        if not moves:
            moves = self._triples(cut, now, heads, tails, batch_s)
        return sorted(moves, key=lambda move: -move.gain)

    def _heads(self, bounds: Ints, batch_s: float) -> list[_Ends]:
        """Give for every stage s those from its begin to each of the next positions, up to _WIDEST stages on."""
        reach = bounds[np.minimum(np.arange(len(bounds) - 1) + _WIDEST, len(bounds) - 1)]
        ends = [np.arange(begin + 1, last + 1) for begin, last in zip(bounds[:-1], reach, strict=True)]
        lengths = np.array([len(part) for part in ends])
        flat = self._price_on_all_types(np.repeat(bounds[:-1], lengths), np.concatenate(ends), batch_s)
        return _unflatten(flat, lengths)

    def _tails(self, bounds: Ints, batch_s: float) -> list[_Ends]:
        """Give for every bound s the stages that end there, from each position up to _WIDEST stages back; ascending."""
        reach = bounds[np.maximum(np.arange(len(bounds)) - _WIDEST, 0)]
        begins = [np.arange(first, end) for first, end in zip(reach, bounds, strict=True)]
        lengths = np.array([len(part) for part in begins])
        flat = self._price_on_all_types(np.concatenate(begins), np.repeat(bounds, lengths), batch_s)
        return _unflatten(flat, lengths)

    def _best_pair(self, head: _Ends, tail: _Ends, rest: Floats, others: int) -> tuple[float, int, list[int]]:
        """Find the cut and the types of the cheapest one or two stages in a window of X positions.

        Args:
            head: [X, T], stages from the window's begin to position 1 .. X of the window.
            tail: [X, T], stages from position 0 .. X - 1 to its end.
            rest: [T], units of the stages outside.
            others: How many those are.

        Returns:
            Price with excess, where to cut (X for no cut), types.
        """
        weight = _EXCESS_WEIGHT * self._dearest
        room = self._limits - rest
        head_price = head.price + weight * np.maximum(head.units - np.maximum(room, 0.0), 0.0)
        single = head_price[-1] + self._excess(self._limits * 0, max(others + 1, 0))
        one = int(np.argmin(single))
        best, cut_at, types = float(single[one]), len(head_price), [one]
        if len(head_price) > 1:
            tail_price = tail.price[1:] + weight * np.maximum(tail.units[1:] - np.maximum(room, 0.0), 0.0)
            pairs = head_price[:-1, :, None] + tail_price[:, None, :]
            both = head.units[:-1] + tail.units[1:] - np.maximum(room, 0.0)
            same = head.price[:-1] + tail.price[1:] + weight * np.maximum(both, 0.0)
            diagonal = np.arange(self._type_count)
            pairs[:, diagonal, diagonal] = same
            where = int(np.argmin(pairs))
            price = float(pairs.ravel()[where] + self._excess(self._limits * 0, others + 2))
            if price < best:
                at, pair = divmod(where, self._type_count**2)
                best, cut_at, types = price, at + 1, list(divmod(pair, self._type_count))
        return best, cut_at, types

    def _triples(self, cut: Cut, now: _Ends, heads: list[_Ends], tails: list[_Ends], batch_s: float) -> list[_Move]:
        """Give moves that put three stages in place of one or three; limits are left to whoever applies them."""
        bounds, count = cut.bounds, len(cut.types)
        windows = [(stage, stage + 1, *_carved(int(bounds[stage]), int(bounds[stage + 1]))) for stage in range(count)]
        windows += [(first, first + 3, *_shifted(bounds[first : first + 4])) for first in range(count - 2)]
        lengths = np.array([len(begins) for _, _, begins, _ in windows])
        flat = self._price_on_all_types(
            np.concatenate([begins for _, _, begins, _ in windows]),
            np.concatenate([ends for _, _, _, ends in windows]),
            batch_s,
        )
        moves = []
        for (first, end, begins, ends), middle in zip(windows, _unflatten(flat, lengths), strict=True):
            if not len(begins):
                continue
            low, high = bounds[first], bounds[end]
            parts = heads[first].price[begins - low - 1], middle.price, tails[end].price[ends - high]
            price = np.sum([part.min(1) for part in parts], axis=0)
            at = int(np.argmin(price))
            gain = float(now.price[first:end].sum() - price[at])
            if gain > _LEAST_GAIN * now.price[first:end].sum():
                types = [int(part[at].argmin()) for part in parts]
                moves.append(_Move(gain, first, end, [int(begins[at]), int(ends[at])], types))
        return moves


def _carved(low: int, high: int) -> tuple[Ints, Ints]:
    """Give begins and ends of runs strictly inside a stage."""
    runs = [run for run in _RUNS if run <= high - low - 2]
    if not runs:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    begins = np.concatenate([np.arange(low + 1, high - run) for run in runs])
    return begins, begins + np.repeat(runs, [high - run - low - 1 for run in runs])


def _shifted(bounds: Ints) -> tuple[Ints, Ints]:
    """Give begins and ends of the middle one of three stages, both moved a little."""
    begins, ends = (grid.ravel() for grid in np.meshgrid(bounds[1] + _SHIFTS, bounds[2] + _SHIFTS))
    inside = (bounds[0] < begins) & (begins < ends) & (ends < bounds[3])
    return begins[inside], ends[inside]


def _unflatten(flat: _Ends, lengths: Ints) -> list[_Ends]:
    ends = np.cumsum(lengths)
    return [flat.part(slice(int(end - length), int(end))) for end, length in zip(ends, lengths, strict=True)]


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
