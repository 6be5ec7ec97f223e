"""Choose the order that a plan takes the layers in: the compiler's own, or one in which a better plan was found.

The own order is kept where no other has a plan that is better by more than rounding, so that plans of one worth are one
plan.

Left out: the search (``order_search.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.finders import ORDERS
from heterps_compile.cost.layer_orders import LayerOrders, reordered
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.proof.certificate import better_of, certify, found_note
from heterps_compile.passes.placement.proof.prove import prove
from heterps_compile.passes.placement.proof.trivial_bounds import GAP
from heterps_compile.progress import tell

from .order_search import ORDER_EFFORT, AllOrders, OrderEffort, search_orders


@dataclass(frozen=True, slots=True)
class BestOrder:
    """A plan, and the order that it takes the layers in.

    Attributes:
        order: Indices of layers; () for that of the problem.
        result: In that order; None where no order has a plan that was found.
        is_impossible: Whether it is proven that no order has one.
    """

    order: tuple[int, ...]
    result: SearchResult | None
    is_impossible: bool = False


def best_order(
    problem: Problem,
    orders: LayerOrders,
    method: str,
    result: SearchResult | None,
    time_limit_s: float,
    *,
    is_proven: bool = False,
    seed: int = 0,
    starts: Sequence[Placement] = (),
    effort: OrderEffort = ORDER_EFFORT,
) -> BestOrder:
    """Return the best plan of all orders that is found in the time, with what is proven of it.

    Args:
        problem: In one of its orders.
        orders: Its orders.
        method: Name of the method that ran.
        result: The best plan in the order of the problem; None where none was found.
        time_limit_s: For the search over orders and for what is proven of the order that is chosen.
        is_proven: Whether the bound of that plan, in the order of the problem, is the best that a proof will find.
        seed: Of whatever is drawn.
        starts: Other placements to begin with, such as an old plan's.
        effort: How hard to try.
    """
    if orders.is_fixed:
        return _in_one_order(problem, result, time_limit_s, starts, is_proven=is_proven)
    started, deadline = now_s(), Deadline.after(time_limit_s)
    tell("searching the orders of the layers")
    known = [] if result is None else [result.placement]
    found = search_orders(problem, orders, [*known, *starts], deadline, effort, seed=seed)
    order, better = _better((problem, orders), found, method, result, deadline)
    if better is None:
        return BestOrder((), None, found.bound == float("inf"))
    spent_s = now_s() - started
    better = replace(better, search_s=better.search_s + spent_s, evaluations=better.evaluations + found.evaluations)
    if found.bound >= better.value * (1 - GAP):
        return BestOrder(order, replace(better, bound=better.value, bound_of_all_orders=better.value))
    certified = better
    if order or not is_proven:
        moved = reordered(problem, orders, order) if order else problem
        certified = certify(moved, better, deadline.left_s(), () if order else starts)
    bound = max(certified.bound, min(found.bound, certified.value))  # what holds for all orders holds for this one
    return BestOrder(order, replace(certified, bound=bound, bound_of_all_orders=min(found.bound, bound)))


def _in_one_order(
    problem: Problem, result: SearchResult | None, time_limit_s: float, starts: Sequence[Placement], *, is_proven: bool
) -> BestOrder:
    """Prove what can be of the only order that there is."""
    if result is None:
        return BestOrder((), None)
    certified = result if is_proven else certify(problem, result, time_limit_s, starts)
    return BestOrder((), replace(certified, bound_of_all_orders=certified.bound))


def _better(
    posed: tuple[Problem, LayerOrders], found: AllOrders, method: str, result: SearchResult | None, deadline: Deadline
) -> tuple[tuple[int, ...], SearchResult | None]:
    """Return the better one of a result and of what was found in all orders, with its order."""
    problem, orders = posed
    if found.placement is None:
        return (), result
    placement = Placement(found.placement.types, found.placement.cuts)
    moved = reordered(problem, orders, found.order) if found.order else problem
    # what the search over orders leaves out
    if problem.link_seconds_per_byte is not None or problem.rented_together is not None:
        proof = prove(moved, deadline, [placement])
        placement = placement if proof.placement is None else proof.placement
    value = evaluate_one(moved, placement)
    if result is None:
        if value == float("inf"):
            return (), None
        return found.order, SearchResult(placement, value, -float("inf"), method, 0, 0, 0.0, (), ORDERS)
    if not found.order:
        return (), better_of(problem, result, placement, ORDERS)
    if not value < result.value * (1 - GAP):
        return (), result
    note = found_note(problem, result, value, ORDERS)
    own = replace(result, bound=-float("inf"))  # which was of another order
    return found.order, replace(own, placement=placement, value=value, found_by=ORDERS, notes=(*result.notes, note))
