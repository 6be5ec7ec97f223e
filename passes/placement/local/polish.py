"""The polish: a local search around a plan, on fixed terms.

On fixed terms a plan's price is a sum over its stages, so a move costs no more than the stages it touches. A
*window* is one, two or three neighbouring stages; a move puts one stage or two in its place::

    stages   | cpu       | gpu            | npu      |
    window   [----------------------------]
    moves    | any type                   | npu      |     merge, another type
             | any type    | any type     | npu      |     split, shift the boundary, swap types, drop a middle one

Every stages inside the window and every pair of types is tried. All windows with something new in them are looked at in
one round, and the best moves that do not overlap are made together. Where no window gains, runs of a few layers are
carved out of stages, and both ends of a stage moved.

Left out: the terms (``stage_prices.py``), which of them to polish on, and kicks (``climb.py``). The result is a local
optimum, nothing is proven.
"""

from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints
from heterps_compile.passes.deadline import Deadline

from .stage_list import Move, StageList, apart, apply
from .stage_prices import Priced, StagePrices, Terms

_WIDEST = 3  # stages in a window
_RUNS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # layers carved out of a stage
_SHIFTS = np.array([-16, -12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12, 16])  # of both ends of a stage
_LEAST_GAIN = 1e-9  # relative
_ALONE = 4  # moves tried one by one where they do not help together


@dataclass(frozen=True, slots=True, eq=False)
class _Round:
    """What all moves of a round share; only windows that begin or end at a marked bound are looked at.

    Attributes:
        stages: The plan.
        price: [S], of its stages.
        units: [S], of its stages.
        used: [T], units of all stages.
        priced: First *heads*, the stages from every marked bound s to each of the positions after it, up to _WIDEST
            bounds on; one block after the other. Then *tails*, the stages that end at bound s, from each of the
            positions before it; ascending.
        head_at: [S], where the block of heads of bound s begins.
        tail_at: [S + 1], where the block of tails of bound s ends.
    """

    stages: StageList
    price: Floats
    units: Floats
    used: Floats
    priced: Priced
    head_at: Ints
    tail_at: Ints


class Polish:
    """A local search on one problem."""

    def __init__(self, prices: StagePrices, deadline: Deadline | None = None) -> None:
        self._prices = prices
        self._deadline = deadline or Deadline.after(None)
        self._limits = prices.limits

    def descend(self, stages: StageList, terms: Terms, *, most_rounds: int = 60) -> StageList:
        """Improve a plan until no move helps.

        Args:
            stages: Where to begin; it may be infeasible.
            terms: What stages are priced on.
            most_rounds: Stop after so many rounds in any case.
        """
        total = self._prices.total(stages, terms)
        new = np.ones((2, len(stages.types)), np.bool_)  # stages that no pair, and that no triple, has been tried on
        for _ in range(most_rounds):
            if self._deadline.left_s() < 0:
                break
            moves, is_triple = self._find_pairs(stages, terms, new[0]), False
            if not moves:
                new[0] = False
                moves, is_triple = self._find_triples(stages, terms, new[1]), True
            found = self._make(stages, terms, total, moves)
            if found is None:
                break
            stages, total, came_from, together = found
            before = new.copy() if together else np.ones_like(new)
            before[0] &= not together
            before[1] &= not (together and is_triple)
            new = np.where(came_from < 0, True, before[:, came_from])
        return stages

    def _make(
        self, stages: StageList, terms: Terms, total: float, moves: list[Move]
    ) -> tuple[StageList, float, Ints, bool] | None:
        """Make moves that gain, all that do not overlap or else one; None where none gains.

        Returns:
            The plan, its price, which stage each stage was, and whether the moves were made together.
        """
        if not moves:
            return None
        moves = sorted(moves, key=lambda move: -move.gain)
        together = apart(moves)
        for chosen in (together, *([move] for move in moves[:_ALONE])):
            better, came_from = apply(stages, chosen)
            price = self._prices.total(better, terms)
            if price < total * (1 - _LEAST_GAIN):
                return better, price, came_from, chosen is together
        return None

    def _begin_round(self, stages: StageList, terms: Terms, begins: Bools, ends: Bools) -> _Round:
        """Price what the windows that begin and end at some bounds [S + 1] need."""
        bounds, count, prices = stages.bounds, len(stages.types), self._prices
        price, units = prices.of_stages(bounds[:-1], bounds[1:], stages.types, terms)
        after = (bounds[np.minimum(np.arange(count) + _WIDEST, count)] - bounds[:-1]) * begins[:-1]
        before = (bounds - bounds[np.maximum(np.arange(count + 1) - _WIDEST, 0)]) * ends
        heads, tails = np.repeat(bounds[:-1], after), np.repeat(bounds - before, before)
        priced = prices.on_all_types(
            np.concatenate([heads, tails + _ranges(before)]),
            np.concatenate([heads + 1 + _ranges(after), np.repeat(bounds, before)]),
            terms,
        )
        return _Round(
            stages=stages,
            price=price,
            units=units,
            used=np.bincount(stages.types, units, len(self._limits)).astype(np.float64),
            priced=priced,
            head_at=np.cumsum(after) - after,
            tail_at=len(heads) + np.cumsum(before),
        )

    def _find_pairs(self, stages: StageList, terms: Terms, new: Bools) -> list[Move]:
        """Give, for every window with a new stage, the best one or two stages in its place, where that gains."""
        bounds, count = stages.bounds, len(stages.types)
        first = np.concatenate([np.arange(count - width + 1) for width in range(1, min(_WIDEST, count) + 1)])
        width = np.repeat(np.arange(1, min(_WIDEST, count) + 1), count - np.arange(min(_WIDEST, count)))
        news = np.append(0, np.cumsum(new))
        looked_at = news[first + width] > news[first]
        first, width = first[looked_at], width[looked_at]
        if not len(first):
            return []
        now = self._begin_round(stages, terms, _marked(count, first), _marked(count, first + width))
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
            paid_excess = self._prices.excess_price * (
                np.maximum(now.used - self._limits, 0.0).sum() - np.maximum(outside - self._limits, 0.0).sum(1)
            )
        else:
            price = now.priced.least[head] + np.where(is_single, 0.0, now.priced.least[tail])
            types, paid_excess = None, np.zeros(len(first))
        counts = np.array([self._prices.of_count(count - _WIDEST + change) for change in range(_WIDEST + 2)])
        price += counts[_WIDEST - width[window] + np.where(is_single, 1, 2)]
        sums = np.append(0.0, np.cumsum(now.price))
        paid = sums[first + width] - sums[first] + paid_excess + self._prices.of_count(count)
        starts = np.cumsum(length) - length
        gain = paid - np.minimum.reduceat(price, starts)
        moves = []
        for index in np.flatnonzero(gain > _LEAST_GAIN * paid):
            own = slice(starts[index], starts[index] + length[index])
            at = int(starts[index] + np.argmin(price[own]))
            pair = (
                divmod(int(types[at]), len(self._limits))
                if types is not None
                else (int(np.argmin(now.priced.price[head[at]])), int(np.argmin(now.priced.price[tail[at]])))
            )
            low = int(bounds[first[index]])
            inner = [] if is_single[at] else [low + int(place[at]) + 1]
            moves.append(
                Move(
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
        most = now.used + 2 * now.priced.units.max(axis=0, initial=0.0)
        return bool(np.any(most > self._limits))

    def _by_type(self, now: _Round) -> Floats:
        """Return [S, T], the units of every stage in the column of its type."""
        units = np.zeros((len(now.units), len(self._limits)))
        units[np.arange(len(now.units)), now.stages.types] = now.units
        return units

    def _pairs_within_limits(
        self, now: _Round, room: Floats, head: Ints, tail: Ints, is_single: Bools
    ) -> tuple[Floats, Ints]:
        """Give, for every choice, the best pair of types and its price with what exceeds the room [N, T] in it."""
        weight = self._prices.excess_price
        head_price, head_units = now.priced.price[head], now.priced.units[head]
        tail_price, tail_units = (
            np.where(is_single[:, None], 0.0, part[tail]) for part in (now.priced.price, now.priced.units)
        )
        pairs = (head_price + weight * np.maximum(head_units - room, 0.0))[:, :, None] + (
            tail_price + weight * np.maximum(tail_units - room, 0.0)
        )[:, None, :]
        same = np.arange(len(self._limits))
        pairs[:, same, same] = head_price + tail_price + weight * np.maximum(head_units + tail_units - room, 0.0)
        flat = pairs.reshape(len(pairs), -1)
        types = flat.argmin(axis=1)
        return flat[np.arange(len(flat)), types], types

    def _find_triples(self, stages: StageList, terms: Terms, new: Bools) -> list[Move]:
        """Return moves that put three stages in place of one or three; limits are left to whoever applies them."""
        bounds, count = stages.bounds, len(stages.types)
        windows = [(s, s + 1, *_carved(int(bounds[s]), int(bounds[s + 1]))) for s in range(count) if new[s]]
        windows += [(s, s + 3, *_shifted(bounds[s : s + 4])) for s in range(count - 2) if np.any(new[s : s + 3])]
        windows = [window for window in windows if len(window[2])]
        if not windows:
            return []
        lengths = np.array([len(begins) for _, _, begins, _ in windows])
        begins = np.concatenate([begins for _, _, begins, _ in windows])
        ends = np.concatenate([ends for _, _, _, ends in windows])
        first, end = (np.array([window[i] for window in windows]) for i in (0, 1))
        now = self._begin_round(stages, terms, _marked(count, first), _marked(count, end))
        middle = self._prices.on_all_types(begins, ends, terms)
        head = np.repeat(now.head_at[first] - bounds[first], lengths) + begins - 1
        tail = np.repeat(now.tail_at[end] - bounds[end], lengths) + ends
        price = now.priced.least[head] + middle.least + now.priced.least[tail]
        starts = np.cumsum(lengths) - lengths
        sums = np.append(0.0, np.cumsum(now.price))
        paid = sums[end] - sums[first]
        gain = paid - np.minimum.reduceat(price, starts)
        moves = []
        for index in np.flatnonzero(gain > _LEAST_GAIN * paid):
            at = int(starts[index] + np.argmin(price[starts[index] : starts[index] + lengths[index]]))
            rows = now.priced.price[head[at]], middle.price[at], now.priced.price[tail[at]]
            types = [int(row.argmin()) for row in rows]
            inner = [int(begins[at]), int(ends[at])]
            moves.append(Move(float(gain[index]), int(first[index]), int(end[index]), inner, types))
        return moves


def _marked(count: int, bounds: Ints) -> Bools:
    mask = np.zeros(count + 1, np.bool_)
    mask[bounds] = True
    return mask


def _ranges(lengths: Ints) -> Ints:
    """Return 0 .. length - 1 for every length, one after the other."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _carved(low: int, high: int) -> tuple[Ints, Ints]:
    """Return begins and ends of runs strictly inside a stage."""
    runs = np.array([run for run in _RUNS if run <= high - low - 2], np.int64)
    places = high - low - 1 - runs
    begins = low + 1 + _ranges(places)
    return begins, begins + np.repeat(runs, places)


def _shifted(bounds: Ints) -> tuple[Ints, Ints]:
    """Return begins and ends of the middle one of three stages, both moved a little."""
    begins, ends = (grid.ravel() for grid in np.meshgrid(bounds[1] + _SHIFTS, bounds[2] + _SHIFTS))
    inside = (bounds[0] < begins) & (begins < ends) & (ends < bounds[3])
    return begins[inside], ends[inside]
