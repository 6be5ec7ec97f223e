"""What it would cost to put layers on device types where the plan does not have them, and which number decides that.

The plan's problem is posed again with the pins, which come after those of the plan, and solved by the exact search in
bounded time. The price is that of the best plan with the pins; stopped early, it lies between a bound and a plan. What
would make the pins cost nothing is asked of that plan, and of those that are the best with other bandwidths and prices.

Left out: the levers (``what_decides.py``), the looks of it (``pin_cost_words.py``).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.pose import pose_problem
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.cost.server_cost import Pricing
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.deal_alike import deal_alike
from heterps_compile.passes.placement.proof.exact import Exact

from .judge import detail_today, pricing_of
from .moves import Outcome, outcome_of, outcome_of_detail
from .pose import PosedAgain
from .what_decides import EVERY_BANDWIDTH, Decisive, levers, what_decides

TIME_LIMIT_S = 30.0
NOT_IN_THE_BOUND = "the search and its bound leave out the parameter servers, which both prices have in them"
_ELSEWHERE = 8.0  # times a bandwidth, or a part of a price, at which the pins are solved too
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class PinCost:
    """What pins would cost.

    Attributes:
        pins: (pattern, device type), the last match wins.
        moved: Names of the layers that the pins keep from where the plan has them.
        plan: What the plan is worth.
        pinned: What the best plan found with the pins is worth.
        bound: No plan with the pins has a lower value.
        decisive: What would have to change for the plan with the pins to be worth as much, the nearest first.
        objective: Name of the plan's objective.
        currency: Of prices.
        batch: Samples of a batch.
        problem: The plan's, with the types that the pins allow allowed too: both plans are plans of it.
        left_out: What the bound leaves out of the price; "" where nothing.
    """

    pins: tuple[tuple[str, str], ...]
    moved: tuple[str, ...]
    plan: Outcome
    pinned: Outcome
    bound: float
    decisive: tuple[Decisive, ...]
    objective: str
    currency: str
    batch: int
    problem: Problem
    left_out: str = ""

    @property
    def change(self) -> float:
        """Return by which part of the plan's number the one with the pins is worse; below 0 where it is better."""
        return -OBJECTIVES[self.objective].better_by(self.plan.value, self.pinned.value)

    @property
    def is_proven(self) -> bool:
        """Whether no plan with the pins is better than the one found."""
        return self.bound >= self.pinned.value * (1 - _SAME)


def pin_cost(
    posed: PosedAgain,
    pins: Sequence[tuple[str, str]],
    *,
    allow_stale: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
) -> PinCost:
    """Return what it would cost to keep to pins.

    Args:
        posed: The plan and the problem of today.
        pins: (pattern, device type): layers whose name or kind matches go to that type; the last match wins.
        allow_stale: Answer with today's numbers for a plan that was made from another model, pool or options.
        time_limit_s: Most seconds of the search.

    Raises:
        UnknownNameError: for a pattern that matches no layer, or an unknown device type.
        InfeasibleError: where no plan keeps to the pins, with what would help; or where none was found in time.
        StalePlanError: where the plan does not fit the model, or was made from something else.
    """
    placement = posed.fitting(allow_stale=allow_stale)
    draft = posed.draft
    goal = replace(draft.request, pins=(*draft.request.pins, *pins))
    pinned = pose_problem(draft.layers, draft.costs, draft.times, goal)
    problem = replace(posed.problem, allowed=posed.problem.allowed | pinned.allowed)
    kept = pinned.allowed[np.arange(len(placement.types)), list(placement.types)]
    found = deal_alike(pinned, Exact()(pinned, seed=draft.request.seed, time_limit_s=time_limit_s))
    pricing = pricing_of(posed)
    others = _elsewhere(pinned, found.placement, time_limit_s)
    return PinCost(
        pins=tuple(pins),
        moved=tuple(name for name, stays in zip(problem.layer_names, kept, strict=True) if not stays),
        plan=outcome_of_detail(problem, placement, detail_today(posed, placement)),
        pinned=outcome_of(problem, found.placement, pricing),
        bound=found.bound,
        decisive=what_decides(problem, placement, [others], pricing)[0],
        objective=problem.objective,
        currency=problem.currency,
        batch=problem.batch,
        problem=problem,
        left_out=NOT_IN_THE_BOUND if _has_servers(posed, found.placement, pricing) else "",
    )


def _has_servers(posed: PosedAgain, pinned: Placement, pricing: Pricing) -> bool:
    """Whether the plan, or the one with the pins, needs parameter servers."""
    needed = pricing.servers is not None and pricing.servers.cores(detail(posed.problem, pinned).stages)
    return bool(posed.plan.parameter_servers.count or needed)


def _elsewhere(pinned: Problem, best: Placement, time_limit_s: float) -> list[Placement]:
    """Return the best plan with the pins, and those that are the best where a bandwidth or a price is another."""
    found, deadline = {best: None}, Deadline.after(time_limit_s)
    for lever in levers(pinned):
        factors = (1 / _ELSEWHERE, _ELSEWHERE) if lever.name.startswith("price") else (_ELSEWHERE,)
        if lever.name.startswith(("price", "bandwidth", EVERY_BANDWIDTH)):
            for factor in factors:
                if deadline.left_s() > 0:
                    with suppress(InfeasibleError):  # not within the time: one plan less to compare with
                        problem = lever.scaled(pinned, factor)
                        found[Exact()(problem, time_limit_s=deadline.left_s()).placement] = None
    return list(found)
