"""Genetic search: a population of placements, crossed and mutated, the better ones kept.

A placement is a type for every layer and a mark where stages begin. Parents win a tournament; a child takes a range
of layers from one and the rest from the other; mutations give a stage another type, move a boundary, split a stage or
join two. The best of every generation live on unchanged.

Left out: any knowledge of the problem beyond what evaluating placements tells, and a bound.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heterps_compile.cost.evaluate import Evaluation, evaluate, to_arrays, to_placement
from heterps_compile.cost.problem import Bools, Floats, Ints, Placement, Problem, SearchResult
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.local.sampling import StageRules, draw_plans, stage_rules, uniform_proposal
from heterps_compile.passes.placement.simple_plans import require_feasible, seed_placements

_TOURNAMENT = 3


@dataclass(frozen=True, slots=True)
class Genetic:
    """Search with a population.

    Attributes:
        population: Placements that live at a time.
        generations: How many at most.
        patience: Stop after so many generations without a better placement.
        elite: How many live on unchanged.
        mutations: Mean number of mutations of a child.
    """

    name: ClassVar[str] = "genetic"

    population: int = 128
    generations: int = 300
    patience: int = 60
    elite: int = 8
    mutations: float = 1.5

    def __call__(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        time_limit_s: float | None = None,
        warm_start: Placement | None = None,
    ) -> SearchResult:
        """Search; see :class:`.method.PlacementMethod`."""
        started, deadline = now_s(), Deadline.after(time_limit_s)
        generator = np.random.default_rng(seed)
        rules = stage_rules(problem)
        types, begins = self._first(problem, rules, warm_start, generator)
        fitness = _fitness(evaluate(problem, types, begins))
        evaluations, idle = len(fitness), 0
        notes: tuple[str, ...] = ()
        for _ in range(self.generations):
            if deadline.left_s() < 0:
                notes = ("the time limit ended the search",)
                break
            if idle >= self.patience:
                break
            children = self._children(types, begins, fitness, problem.type_count, generator)
            _keep_rules(*children, rules)
            grown = _fitness(evaluate(problem, *children))
            evaluations += len(grown)
            best = fitness.min()
            kept = np.argsort(fitness, kind="stable")[: self.elite]
            types = np.concatenate([types[kept], children[0]])
            begins = np.concatenate([begins[kept], children[1]])
            fitness = np.concatenate([fitness[kept], grown])
            idle = idle + 1 if fitness.min() >= best else 0
        winner = int(np.argmin(fitness))
        placement = to_placement(types[winner], begins[winner])
        value = require_feasible(problem, placement, self.name)
        return SearchResult(placement, value, -np.inf, self.name, seed, evaluations, now_s() - started, notes)

    def _first(
        self, problem: Problem, rules: StageRules, warm_start: Placement | None, generator: np.random.Generator
    ) -> tuple[Ints, Bools]:
        """Return the first population: simple plans, the warm start, and random plans of some four stages."""
        drawn = draw_plans(uniform_proposal(problem), rules, self.population, generator)
        types, cuts = to_arrays(seed_placements(problem, warm_start))
        return np.concatenate([types, drawn.types]), np.concatenate([_begins(types, cuts), drawn.begins])

    def _children(
        self, types: Ints, begins: Bools, fitness: Floats, type_count: int, generator: np.random.Generator
    ) -> tuple[Ints, Bools]:
        count, layers = self.population, types.shape[1]
        entrants = generator.integers(len(fitness), size=(2, count, _TOURNAMENT))
        mother, father = np.take_along_axis(entrants, np.argmin(fitness[entrants], axis=2)[..., None], axis=2)[..., 0]
        low, high = np.sort(generator.integers(0, layers + 1, (2, count)), axis=0)
        index = np.arange(layers)
        inside = (low[:, None] <= index) & (index < high[:, None])
        child_types = np.where(inside, types[father], types[mother])
        child_begins = np.where(inside, begins[father], begins[mother])
        for row, times in enumerate(generator.poisson(self.mutations, count)):
            for _ in range(times):
                _mutate(child_types[row], child_begins[row], type_count, generator)
        return child_types, _begins(child_types, child_begins)


def _mutate(types: Ints, begins: Bools, type_count: int, generator: np.random.Generator) -> None:
    """Change one placement in place: a type, a boundary, a split or a join."""
    layers = len(types)
    starts = np.flatnonzero(_begins(types[None], begins[None])[0])
    stage = int(generator.integers(len(starts)))
    low, high = int(starts[stage]), int(starts[stage + 1]) if stage + 1 < len(starts) else layers
    match int(generator.integers(4)):
        case 0:
            types[low:high] = generator.integers(type_count)
        case 1 if low > 0:  # the boundary before the stage moves into it or out of it
            reach = int(generator.geometric(0.3)) * (1 if generator.random() < 0.5 else -1)
            place = min(max(low + reach, int(starts[stage - 1]) + 1), high - 1)
            types[min(low, place) : max(low, place)] = types[low - 1] if place > low else types[low]
            begins[low], begins[place] = False, True
        case 2 if high - low > 1:
            place = int(generator.integers(low + 1, high))
            begins[place] = True
            types[place:high] = generator.integers(type_count)
        case _ if low > 0:
            begins[low] = False
            types[low:high] = types[low - 1]


def _begins(types: Ints, begins: Bools) -> Bools:
    """Mark the begin of every stage: where it is marked already, and where the type changes."""
    marked = begins.copy()
    marked[:, 0] = True
    marked[:, 1:] |= types[:, 1:] != types[:, :-1]
    return marked


def _keep_rules(types: Ints, begins: Bools, rules: StageRules) -> None:
    """Carry on the stage before over every position where none may begin."""
    for place in np.flatnonzero(~rules.may_begin):
        types[:, place] = types[:, place - 1]
        begins[:, place] = False


def _fitness(evaluation: Evaluation) -> Floats:
    """Return the value, or for infeasible placements a number above all values that grows with the violation."""
    return np.where(np.isfinite(evaluation.values), evaluation.values, 1e100 * (1 + evaluation.violation))
