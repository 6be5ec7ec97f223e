"""The best step over the orders of layers that plans are searched in, for every command that looks for one.

The search over steps keeps an order of the layers. It runs in the orders that a caller names, and in that of whole
branches (``placement/orders/branch_order.py``); the best plan of them all is the answer, and the order that it takes
the layers in comes with it.

Not covered: the search in one order (``placement/steps/``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from heterps_compile.cost.memory import ALWAYS, stage_memory
from heterps_compile.cost.own_work import own_work
from heterps_compile.cost.problem import Placement
from heterps_compile.passes.deadline import Deadline
from heterps_compile.schedule.step_problem import StepProblem, step_problem
from heterps_compile.sync_rules.rules import USUAL

from .drafts import Posed, in_order
from .placement.orders.branch_order import branch_order
from .placement.steps.minimise_step import StepsFound, closed, search_steps
from .placement.steps.step_closing import CLOSING_EFFORT, ClosingEffort
from .placement.steps.step_plans import SteppedPlan
from .placement.steps.step_search import STEP_EFFORT, StepEffort
from .within_memory import may_lack_memory

BRANCH_NOTE = "the plan takes the layers branch after branch, which makes a shorter step than the orders searched first"


@dataclass(frozen=True, slots=True)
class OrderedSteps:
    """The best steps of several orders of the layers.

    Attributes:
        draft: In the order that the best plan takes the layers in.
        of: Its steps.
        found: The plan, and a bound of all plans in that order.
        others: Steps in the other orders that were searched.
    """

    draft: Posed
    of: StepProblem
    found: StepsFound
    others: tuple[StepProblem, ...] = ()


def steps_of(draft: Posed) -> StepProblem:
    """Return what steps of the plans of a draft's problem are made of."""
    optimizer, recompute = draft.request.trains_with, draft.recompute
    memory, problem = None, draft.problem
    if recompute == ALWAYS:  # which every load adds by itself
        problem = replace(problem, compute_s=draft.times.compute_s)
    if recompute == ALWAYS or may_lack_memory(draft):
        memory = cache(partial(stage_memory, draft.layers, draft.costs, optimizer=optimizer, recompute=recompute))
    own = None
    if optimizer is not None:
        rules = [each.form.rule for each in problem.rules] if problem.rules is not None else [USUAL]
        own = own_work(draft.layers, draft.costs, draft.times, optimizer, rules)
    return step_problem(problem, draft.times, draft.cluster, memory, own, is_divisible=draft.graph.is_divisible)


def in_branch_order(draft: Posed) -> Posed:
    """Return a draft with its layers branch after branch; the draft itself if they are already."""
    return in_order(draft, branch_order(draft.problem, draft.orders))


def best_steps(
    starts: Sequence[tuple[Posed, Sequence[Placement]]],
    deadline: Deadline,
    *,
    known: Sequence[SteppedPlan] = (),
    seed: int = 0,
    least: float = -float("inf"),
    effort: StepEffort = STEP_EFFORT,
    closing: ClosingEffort = CLOSING_EFFORT,
) -> OrderedSteps:
    """Find the best step over several orders of the layers, and bound the plans in the order that has it.

    Args:
        starts: Drafts in these orders, of equal plans the earlier's is taken, each with placements to begin from. The
            order of whole branches of the last one follows them.
        deadline: When to stop.
        known: Plans to begin with in the order of the last one.
        seed: Of whatever is drawn.
        least: A value that no plan is below, in whatever order.
        effort: How hard to search in each order.
        closing: How hard to bound.
    """
    own = starts[-1][0]
    drafts: dict[int, tuple[Posed, list[Placement]]] = {}
    for draft, placements in (*starts, (in_branch_order(own), ())):
        drafts.setdefault(id(draft), (draft, []))[1].extend(placements)
    searched = list[OrderedSteps]()
    for draft, placements in drafts.values():
        of, plans = steps_of(draft), known if draft is own else ()
        found = search_steps(of, placements, deadline, known=plans, seed=seed, least=least, effort=effort)
        searched.append(OrderedSteps(draft, of, found))
    best = searched[0]
    for each in searched[1:]:
        best = each if each.found.is_better_than(best.found) else best
    is_branched = best.found.plan is not None and all(best.draft is not draft for draft, _ in starts)
    found = closed(best.of, best.found, deadline, least, closing)
    others = [each for each in searched if each is not best]
    evaluations = found.evaluations + sum(each.found.evaluations for each in others)
    notes = (*found.notes, *([BRANCH_NOTE] if is_branched else []))
    found = replace(found, evaluations=evaluations, notes=notes)
    return replace(best, found=found, others=tuple(each.of for each in others))
