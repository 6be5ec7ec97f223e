"""Searches of problems with tables on servers: each of the problems without servers that such a problem is, in turn.

A problem with servers is one or two problems without (``cost/table_servers.py``). What a search finds of each is put
together here: the better plan, the lower bound.

Left out: the searches, which see problems without servers alone.
"""

from dataclasses import replace

import numpy as np

from heterps_compile.cost.evaluate import ranges_of
from heterps_compile.cost.layer_orders import LayerOrders
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.cost.table_servers import extended, stripped
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import Deadline

from .method import PlacementMethod
from .proof.trivial_bounds import trivial_bound


def run_in_ranges(
    method: PlacementMethod,
    problem: Problem,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    warm_start: Placement | None = None,
) -> SearchResult:
    """Run a method on every range of a problem with servers, and return the best of what it finds.

    Raises:
        InfeasibleError: where it finds no plan in any, with the reason of the first.
    """
    deadline, ranges = Deadline.after(time_limit_s), ranges_of(problem)
    best: SearchResult | None = None
    faults: list[InfeasibleError] = []
    bound, evaluations, search_s = np.inf, 0, 0.0
    for left, each in zip(range(len(ranges), 0, -1), ranges, strict=True):
        start = None if warm_start is None else extended(problem, warm_start)
        if best is not None and trivial_bound(each.problem) >= best.value:
            continue
        try:
            found = method(
                each.problem,
                seed=seed,
                time_limit_s=None if time_limit_s is None else max(0.0, deadline.left_s()) / left,
                warm_start=start,
            )
        except InfeasibleError as error:  # it may have been the time that did not suffice
            faults.append(error)
            bound = min(bound, trivial_bound(each.problem))
            continue
        bound, evaluations = min(bound, found.bound), evaluations + found.evaluations
        search_s += found.search_s
        if best is None or found.value < best.value:
            best = replace(found, placement=stripped(found.placement))
    if best is None:
        raise faults[0]
    return replace(best, bound=min(bound, best.value), evaluations=evaluations, search_s=search_s)


def orders_with_servers(orders: LayerOrders) -> LayerOrders:
    """Return the orders of layers with the servers behind all of them."""
    read = {layer for before in orders.before for layer in before}
    last = tuple(layer for layer in range(len(orders.before)) if layer not in read)
    return replace(orders, before=(*orders.before, last))
