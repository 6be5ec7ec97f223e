"""The climb: the polish over and over, at many throughputs and from kicked plans.

The polish works at a fixed time of a batch, and nobody knows the best one beforehand. So plans are polished

1. on a ladder of throughputs from the floor up, where each rung begins with drawn plans and with what the rung below
   found, and then once more on the way down;
2. at the throughput that they attain, which the best replicas may have moved, until that gains nothing;
3. after a kick: a window of a good plan is drawn anew, or a run of stages is divided differently.

Where plans are drawn from is a :class:`Source`; it may learn from what has been found so far.

Left out: the polish itself (``polish.py``), and learning (``reinforce.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from heterps_compile.cost.evaluate import FLOOR_TOLERANCE
from heterps_compile.cost.problem import Bools, Ints, Problem

from .archive import Archive, Found
from .kicks import cross, divide_run
from .paths import Deadline
from .polish import Cut, Polish
from .sampling import Proposal, Proposals, draw_plans, stage_rules
from .spans import find_spans

_LADDER = ((1.05, 2.0), (1.12, 5.0), (1.4, 32.0))  # ratio of neighbouring rungs, up to this multiple of the lowest
_DRAWN_ON_A_RUNG = 12
_POLISHED_ON_A_RUNG = 2
_NEAR = (1.0, 0.97, 0.92, 0.85, 1.03, 1.1)  # times of a batch around the attained one
_SPREADS = (0.12, 0.5)  # of the logarithm of a kick's time of a batch: usually, and now and then
_PROMISING = 1.02  # of the best value: worth a second look
_LEAST_GAIN = 1e-9  # relative


@dataclass(frozen=True, slots=True)
class Climbing:
    """How long to climb, and how.

    Attributes:
        kicks: Kicks at most.
        patience: Stop after so many kicks without a better plan.
        starts: Good plans, each best in its range of throughputs, that kicks start from.
        dividing: Share of kicks that divide a run; the others cross in a drawn plan.
        exploring: Share of kicks that start from another good plan than the best.
        lesson: Kicks between two lessons of the source.
        unlearned: Share of plans drawn from what the source began with.
    """

    kicks: int = 150
    patience: int = 100
    starts: int = 12
    dividing: float = 0.3
    exploring: float = 0.5
    lesson: int = 20
    unlearned: float = 0.5


class Source(Protocol):
    """Where a climb draws plans from."""

    def first(self) -> Proposals:
        """Give what plans are drawn from at the start."""
        ...

    def learn(self, archive: Archive) -> Proposals:
        """Learn from what was found; give what plans are drawn from now, the best first."""
        ...


class Climb:
    """A climb on one problem, from the plans of an archive and into it."""

    def __init__(
        self, problem: Problem, archive: Archive, climbing: Climbing, generator: np.random.Generator, deadline: Deadline
    ) -> None:
        self._spans = find_spans(problem)
        self.polish = Polish(self._spans, deadline)
        self._rules = stage_rules(problem)
        self._problem, self._archive, self._climbing = problem, archive, climbing
        self._generator, self._deadline = generator, deadline

    def run(self, source: Source) -> None:
        """Climb; the archive holds what is found."""
        self._sweep(source.first())
        for start in self._archive.niches(self._climbing.starts):
            self._ascend(start, (1.0,))
        self._ascend(self._archive.best, _NEAR)
        idle = 0
        for drawn in self._draw(source):
            if idle >= self._climbing.patience or self._deadline.left_s() < 0:
                break
            before = self._archive.best
            kicked = self._kick(drawn)
            if kicked.value < before.value * _PROMISING:
                self._ascend(kicked, _NEAR[:2])
            if self._archive.best.rank < before.rank:
                self._ascend(self._archive.best, _NEAR)
            idle = 0 if self._archive.best.value < before.value * (1 - _LEAST_GAIN) else idle + 1

    def _sweep(self, proposals: Proposals) -> None:
        """Polish on the ladder, up and down again."""
        factors = [1.0]
        for ratio, most in _LADDER:
            while factors[-1] * ratio <= most:
                factors.append(factors[-1] * ratio)
        lowest = min(proposal.throughput for proposal in proposals)
        rungs = [self._problem.batch / (lowest * factor) for factor in factors]
        cheapest: list[Cut] = []
        for batch_s in rungs:
            near = min(proposals, key=lambda proposal: abs(np.log(proposal.throughput * batch_s / self._problem.batch)))
            drawn = self._sort(self._cuts(near, _DRAWN_ON_A_RUNG), batch_s)[:_POLISHED_ON_A_RUNG]
            cheapest.append(self._polish_all([*drawn, *cheapest[-1:]], batch_s))
            if self._deadline.left_s() < 0:
                return
        carried = cheapest.pop()
        for batch_s, own in zip(rungs[-2::-1], reversed(cheapest), strict=True):
            carried = self._sort([self._polish_all([carried], batch_s), own], batch_s)[0]
            if self._deadline.left_s() < 0:
                return

    def _sort(self, cuts: list[Cut], batch_s: float) -> list[Cut]:
        return sorted(cuts, key=lambda cut: self.polish.total(cut, batch_s))

    def _polish_all(self, cuts: list[Cut], batch_s: float) -> Cut:
        """Polish plans at one time of a batch and evaluate them; give the cheapest at that time."""
        polished = [self.polish.descend(cut, batch_s) for cut in cuts]
        self._evaluate(polished)
        return self._sort(polished, batch_s)[0]

    def _ascend(self, plan: Found, factors: tuple[float, ...]) -> None:
        """Polish at multiples of the attained time of a batch, until none of them gains."""
        while self._deadline.left_s() > 0:
            cut, batch_s = self._cut(plan.types, plan.begins), self._batch_s(plan)
            better = self._evaluate([self.polish.descend(cut, batch_s * factor) for factor in factors])
            if not better.rank < (plan.value * (1 - _LEAST_GAIN), plan.violation):
                return
            plan = better

    def _kick(self, drawn: Cut) -> Found:
        """Kick the best plan, or another good one, and polish it."""
        generator, climbing = self._generator, self._climbing
        start = self._archive.best
        if generator.random() < climbing.exploring:
            others = self._archive.niches(climbing.starts)
            start = others[min(int(generator.geometric(0.3)) - 1, len(others) - 1)]
        cut = self._cut(start.types, start.begins)
        factor = float(np.exp(generator.laplace(0, _SPREADS[0] if generator.random() < 0.8 else _SPREADS[1])))
        if generator.random() < climbing.dividing:
            cut, ratio = divide_run(self._spans, cut, generator)
            if generator.random() < 0.5:  # stages grew by the ratio: so does the time of a batch, more or less
                factor = ratio * factor**0.3
        else:
            cut = cross(cut, drawn, generator)
        batch_s = self._batch_s(start) * factor
        return self._evaluate([self.polish.descend(cut, batch_s)])

    def _draw(self, source: Source) -> Iterator[Cut]:
        """Draw a plan for every kick; the source learns now and then."""
        generator, first = self._generator, source.first()
        learned = first
        for kick in range(self._climbing.kicks):
            if kick % self._climbing.lesson == 0:
                learned = source.learn(self._archive)
            if generator.random() < self._climbing.unlearned:
                proposal = first[int(generator.integers(len(first)))]
            else:
                proposal = learned[min(int(generator.geometric(0.4)) - 1, len(learned) - 1)]
            yield self._cuts(proposal, 1)[0]

    def _cuts(self, proposal: Proposal, count: int) -> list[Cut]:
        draws = draw_plans(proposal, self._rules, count, self._generator)
        return [self._cut(types, begins) for types, begins in zip(draws.types, draws.begins, strict=True)]

    def _batch_s(self, plan: Found) -> float:
        """Give the time of a batch that a plan attains; of an infeasible one, what the floor allows."""
        throughput = plan.throughput or self._problem.min_throughput or self._archive.best.throughput
        if throughput <= 0:  # infeasible, and no floor to go by: time enough for any stage on one unit
            return float(self._spans.compute_s[-1].sum() + self._spans.data_s[-1].sum() + 1.0)
        return self._problem.batch / throughput * (1 + FLOOR_TOLERANCE)

    def _evaluate(self, cuts: list[Cut]) -> Found:
        """Give the best of some plans; the archive sees them all."""
        layers = self._problem.layer_count
        types = np.zeros((len(cuts), layers), np.int64)
        begins = np.zeros((len(cuts), layers), np.bool_)
        for row, cut in enumerate(cuts):
            places = self._spans.positions[cut.bounds]
            types[row] = np.repeat(cut.types, np.diff(places))
            begins[row, places[:-1]] = True
        return self._archive.add(types, begins)[0]

    def _cut(self, types: Ints, begins: Bools) -> Cut:
        """Give a plan as stages between positions; where a position is missing, the next one takes its place."""
        last = len(self._spans.positions) - 1
        places = np.flatnonzero(begins)
        bounds, kept = np.unique(np.searchsorted(self._spans.positions, places), return_index=True)
        inside = bounds < last
        return Cut(np.append(bounds[inside], last), types[places[kept[inside]]])
