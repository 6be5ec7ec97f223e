"""The climb: the polish over and over, at many throughputs and from kicked plans, until it finds no more.

The polish works at a fixed time of a batch, the best of which nobody knows beforehand. So a plan is polished at the
time it attains and at a few near it; what attains the best value is polished again at *its* time, and so on.

Left out: the polish itself (``polish.py``), and the plans to begin with.
"""

from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.evaluate import FLOOR_TOLERANCE
from heterps_compile.cost.problem import Bools, Ints, Problem

from .archive import Archive, Found
from .kicks import cross, divide_run
from .paths import Deadline
from .polish import Cut, Polish
from .sampling import Proposals, draw_plans, stage_rules
from .spans import find_spans

_NEAR = (1.0, 0.97, 0.92, 0.85, 1.03, 1.1)  # times of a batch around the attained one
_FAR = tuple(2.0 ** (k / 4) for k in range(-14, 7) if k)
_SPREAD = 0.12  # of the logarithm of a kick's time of a batch
_WIDE_SPREAD = 0.5  # of one kick in five
_GREED = 0.3  # chance that a kick starts from a niche, given that it does not from a better one
_PROMISING = 1.02  # of the best value: worth a second look
_LEAST_GAIN = 1e-9


@dataclass(frozen=True, slots=True)
class Climbing:
    """How long to climb.

    Attributes:
        starts: Best plans to climb from.
        kicks: Kicks after that.
        patience: Stop after so many kicks without a better plan.
        dividing: Share of kicks that divide a run; the others cross in a drawn plan.
        exploring: Share of kicks that start from another good plan than the best.
    """

    starts: int = 12
    kicks: int = 80
    patience: int = 60
    dividing: float = 0.3
    exploring: float = 0.5


class Climb:
    """A climb on one problem, from the plans of an archive and into it."""

    def __init__(
        self, problem: Problem, archive: Archive, climbing: Climbing, generator: np.random.Generator, deadline: Deadline
    ) -> None:
        spans = find_spans(problem)
        self.polish = Polish(spans, deadline)
        self._problem, self._spans, self._archive = problem, spans, archive
        self._climbing, self._generator, self._deadline = climbing, generator, deadline

    def run(self, proposals: Proposals) -> None:
        """Climb from the archive's best plans, then from kicked ones drawn from the proposals."""
        for start in self._archive.niches(self._climbing.starts):
            self._ascend(start, (1.0,))
        self._ascend(self._archive.best, _NEAR)
        before = self._archive.best
        self._polish(before, _FAR)
        if self._archive.best is not before:
            self._ascend(self._archive.best, _NEAR)
        idle = 0
        for drawn in self._draw(proposals):
            if idle >= self._climbing.patience or self._deadline.left_s() < 0:
                return
            before = self._archive.best
            kicked = self._kick(drawn)
            if kicked.value < before.value * _PROMISING:
                self._ascend(kicked, _NEAR[:2])
            if self._archive.best.rank < before.rank:
                self._ascend(self._archive.best, _NEAR)
            idle = 0 if self._archive.best.value < before.value * (1 - _LEAST_GAIN) else idle + 1

    def _ascend(self, plan: Found, factors: tuple[float, ...]) -> None:
        """Polish until no factor of the attained time of a batch gains."""
        while self._deadline.left_s() > 0:
            better = self._polish(plan, factors)
            if not better.rank < (plan.value * (1 - _LEAST_GAIN), plan.violation):
                return
            plan = better

    def _polish(self, plan: Found, factors: tuple[float, ...]) -> Found:
        """Give the best of what the polish makes of a plan at some multiples of its time of a batch."""
        cut, batch_s = self._cut(plan.types, plan.begins), self._batch_s(plan)
        return self._evaluate([self.polish.descend(cut, batch_s * factor) for factor in factors])

    def _kick(self, drawn: Cut) -> Found:
        """Kick the best plan, or another good one, and polish it."""
        generator = self._generator
        start = self._archive.best
        if generator.random() < self._climbing.exploring:
            others = self._archive.niches(self._climbing.starts)
            start = others[min(int(generator.geometric(_GREED)) - 1, len(others) - 1)]
        cut = self._cut(start.types, start.begins)
        spread = _SPREAD if generator.random() < 0.8 else _WIDE_SPREAD
        factor = float(np.exp(generator.laplace(0, spread)))
        if generator.random() < self._climbing.dividing:
            cut, ratio = divide_run(self._spans, cut, generator)
            if generator.random() < 0.5:
                factor = ratio * factor**0.3
        else:
            cut = cross(cut, drawn, generator)
        return self._evaluate([self.polish.descend(cut, self._batch_s(start) * factor)])

    def _draw(self, proposals: Proposals) -> list[Cut]:
        rules = stage_rules(self._problem)
        each = -(-self._climbing.kicks // len(proposals))
        drawn = [draw_plans(scores, logits, rules, each, self._generator) for scores, logits in proposals]
        cuts = [self._cut(t, b) for draws in drawn for t, b in zip(draws.types, draws.begins, strict=True)]
        return [cuts[i] for i in self._generator.permutation(len(cuts))[: self._climbing.kicks]]

    def _batch_s(self, plan: Found) -> float:
        """Give the time of a batch that a plan attains; of an infeasible one, what the floor allows."""
        throughput = plan.throughput or self._problem.min_throughput or self._archive.best.throughput
        if throughput <= 0:  # infeasible, and no floor to go by: time enough for any stage on one unit
            usable_s = np.where(np.isfinite(self._problem.compute_s), self._problem.compute_s, 0.0)
            return float(usable_s.sum() + self._spans.data_s[-1].max() + 1.0)
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
        places = np.flatnonzero(begins)
        bounds, kept = np.unique(np.searchsorted(self._spans.positions, places), return_index=True)
        inside = bounds < len(self._spans.positions) - 1
        return Cut(np.append(bounds[inside], len(self._spans.positions) - 1), types[places[kept[inside]]])
