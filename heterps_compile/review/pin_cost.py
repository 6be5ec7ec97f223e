"""What it would cost to put layers on device types where the plan does not have them, and which number decides that.

The plan's problem is posed again with the pins, which come after those of the plan, and solved by the exact search in
bounded time. The price is that of the best plan with the pins that takes the layers in the order of the plan's stages;
stopped early, it lies between a bound and a plan. A compilation with the pins says whether another order has a better
one. What would make the pins cost nothing is asked of that plan, and of those that are the best with other
bandwidths and prices.

Left out: the levers (``what_decides.py``), the looks of it (``pin_cost_words.py``).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.pose import pose_problem
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.cost.server_cost import Pricing
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.drafts import Posed
from heterps_compile.passes.place_layers import PlaceLayers
from heterps_compile.passes.placement.deal_alike import deal_alike
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.passes.placement.steps.minimise_step import closed, search_steps, with_best_step
from heterps_compile.passes.step_orders import steps_of
from heterps_compile.schedule.load import with_least_activations

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
        in_any_order: Value of the best plan found with the pins in any order of the layers.
        bound_of_all_orders: No plan with the pins has a lower value, in whatever order it takes the layers.
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
    in_any_order: float = float("inf")
    bound_of_all_orders: float = -float("inf")

    @property
    def change(self) -> float:
        """Return by which part of the plan's number the one with the pins is worse; below 0 where it is better."""
        return -OBJECTIVES[self.objective].better_by(self.plan.value, self.pinned.value)

    @property
    def is_proven(self) -> bool:
        """Whether no plan with the pins that keeps the order of the layers is better than the one found."""
        return self.bound >= self.pinned.value * (1 - _SAME)

    @property
    def is_proven_for_all_orders(self) -> bool:
        """Whether none is, in whatever order it takes the layers."""
        return self.bound_of_all_orders >= self.pinned.value * (1 - _SAME)


def pin_cost(
    posed: PosedAgain, pins: Sequence[tuple[str, str]], *, allow_stale: bool = False, time_limit_s: float = TIME_LIMIT_S
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
    pinned = with_least_activations(
        pose_problem(draft.layers, draft.costs, draft.times, goal), is_divisible=draft.graph.is_divisible
    )
    problem = replace(posed.problem, allowed=posed.problem.allowed | pinned.allowed)
    kept = pinned.allowed[np.arange(len(placement.types)), list(placement.types)]
    goal = replace(goal, method=Exact.name, time_limit_s=time_limit_s)
    of_orders = PlaceLayers(beside_s=0.0)(replace(draft, problem=pinned, request=goal)).search
    try:
        found = _in_this_order(replace(draft, problem=pinned), of_orders, time_limit_s)
    except InfeasibleError as error:
        raise InfeasibleError(
            f"{error}; that is of plans in the order of the plan's stages: another order of the layers has one, which "
            "compiling again with the pins finds"
        ) from error
    pricing, in_any_order = pricing_of(posed), min(of_orders.value, found.value)
    others = _elsewhere(pinned, found.placement, time_limit_s)
    return PinCost(
        pins=tuple(pins),
        moved=tuple(name for name, stays in zip(problem.layer_names, kept, strict=True) if not stays),
        plan=outcome_of_detail(problem, placement, detail_today(posed, placement)),
        pinned=_outcome(problem, found, pricing),
        bound=found.bound,
        decisive=what_decides(problem, placement, [others], pricing)[0],
        objective=problem.objective,
        currency=problem.currency,
        batch=problem.batch,
        problem=problem,
        left_out=NOT_IN_THE_BOUND if _has_servers(posed, found.placement, pricing) else "",
        in_any_order=found.value if in_any_order >= found.value * (1 - _SAME) else in_any_order,
        bound_of_all_orders=found.bound_of_all_orders,
    )


def _in_this_order(draft: Posed, of_orders: SearchResult, time_limit_s: float) -> SearchResult:
    """Search the best plan in the order of a draft, with the bound of all orders.

    Raises:
        InfeasibleError: where this order has none, or none was found.
    """
    problem, seed, deadline = draft.problem, draft.request.seed, Deadline.after(time_limit_s)
    found = deal_alike(problem, Exact()(problem, seed=seed, time_limit_s=time_limit_s))
    if draft.request.minimises_step:
        of = steps_of(draft)
        steps = closed(of, search_steps(of, [found.placement], deadline, seed=seed), deadline)
        found = with_best_step(of, found, steps, is_only_order=draft.orders.is_fixed)
    return replace(found, bound_of_all_orders=min(of_orders.bound_of_all_orders, found.value))


def _outcome(problem: Problem, found: SearchResult, pricing: Pricing) -> Outcome:
    """Return what the plan with the pins is worth."""
    if found.step is None:
        return outcome_of(problem, found.placement, pricing)
    priced = detail(problem, found.placement, np.array(found.step.units, np.float64))
    of_step = replace(priced, value=found.value, throughput=problem.batch / found.step.step_s)
    return outcome_of_detail(problem, found.placement, of_step)


def _has_servers(posed: PosedAgain, pinned: Placement, pricing: Pricing) -> bool:
    """Whether the plan, or the one with the pins, needs parameter servers."""
    needed = pricing.servers is not None and pricing.servers.cores(detail(posed.problem, pinned).stages)
    return bool(posed.plan.parameter_servers.beside(posed.plan.tables).count or needed)


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
