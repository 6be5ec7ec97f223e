"""Search for the plan of the best step: placements, units, micro-batches and schedule together.

It begins with the plans that the searches of the steady state came upon, and with plans of one type, whose replicas
share the whole model. They get their units and micro-batches by bounds (``schedule/step_problem.py``); the most
promising are simulated, best bound first, until no bound is below the best plan. From the best plan known, three
searches follow one another: a descent, an annealing (``anneal_steps.py``), and the descent again. The descent looks at
all neighbours of the best plan::

    boundary   a stage begins some layers earlier or later
    type       a stage goes to another type
    merge      two neighbouring stages become one, on the type of either
    split      a stage is cut in two, and one of them may go to another type

and at other units and micro-batches of the best plan, around what they are. It ends if none of them is better. It
prices all that a problem has; the loop of the annealing leaves some of it out.

Left out: a proof.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np

from heterps_compile.cost.evaluate import to_arrays
from heterps_compile.cost.problem import Placement
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.compiled_loops import NOT_COMPILED
from heterps_compile.passes.placement.proof.trivial_bounds import GAP
from heterps_compile.schedule.step_problem import StepProblem

from .anneal_steps import STEP_ANNEALING, AnnealSteps, StepAnnealing, compile_steps_beside, steps_are_compiled
from .step_plans import SteppedPlan, StepPlan, feasible, plans_of, simulated, with_other_units


@dataclass(frozen=True, slots=True)
class StepEffort:
    """How hard to try.

    Attributes:
        starts: Plans that are simulated of those that it begins with.
        rounds: Neighbourhoods that each descent looks at.
        neighbours: Placements of one neighbourhood, drawn where there are more.
        simulations: Of plans of one neighbourhood.
        actions: Forwards and backwards that are simulated in all, once some plan is found; without the annealing's.
        annealing: From the best plan and drawn ones.
    """

    starts: int = 16
    rounds: int = 40
    neighbours: int = 600
    simulations: int = 12
    actions: int = 400_000
    annealing: StepAnnealing = STEP_ANNEALING


STEP_EFFORT = StepEffort()


class StepSearch:
    """The best plan known, and what was looked at.

    Attributes:
        best: None before the first that keeps to all limits.
        simulated: Plans that were, at the time, as good as the best or better.
        notes: Limits that the search met, in sentences.
        evaluations: Placements whose steps were bounded or simulated.
    """

    def __init__(
        self,
        of: StepProblem,
        deadline: Deadline,
        effort: StepEffort = STEP_EFFORT,
        *,
        seed: int = 0,
        least: float = -np.inf,
    ) -> None:
        """Begin without a plan; ``least`` is a value that no plan is below, at which the search ends."""
        self.of, self._deadline, self._effort, self._least = of, deadline, effort, least
        self.best: SteppedPlan | None = None
        self.simulated: list[SteppedPlan] = []
        self.notes: tuple[str, ...] = ()
        self.evaluations, self._actions = 0, 0
        self._seen: set[bytes] = set()
        self._seed, self._generator = seed, np.random.default_rng(seed)

    def run(self, starts: Iterable[Placement], known: Iterable[SteppedPlan] = ()) -> SteppedPlan | None:
        """Search from some placements, and from plans whose steps are known; return the best plan."""
        compile_steps_beside()
        for plan in known:
            self._offer(plan)
        self._consider(list(starts), self.of.all_counts, self._effort.starts)
        self._descend()  # first too, so that no plan is worse than its own
        self._anneal()
        self._descend()
        return self.best

    def _descend(self) -> None:
        """Go to better neighbours of the best plan until none is better."""
        for _ in range(self._effort.rounds):
            before = self.best
            if before is None or self._deadline.is_over or self._is_met:
                break
            self.polish()
            if self.best is before:
                neighbours = self._drawn(before.placement)
                self._consider(neighbours, self.of.counts_near(before.step.micro_batches), self._effort.simulations)
            if self.best is before:
                break

    def _anneal(self) -> None:
        """Offer the plans of the annealing, unless none can be better."""
        if self._is_met or self._deadline.is_over:
            return
        if not steps_are_compiled(self._deadline):
            self.notes = (NOT_COMPILED,)
            return
        annealing = AnnealSteps(self.of, self._effort.annealing, seed=self._seed)
        for plan in annealing.plans([] if self.best is None else [self.best], self._deadline):
            self._offer(plan)
        self.evaluations += annealing.plans_priced
        self.notes = annealing.notes

    @property
    def _is_met(self) -> bool:
        """Return whether no plan is better."""
        return self.best is not None and self.best.value <= self._least * (1 + GAP)

    def _drawn(self, placement: Placement) -> list[Placement]:
        found = list(neighbours_of(placement, self.of.problem.type_count))
        if len(found) <= self._effort.neighbours:
            return found
        kept = self._generator.choice(len(found), self._effort.neighbours, replace=False)
        return [found[i] for i in sorted(kept.tolist())]

    def _consider(self, placements: Sequence[Placement], counts: Sequence[int], most: int) -> None:
        """Bound placements, and simulate the most promising of them."""
        new = [each for each in placements if self._is_new(each)]
        if not new:
            return
        types, cuts = to_arrays(new)
        self.evaluations += len(new)
        kept = feasible(self.of.problem, types, cuts)
        if kept.any():
            self._simulate(plans_of(self.of, types[kept], cuts[kept], counts), most)

    def _simulate(self, plans: Iterable[StepPlan], most: int) -> None:
        for plan in islice(plans, most):
            if self.best is not None and (self._deadline.is_over or self._actions > self._effort.actions):
                return
            if self.best is not None and (plan.value, plan.least_s) >= self.best.rank:
                return
            self._actions += 4 * len(plan.units) * plan.micro_batches
            # one that is as good may be shorter
            below = np.inf if self.best is None else self.best.value * (1 + 2 * GAP)
            self._offer(simulated(self.of, plan, below))

    def _offer(self, found: SteppedPlan | None) -> None:
        if found is not None and (self.best is None or found.value <= self.best.value * (1 + 2 * GAP)):
            self.simulated.append(found)
        if found is not None and (self.best is None or found.is_better_than(self.best)):
            self.best = found

    def polish(self) -> None:
        """Try other units and other numbers of micro-batches for the best placement, until nothing is better."""
        before = None
        while self.best is not None and self.best is not before and not (self._is_met or self._deadline.is_over):
            before = self.best
            types, cuts = to_arrays([before.placement])
            around = plans_of(self.of, types, cuts, self.of.counts_near(before.step.micro_batches), 4)
            found = sorted((*around, *with_other_units(self.of, before)), key=lambda plan: (plan.value, plan.least_s))
            self._simulate(found, self._effort.simulations)

    def _is_new(self, placement: Placement) -> bool:
        key = np.array((*placement.types, -1, *placement.cuts), np.int32).tobytes()
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new


def with_best_units(of: StepProblem, plan: SteppedPlan) -> SteppedPlan:
    """Return the placement of a plan with the units and micro-batches that are the best around what they are."""
    search = StepSearch(of, Deadline.after(None))
    search.best = plan
    search.polish()
    return search.best


def neighbours_of(placement: Placement, type_count: int) -> Iterator[Placement]:
    """Yield the placements next to one, by the moves of the module."""
    count = len(placement.types)
    starts = list(placement.starts())
    stages = [(placement.types[first], first) for first in starts]
    ends = [*starts[1:], count]
    jumps = [sign * 2**power for power in range(max(1, count.bit_length() - 1)) for sign in (1, -1)]
    for s, (type_, first) in enumerate(stages):
        for other in range(type_count):
            if other != type_:
                yield _placement([*stages[:s], (other, first), *stages[s + 1 :]], count)
        if s:
            for jump in jumps:
                if starts[s - 1] < first + jump < ends[s]:
                    yield _placement([*stages[:s], (type_, first + jump), *stages[s + 1 :]], count)
            for joined in {type_, stages[s - 1][0]}:
                yield _placement([*stages[: s - 1], (joined, starts[s - 1]), *stages[s + 1 :]], count)
        for cut in range(first + 1, ends[s]):
            for other in range(type_count):
                yield _placement([*stages[:s], (type_, first), (other, cut), *stages[s + 1 :]], count)
                if other != type_:
                    yield _placement([*stages[:s], (other, first), (type_, cut), *stages[s + 1 :]], count)


def _placement(stages: Sequence[tuple[int, int]], count: int) -> Placement:
    firsts = [first for _, first in stages]
    types: list[int] = []
    for (type_, first), end in zip(stages, [*firsts[1:], count], strict=True):
        types += [type_] * (end - first)
    cuts = tuple(first for (before, _), (type_, first) in pairwise(stages) if before == type_)
    return Placement(tuple(types), cuts)
