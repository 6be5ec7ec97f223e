"""The climb: the polish over and over, on a ladder of terms and from kicked plans.

The polish works on fixed terms, above all a fixed time of a batch, and nobody knows the best one beforehand. So every
rung of a ladder of them keeps the cheapest plan known on it (``ladder.py``), and plans are polished

1. rung by rung, up and down, where each begins with drawn plans and with what the rung before found;
2. at the throughput that they attain, which the best replicas may have moved, until that gains nothing;
3. after a kick of a rung's plan: a window of it is drawn anew or taken from another rung, a run of stages is divided
   differently, or it is polished first on smoother terms, where a part of a unit has a price.

The kicks::


    plan      | cpu  | gpu          | npu      |
    drawn     | npu     | cpu  | gpu           |         crossed: a window of the plan as drawn
    crossed   | cpu  |gpu| cpu  | gpu | npu    |

    plan      | gpu | gpu | gpu | gpu | cpu    |         divided: a run of stages on one type
    divided   | gpu   | gpu   | gpu   | cpu    |         in another number of equal ones

Where plans are drawn from is a :class:`Source`; it may learn from what has been found so far.

Left out: the polish itself (``polish.py``), and learning (``reinforce.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from heterps_compile.cost.evaluate import FLOOR_TOLERANCE
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Bools, Floats, Ints, Problem
from heterps_compile.passes.deadline import Deadline

from .archive import Archive, Found
from .ladder import Ladder, Rung, ladder_terms
from .polish import Polish
from .sampling import Proposal, Proposals, draw_plans, stage_rules
from .segment_table import SegmentTable, segment_table
from .stage_list import Move, StageList, apply
from .stage_prices import StagePrices, Terms

_NEAR = (1.0, 0.97, 0.92, 0.85, 1.03, 1.1)  # times of a batch around the attained one
_PROMISING = 1.02  # of the best value: worth a second look
_LEAST_GAIN = 1e-9  # relative
_SMOOTH = 0.3  # weight of work
_NARROWEST = 1.0005  # ratio of neighbouring times of a batch
_CHANGES = (-2, -1, 1, 2)
_CHANGE_ODDS = (0.15, 0.35, 0.35, 0.15)


@dataclass(frozen=True, slots=True)
class Climbing:
    """How long to climb, and how.

    Attributes:
        kicks: Kicks at most.
        patience: Stop after so many kicks without a better plan.
        most_priced: Stop when so many stages have been priced.
        starts: Good plans, each best in its range of throughputs, that are polished at what they attain.
        drawn: Plans drawn on each rung in the beginning; the cheaper of them are polished.
        polished: How many of them.
        best: Share of kicks that start from the best plan; the others start from a rung's.
        spread: Of the logarithm of the factor on a kick's terms.
        scales: Of the relative difference in promise by which a rung is chosen e-fold less often: usually, and when
            wandering.
        wandering: Share of rungs chosen on the wider scale.
        dividing: Share of kicks that divide a run.
        smoothing: Share that polish on smoother terms first.
        marrying: Share that cross two rungs' plans.
        replacing: Share that begin with a drawn plan as it is; the others cross one in.
        lesson: Kicks between two lessons of the source.
        unlearned: Share of plans drawn from what the source began with.
    """

    kicks: int = 400
    patience: int = 200
    most_priced: int = 60_000_000
    starts: int = 12
    drawn: int = 8
    polished: int = 4
    best: float = 0.35
    spread: float = 0.05
    scales: tuple[float, float] = (0.02, 0.08)
    wandering: float = 0.4
    dividing: float = 0.1
    smoothing: float = 0.25
    marrying: float = 0.1
    replacing: float = 0.1
    lesson: int = 20
    unlearned: float = 0.5


class Source(Protocol):
    """Where a climb draws plans from."""

    def first(self) -> Proposals:
        """Return what plans are drawn from at the start."""
        ...

    def learn(self, archive: Archive) -> Proposals:
        """Learn from what was found; give what plans are drawn from now, the best first."""
        ...


class Climb:
    """A climb on one problem, from the plans of an archive and into it."""

    def __init__(
        self, problem: Problem, archive: Archive, climbing: Climbing, generator: np.random.Generator, deadline: Deadline
    ) -> None:
        self._table = segment_table(problem)
        self.prices = StagePrices(self._table)
        self._polish = Polish(self.prices, deadline)
        self._rules = stage_rules(problem)
        self._problem, self._archive, self._climbing = problem, archive, climbing
        self._generator, self._deadline = generator, deadline
        self._ladder: Ladder

    def steps(self, source: Source) -> Iterator[None]:
        """Climb, a step at a time: a rung, a plan's ascent or a kick; the archive holds what is found."""
        climbing, proposals = self._climbing, source.first()
        goals = [proposal.throughput for proposal in proposals]
        known = [self._stages(plan.types, plan.begins) for plan in self._archive.niches(climbing.starts)]
        self._ladder = Ladder(self.prices, ladder_terms(self._problem, min(goals), max(goals)), known[0])
        self._offer(known)
        yield from self._sweep(proposals)
        for start in self._archive.niches(climbing.starts):
            yield from self._ascend(start, (1.0,))
        yield from self._ascend(self._archive.best, _NEAR)
        learned, idle, before = proposals, 0, self._archive.best
        for kick in range(climbing.kicks):
            if idle >= climbing.patience or self.prices.priced > climbing.most_priced or self._is_late():
                break
            if kick % climbing.lesson == 0:
                learned = source.learn(self._archive)
            self._narrow()
            kicked = self._kick(proposals if self._generator.random() < climbing.unlearned else learned)
            if kicked is not None and kicked.value < before.value * _PROMISING:
                yield from self._ascend(kicked, _NEAR[:2])
            if self._archive.best.rank < before.rank:
                yield from self._ascend(self._archive.best, _NEAR)
            idle = 0 if self._archive.best.value < before.value * (1 - _LEAST_GAIN) else idle + 1
            before = self._archive.best
            yield

    def _is_late(self) -> bool:
        return self._deadline.left_s() < 0

    def _sweep(self, proposals: Proposals) -> Iterator[None]:
        """Polish on the ladder, up and down again."""
        climbing = self._climbing
        up = range(len(self._ladder))
        carried: list[StageList] = []
        for rung in up:
            terms = self._ladder[rung].terms
            drawn = sorted(
                self._drawn(self._nearest(proposals, terms), climbing.drawn),
                key=lambda stages: self.prices.total(stages, terms),
            )
            smooth = [self._polish.descend(stages, replace(terms, work_weight=_SMOOTH)) for stages in drawn[:1]]
            chosen = [*drawn[: climbing.polished], *smooth, *carried[:1]]
            carried = [self._polish.descend(stages, terms) for stages in chosen]
            carried.sort(key=lambda stages: self.prices.total(stages, terms))
            self._offer(carried)
            yield
            if self._is_late():
                return
        for rung in reversed(up):
            self._offer([self._polish.descend(self._ladder[rung].stages, self._ladder[rung].terms)])
            yield
            if self._is_late():
                return

    def _ascend(self, plan: Found, factors: tuple[float, ...]) -> Iterator[None]:
        """Polish at multiples of the attained time of a batch, until none of them gains."""
        while not self._is_late():
            stages, terms = self._stages(plan.types, plan.begins), self._terms(plan)
            better = self._evaluate([self._polish.descend(stages, terms.near(factor)) for factor in factors])
            yield
            if not better.rank < (plan.value * (1 - _LEAST_GAIN), plan.violation):
                return
            plan = better

    def _kick(self, proposals: Proposals) -> Found | None:
        """Kick the best plan, or that of a rung, and polish it; None where no rung prefers what comes of it."""
        generator, climbing = self._generator, self._climbing
        if generator.random() < climbing.best:
            stages, terms = (
                self._stages(self._archive.best.types, self._archive.best.begins),
                self._terms(self._archive.best),
            )
        else:
            rung = self._choose_rung()
            stages, terms = rung.stages, rung.terms
        factor = float(np.exp(generator.laplace(0, climbing.spread)))
        shares = np.cumsum([climbing.dividing, climbing.smoothing, climbing.marrying, climbing.replacing])
        kind = int(np.searchsorted(shares, generator.random()))
        if kind == 0:
            stages, ratio = divide_run(self._table, stages, generator)
            if generator.random() < 0.5:  # stages grew by the ratio: so does the time of a batch, more or less
                factor *= ratio
        elif kind == 1:
            smooth = replace(terms.near(factor), work_weight=float(10 ** generator.uniform(-1.5, 1.0)))
            stages = self._polish.descend(stages, smooth)
        elif kind == 2:
            stages = cross(stages, self._choose_rung().stages, generator)
        else:
            drawn = self._drawn(self._nearest(proposals, terms), 1)[0]
            stages = drawn if kind == 3 else cross(stages, drawn, generator)
        return self._offer([self._polish.descend(stages, terms.near(factor))])

    def _narrow(self) -> None:
        """Put a rung where the step from one to the next leaves most room for a better plan."""
        promises, widths = self._ladder.promises(), self._ladder.widths()
        promises[(widths < _NARROWEST) | ~(promises < self._archive.best.value)] = np.inf
        slow = int(np.argmin(promises)) if len(promises) else 0
        if not len(promises) or np.isinf(promises[slow]):
            return
        rung = self._ladder.between(slow)
        terms = self._ladder[rung].terms
        self._offer([self._polish.descend(self._ladder[rung + side].stages, terms) for side in (-1, 1)])

    def _choose_rung(self) -> Rung:
        """Choose a rung, the wider and more promising the step to the next the more likely."""
        promises = self._ladder.promises()
        best = promises.min(initial=np.inf)
        if not np.isfinite(best):
            return self._ladder[int(self._generator.integers(len(self._ladder)))]
        scales = self._climbing.scales
        scale = scales[int(self._generator.random() < self._climbing.wandering)]
        odds = np.exp(-np.minimum(promises / best - 1, 50 * scale) / scale) * np.log(self._ladder.widths())
        return self._ladder[int(self._generator.choice(len(odds), p=odds / odds.sum()))]

    def _offer(self, lists: list[StageList]) -> Found | None:
        """Let the rungs keep what they prefer; give the best plan of those that any did."""
        kept = [self._evaluate([stages]) for stages in lists if self._ladder.offer(stages)]
        return min(kept, key=lambda found: found.rank, default=None)

    def _nearest(self, proposals: Proposals, terms: Terms) -> Proposal:
        """Return the proposal that aims nearest to the terms."""
        if not np.isfinite(terms.batch_s):
            return proposals[0]
        goal = self._problem.batch / terms.batch_s
        return min(proposals, key=lambda proposal: abs(np.log(proposal.throughput / goal)))

    def _drawn(self, proposal: Proposal, count: int) -> list[StageList]:
        draws = draw_plans(proposal, self._rules, count, self._generator)
        return [self._stages(types, begins) for types, begins in zip(draws.types, draws.begins, strict=True)]

    def _terms(self, plan: Found) -> Terms:
        """Return the terms on which a plan is polished: the time of a batch that it attains, or the floor's."""
        if OBJECTIVES[self._problem.objective].sums_at_floor:
            return self._ladder[-1].terms
        throughput = plan.throughput or self._problem.min_throughput or self._archive.best.throughput
        if throughput <= 0:  # infeasible, and no floor to go by: time enough for any stage on one unit
            return Terms(float(self._table.sums.compute_s[-1].sum() + self._table.sums.data_s[-1].sum() + 1.0))
        return Terms(self._problem.batch / throughput * (1 + FLOOR_TOLERANCE))

    def _evaluate(self, lists: list[StageList]) -> Found:
        """Return the best of some plans; the archive sees them all."""
        layers = self._problem.layer_count
        types = np.zeros((len(lists), layers), np.int64)
        begins = np.zeros((len(lists), layers), np.bool_)
        for row, stages in enumerate(lists):
            places = self._table.positions[stages.bounds]
            types[row] = np.repeat(stages.types, np.diff(places))
            begins[row, places[:-1]] = True
        return self._archive.add(types, begins)[0]

    def _stages(self, types: Ints, begins: Bools) -> StageList:
        """Return a plan as stages between positions; where a position is missing, the next one takes its place."""
        last = len(self._table.positions) - 1
        places = np.flatnonzero(begins)
        bounds, kept = np.unique(np.searchsorted(self._table.positions, places), return_index=True)
        inside = bounds < last
        return StageList(np.append(bounds[inside], last), types[places[kept[inside]]])


def cross(stages: StageList, drawn: StageList, generator: np.random.Generator) -> StageList:
    """Put a window of another plan in place of the plan's own; its two ends are stages."""
    count = int(stages.bounds[-1])
    low, high = np.sort(generator.integers(0, count + 1, 2))
    low = min(low, count - 1)
    high = max(high, low + 1)
    types, begins = stages.spread()
    drawn_types, drawn_begins = drawn.spread()
    types[low:high], begins[low:high] = drawn_types[low:high], drawn_begins[low:high]
    begins[low] = True
    begins[min(high, count - 1)] |= high < count
    bounds = np.flatnonzero(begins)
    return StageList(np.append(bounds, count), types[bounds])


def divide_run(table: SegmentTable, stages: StageList, generator: np.random.Generator) -> tuple[StageList, float]:
    """Divide a run of stages on one type into one or two stages more or fewer, of equal work.

    Returns:
        The plan, and the ratio of the new stages' work to that of the old ones.
    """
    edges = np.append(np.flatnonzero(np.append(True, stages.types[1:] != stages.types[:-1])), len(stages.types))
    run = int(generator.integers(len(edges) - 1))
    first, end = int(edges[run]), int(edges[run + 1])
    parts = max(1, end - first + int(generator.choice(_CHANGES, p=_CHANGE_ODDS)))
    low, high, type_ = int(stages.bounds[first]), int(stages.bounds[end]), int(stages.types[first])
    work = np.maximum(_since(table.sums.compute_s, low, high, type_), _since(table.sums.data_s, low, high, type_))
    inner = low + np.searchsorted(work, work[-1] * np.arange(1, parts) / parts)
    inner = np.unique(inner[(low < inner) & (inner < high)])
    count = len(inner) + 1
    divided, _ = apply(stages, [Move(0.0, first, end, inner.tolist(), [type_] * count)])
    return divided, (end - first) / count


def _since(sums: Floats, low: int, high: int, type_: int) -> Floats:
    return np.asarray(sums[low : high + 1, type_] - sums[low, type_])
