"""Plans for walks to begin with: the cheapest ones at drawn times of a batch, where units that are short have a price.

A change moves one place of a plan, so that walks seldom come from one time of a batch to another, for which every
stage changes. Here all stages are chosen at once (``path_loops.py``), for a time near that of a good plan, or below the
longest one::

    draw a time of a batch, prices (a little dearer or cheaper), and a grid of positions, some of them around the
    bounds of the best plan
    three times:    the cheapest plan; units beyond their limits make a type dearer, spare ones cheaper;
                    the plan is the next one's context, the first one's a good plan, or none;
                    the next grid is finer where the plan's stages begin

The premium of a type is kept by time of a batch, for the draws that follow.

Left out: the walks that make the best of it (``annealing.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints
from heterps_compile.passes.placement.compiled_loops import compiled

from .annealing import Anneal
from .annealing_loops import PRICE, SLOWEST, Tables
from .archive import Archive, Found
from .path_loops import Terms, cheapest_paths, segment_talk
from .sampling import Draw

PAID = ("cost", "price", "throughput")
"""Objectives of which a path at one time of a batch knows the price."""

_LEAST_PRICE = 1e-12
_FEWEST_NODES = 12
_SHORTEST_S = 1e-30  # stands for the time of a batch without any work
_UNKNOWN = -1  # type of a context's layer: what is read from it, or by it, comes over the cheapest link


class _Drawn(NamedTuple):
    """A plan; the lowest rank is the best."""

    rank: tuple[float, float]
    types: Ints
    begins: Bools


@dataclass(frozen=True, slots=True)
class Pricing:
    """How plans are drawn.

    Attributes:
        share: Of the walks from drawn plans, those that begin with one of these.
        draws: Of which such a walk begins with the best.
        nodes: Of the grid, at most.
        most_work: Of one path: pairs of grid positions, times triples of types, times numbers of stages.
        rounds: Plans of a draw.
        known: Share of draws whose time of a batch is near that of a good plan.
        near: Of those, the deviation of its logarithm.
        below: Of the others, the mean of how far below the longest one its logarithm is.
        noise: Deviation of the logarithm of prices.
        around: Share of grids with positions around the bounds of the best plan.
        step: Of a type's premium, for units that exceed the limit by its own size, relative to its price.
        forget: Share of that, for units that are left.
        floor: Least that a price counts there, of the median one.
        width: Of a range of times with premiums of its own, in their logarithm.
    """

    share: float = 0.8
    draws: int = 4
    nodes: int = 48
    most_work: int = 8_000_000
    rounds: int = 3
    known: float = 0.7
    near: float = 0.1
    below: float = 0.3
    noise: float = 0.1
    around: float = 0.5
    step: float = 1.0
    forget: float = 0.1
    floor: float = 0.3
    width: float = 0.1


class PricedPaths:
    """Draws plans into an archive.

    Attributes:
        priced: Segments priced; one takes as long as a stage of the annealing, roughly.
    """

    def __init__(
        self, anneal: Anneal, archive: Archive, generator: np.random.Generator, how: Pricing = Pricing()
    ) -> None:
        self._anneal, self._table, self._tables, self._rules = anneal, anneal.table, anneal.tables, anneal.rules
        self._archive, self._generator, self._how = archive, generator, how
        self._rate = np.maximum(self._tables.rate, _LEAST_PRICE)
        self._premiums: dict[int, Floats] = {}
        self._depth = _depth(self._tables)
        states = len(self._rate) ** 3 * (self._rules.fewest + 1)
        self._nodes = max(_FEWEST_NODES, min(how.nodes, int(np.sqrt(2 * how.most_work / states))))
        self.priced = 0

    def drawing(self, otherwise: Draw) -> Draw:
        """Return what draws the plan that a walk begins with: one of these, or one that is drawn otherwise."""

        def draw() -> tuple[Ints, Bools]:
            found = self.draw() if self._generator.random() < self._how.share else None
            return otherwise() if found is None else (found.types, found.begins)

        return draw

    def draw(self) -> Found | None:
        """Draw plans and add the best to the archive; None where there is none at the times drawn."""
        drawn = [plan for _ in range(self._how.draws) for plan in self._at_a_time()]
        if not drawn:
            return None
        best = min(drawn, key=lambda plan: plan.rank)
        return self._archive.add(best.types[None], best.begins[None])[0]

    def _at_a_time(self) -> Iterator[_Drawn]:
        problem, how, generator = self._table.problem, self._how, self._generator
        batch_s, step = self._batch_s(), max(1, (len(self._table.positions) - 1) // self._nodes)
        is_near = generator.random() < how.around
        grid = self._grid(self._archive.best.begins if is_near else None, 1)
        place = round(np.log(max(batch_s, _SHORTEST_S) / max(self._rules.open_s, _SHORTEST_S)) / how.width)
        premium = self._premium(place)
        noise = np.exp(how.noise * generator.normal(size=problem.type_count))
        niches, unknown = self._archive.niches(8), np.full(problem.layer_count, _UNKNOWN)
        chosen = int(generator.integers(3 * len(niches)))
        context = niches[chosen % len(niches)].types if chosen < 2 * len(niches) else unknown
        for _ in range(how.rounds):
            found = self._plan(grid, context, Terms(batch_s, (self._rate + premium) * noise, self._rules.fewest))
            if found is None:
                if context is unknown:
                    break
                context = unknown
                continue
            types, begins, used = found
            value, excess = self._anneal.price(types, begins, batch_s)
            yield _Drawn((np.inf if excess > 0 else value, excess), types, begins)
            over = used / self._tables.limits - 1
            change = np.where(over > 0, np.minimum(over, 1.0) + 0.1, np.where(over < 0, -how.forget, 0.0))
            scale = np.maximum(self._rate + premium, how.floor * np.median(self._rate))
            premium, context = np.maximum(premium + how.step * change * scale, 0.0), types
            step = max(1, step // 2)
            grid = self._grid(begins, step)
        self._premiums[place] = premium

    def _plan(self, grid: Ints, context: Ints, terms: Terms) -> tuple[Ints, Bools, Floats] | None:
        table, last = self._table, len(grid) - 1
        talk = compiled(segment_talk)(self._tables, table.moved_bytes, table.talks, grid, context)
        paths = compiled(cheapest_paths)(self._tables, talk, grid, terms)
        self.priced += last * last // 2 * table.problem.type_count
        k = paths.cost.shape[-1] - 1
        at, type_, after = last, int(np.argmin(paths.cost[last, :, 0, k])), 0
        if not np.isfinite(paths.cost[last, type_, 0, k]):
            return None
        types, begins = np.zeros_like(context), np.zeros(len(context), np.bool_)
        used, end = np.zeros(len(terms.prices)), len(context)
        while at > 0:
            used[type_] += paths.units[at, type_, after, k]
            came, before, k_before = paths.came[at, type_, after, k].tolist()
            first = table.positions[grid[came]]
            types[first:end], begins[first] = type_, True
            at, type_, after, k, end = came, before, type_, k_before, first
        return types, begins, used

    def _premium(self, place: int) -> Floats:
        if not self._premiums:
            return np.zeros(len(self._rate))
        return self._premiums[min(self._premiums, key=lambda other: abs(other - place))]

    def _batch_s(self) -> float:
        how, open_s, generator, objective = self._how, self._rules.open_s, self._generator, self._rules.objective
        if objective == PRICE:
            return open_s  # no plan needs fewer units to be faster
        niches = [plan for plan in self._archive.niches(4) if plan.throughput > 0]
        if niches and (objective == SLOWEST or generator.random() < how.known):
            good_s = self._table.problem.batch / niches[int(generator.integers(len(niches)))].throughput
            off = how.near * generator.normal()
            return float(min(open_s, good_s * np.exp(-abs(off) if objective == SLOWEST else off)))
        return float(open_s * np.exp(-generator.exponential(how.below)))

    def _grid(self, around: Bools | None, step: int) -> Ints:
        """Return positions, some of them around where stages of a plan begin, so far from one to the next."""
        positions, nodes, generator = self._table.positions, self._nodes, self._generator
        last, near = len(positions) - 1, np.zeros(0, np.int64)
        if last <= nodes:
            return np.arange(last + 1)
        if around is not None:
            bounds = np.searchsorted(positions, np.flatnonzero(around))
            near = generator.permutation(np.ravel(bounds[:, None] + step * np.arange(-2, 3)))[:nodes]
        free = max(8, nodes - len(near))
        marks = (np.arange(1, free) + generator.random(free - 1) - 0.5) / free
        inner = np.concatenate([np.searchsorted(self._depth, marks), near])
        return np.unique(np.concatenate([[0], inner[(inner > 0) & (inner < last)], [last]])).astype(np.int64)


def _depth(tables: Tables) -> Floats:
    """Return how far along positions lie, from 0 to 1: by layers, by computation and by data, a third each."""
    shares = [np.linspace(0, 1, len(tables.layer))]
    for sums in (tables.compute_s, tables.data_s):
        whole = sums[-1]
        usable = np.isfinite(whole) & (whole > 0)
        shares.append((sums[:, usable] / whole[usable]).mean(axis=1) if np.any(usable) else shares[0])
    return np.asarray(np.mean(shares, axis=0), np.float64)
