"""Search for the plan of the best step: placements, units, micro-batches and schedule together.

It begins with the plans that the searches of the steady state came upon, and with plans of one type, whose replicas
share the whole model. They get their units and micro-batches by bounds (``schedule/step_problem.py``); the most
promising are simulated, best bound first, until no bound is below the best plan. From the best of them and from drawn
plans an annealing goes on (``anneal_steps.py``). Then units and micro-batches of the best plan are tried around what
they are. It ends where nothing is better.

Left out: a proof.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from heterps_compile.cost.evaluate import to_arrays
from heterps_compile.cost.problem import Placement
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.proof.trivial_bounds import GAP
from heterps_compile.schedule.step_problem import StepProblem

from .anneal_steps import STEP_ANNEALING, AnnealSteps, StepAnnealing, steps_are_compiled
from .step_plans import SteppedPlan, StepPlan, feasible, plans_of, simulated, with_other_units


@dataclass(frozen=True, slots=True)
class StepEffort:
    """How hard to try.

    Attributes:
        starts: Plans that are simulated of those that it begins with.
        simulations: Of plans with other units and micro-batches at once.
        actions: Forwards and backwards that are simulated in all, once some plan is found; without the annealing's.
        annealing: From the best plan and drawn ones.
    """

    starts: int = 16
    simulations: int = 12
    actions: int = 400_000
    annealing: StepAnnealing = STEP_ANNEALING


STEP_EFFORT = StepEffort()


class StepSearch:
    """The best plan known, and what was looked at.

    Attributes:
        best: None before the first that keeps to all limits.
        simulated: Plans that were, at the time, as good as the best or better.
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
        self.evaluations, self._actions = 0, 0
        self._seen: set[bytes] = set()
        self._seed = seed

    def run(self, starts: Iterable[Placement], known: Iterable[SteppedPlan] = ()) -> SteppedPlan | None:
        """Search from some placements, and from plans whose steps are known; return the best plan."""
        for plan in known:
            self._offer(plan)
        self._consider(list(starts), self.of.all_counts, self._effort.starts)
        self._anneal()
        self._polish()
        return self.best

    def _anneal(self) -> None:
        """Offer what the annealing finds from the best plan and drawn ones, unless none can be better."""
        if self._is_met or self._deadline.is_over or not steps_are_compiled(self._deadline):
            return
        annealing = AnnealSteps(self.of, self._effort.annealing, seed=self._seed)
        for plan in annealing.plans([] if self.best is None else [self.best], self._deadline):
            self._offer(simulated(self.of, plan, np.inf if self.best is None else self.best.value))
        self.evaluations += annealing.plans_priced

    @property
    def _is_met(self) -> bool:
        """Return whether no plan is better."""
        return self.best is not None and self.best.value <= self._least * (1 + GAP)

    def polished(self, plan: SteppedPlan) -> SteppedPlan:
        """Return the best plan of the placement of one, around its units and micro-batches."""
        self.best = plan
        self._polish()
        return plan if self.best is None else self.best

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

    def _simulate(self, plans: Sequence[StepPlan], most: int) -> None:
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
        if found is not None:
            self.simulated.append(found)
        if found is not None and (self.best is None or found.is_better_than(self.best)):
            self.best = found

    def _polish(self) -> None:
        """Try other units and other numbers of micro-batches for the best placement, until nothing is better."""
        before = None
        while self.best is not None and self.best is not before and not (self._is_met or self._deadline.is_over):
            before = self.best
            types, cuts = to_arrays([before.placement])
            around = plans_of(self.of, types, cuts, self.of.counts_near(before.step.micro_batches), 4)
            around += with_other_units(self.of, before)
            around.sort(key=lambda plan: (plan.value, plan.least_s))
            self._simulate(around, self._effort.simulations)

    def _is_new(self, placement: Placement) -> bool:
        key = np.array((*placement.types, -1, *placement.cuts), np.int32).tobytes()
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new


def with_best_units(of: StepProblem, plan: SteppedPlan) -> SteppedPlan:
    """Return the placement of a plan with the units and micro-batches that are the best around what they are."""
    search = StepSearch(of, Deadline.after(None))
    return search.polished(plan)
