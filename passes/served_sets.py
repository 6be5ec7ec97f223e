"""Which of the tables that units could hold lie on servers: none, all, or those of at least some size.

A table costs servers its bytes, and a stage a fixed time and the rows of a batch; held, it costs a stage its bytes. So
it is the large ones that go to servers, and the sets that are searched are these: every size of a table is a bound from
which on tables lie there. Each set makes a problem of its own.

All 2^n sets of n tables are bounded together first: a problem in which every open table costs the least of held and
served in every respect (time, memory, gradients to sum), with one server at least, is a relaxation of all sets but the
empty one. Where its proven bound is no lower than the plan with all tables held, that plan is the best over every set,
and nothing else is searched. Else the certificate holds for the sets by size, and a note says so, with the bound of
all.

Left out: tables that must lie on servers, which are in every set (``pose_problem.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.evaluate import ranges_of
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Floats, Problem
from heterps_compile.cost.served_tables import Table
from heterps_compile.errors import InfeasibleError
from heterps_compile.units import counted

from .deadline import Deadline
from .drafts import Placed, Posed
from .placement.incumbent import Incumbent
from .placement.orders.forest_bound import forest_bound
from .placement.orders.order_search import search_orders
from .placement.proof.prove import prove
from .placement.proof.trivial_bounds import GAP
from .pose_problem import pose

_MOST_SETS = 12
_SHARE = 0.5  # of a time limit, for the first set

Place = Callable[[Posed, float | None], Placed]
"""Places the layers of a draft, in so many seconds; None for no limit."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Proven of the plans of some sets: with the layers in one order, and in all orders."""

    order: tuple[str, ...]
    in_order: float
    in_all: float


def place_over_sets(draft: Posed, place: Place, proof_s: float) -> Placed:
    """Return the best plan over the sets of open tables on servers, with a bound that holds for all of them.

    Args:
        draft: With its open tables held.
        place: Places the layers of one set.
        proof_s: Most seconds for the bounds of all sets that are not placed.

    Raises:
        InfeasibleError: where no set has a plan, with the reason of the one with all tables held.
    """
    limit_s = draft.request.time_limit_s
    if not draft.open_tables:
        return place(draft, limit_s)
    deadline, tables = Deadline.after(limit_s), draft.open_tables
    held = _tried(draft, place, None if limit_s is None else _SHARE * limit_s)
    best = held if isinstance(held, Placed) else None
    base = draft if best is None else best
    whole = pose(base, tables)
    proof_deadline = deadline.within(proof_s)
    every = _bounds(base, relaxed_problem(base.problem, whole.problem), best, proof_deadline)
    if best is not None and every.in_order >= best.search.value * (1 - GAP):
        return _with_bounds(best, [every])
    sets, known = sets_by_size(tables), [] if best is None else [_proven(best)]
    for chosen in sets[:_MOST_SETS]:
        one = whole if len(chosen) == len(tables) else pose(base, chosen)
        bounds = _bounds(one, one.problem, best, proof_deadline)
        if best is not None and bounds.in_order >= best.search.value * (1 - GAP):
            known.append(bounds)
            continue
        found = _tried(one, place, None if limit_s is None else max(0.0, deadline.left_s()))
        known.append(_proven(found) if isinstance(found, Placed) else bounds)
        if isinstance(found, Placed) and (best is None or found.search.value < best.search.value * (1 - GAP)):
            best = found
    if best is None:
        raise held if isinstance(held, InfeasibleError) else InfeasibleError("no set of tables has a plan")
    best = _with_bounds(best, known)
    note = _what_is_open(best, tables, min(len(sets), _MOST_SETS), every)
    return replace(best, search=replace(best.search, notes=(*best.search.notes, note)))


def relaxed_problem(held: Problem, served: Problem) -> Problem:
    """Return a problem of which no set of open tables, but the empty one, has a plan of a lower value.

    Args:
        held: With the open tables in their stages.
        served: With all of them on servers.
    """

    def least(name: str) -> Floats:
        return np.asarray(np.minimum(getattr(held, name), getattr(served, name)), np.float64)

    return replace(
        held,
        compute_s=least("compute_s"),
        data_s=least("data_s"),
        sync_s=least("sync_s"),
        rules=None
        if held.rules is None or served.rules is None
        else tuple(one.least(other) for one, other in zip(held.rules, served.rules, strict=True)),
        weight_bytes=least("weight_bytes"),
        activation_bytes=least("activation_bytes"),
        shared_s=None if held.shared_s is None or served.shared_s is None else least("shared_s"),
        served_s=np.zeros(held.layer_count) if held.served_s is None else held.served_s,
        server_price_per_hour=served.server_price_per_hour,
        least_servers=max(1, held.least_servers),
    )


def sets_by_size(tables: Sequence[Table]) -> list[list[Table]]:
    """Return the sets of tables of at least a size, for every size; all tables first, then the largest alone."""
    sizes = sorted({table.size_bytes for table in tables})
    order = [sizes[0], *reversed(sizes[1:])]
    return [[table for table in tables if table.size_bytes >= size] for size in order]


def _tried(draft: Posed, place: Place, limit_s: float | None) -> Placed | InfeasibleError:
    try:
        return place(draft, limit_s)
    except InfeasibleError as error:
        return error


def _bounds(draft: Posed, problem: Problem, best: Placed | None, deadline: Deadline) -> _Bounds:
    """Bound every plan of a problem with servers, as far as it takes to rule out that one is better than the best."""
    below = np.inf if best is None else best.search.value
    enough, orders = below * (1 - GAP), draft.orders
    in_all = min(forest_bound(each.problem) for each in ranges_of(problem))
    if in_all >= enough:
        return _Bounds(draft.problem.layer_names, in_all, in_all)
    proof = prove(problem, deadline, incumbent=Incumbent(problem, below))
    if proof.bound >= enough and not orders.is_fixed:
        in_all = max(in_all, search_orders(problem, orders, [], deadline, seed=draft.request.seed).bound)
    in_all = proof.bound if orders.is_fixed else min(proof.bound, in_all)
    return _Bounds(draft.problem.layer_names, proof.bound, in_all)


def _proven(placed: Placed) -> _Bounds:
    return _Bounds(placed.problem.layer_names, placed.search.bound, placed.search.bound_of_all_orders)


def _with_bounds(placed: Placed, known: Sequence[_Bounds]) -> Placed:
    """Return a plan with bounds that hold for other sets too; what is proven in another order is not of its own."""
    search, order = placed.search, placed.problem.layer_names
    in_order = min(search.bound, *(each.in_order if each.order == order else each.in_all for each in known))
    in_all = min(search.bound_of_all_orders, in_order, *(each.in_all for each in known))
    return replace(placed, search=replace(search, bound=in_order, bound_of_all_orders=in_all))


def _what_is_open(placed: Placed, tables: Sequence[Table], searched: int, every: _Bounds) -> str:
    """Say which sets of tables the proven bound holds for, and what is proven of all others."""
    problem, count, bound = placed.problem, len(tables), min(every.in_all, placed.search.bound)
    choices = f"{2**count:,}" if count <= 20 else f"2^{count}"
    said = OBJECTIVES[problem.objective].describe(bound, problem.batch, problem.currency) if bound > 0 else "none"
    return (
        f"{counted(count, 'table')} may lie in stages or on servers: the bound holds for {searched + 1} sets on "
        f"servers (none, and all of at least a size); for all {choices} sets, in any order of the layers, it is {said}"
    )
