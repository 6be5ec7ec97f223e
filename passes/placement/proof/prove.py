"""The exact search for whatever objective a problem has; values and bounds are the objective's own.

Where pairs of types have links of their own and values skip stages, segments bound what stages cost but do not tell it
(``linked_chain.py``); as long as there are few placements, all of them are evaluated instead.

Left out: the searches (``range_search.py`` by way of ``coarse_to_fine.py``, ``fixed_time.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain as chain_from

import numpy as np

from heterps_compile.cost.evaluate import evaluate, to_arrays, to_placement
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.errors import InputError
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.enumeration import every_placement, placement_count
from heterps_compile.passes.placement.geometry import Chain

from .coarse_to_fine import search_all
from .effort import EFFORT, Effort
from .fixed_time import FixedTimeSearch
from .linked_chain import LinkedChain, has_near_readers, linked_segment_count
from .linked_search import LinkedSearch
from .range_search import RangeSearch
from .trivial_bounds import per_million_samples, trivial_bound


@dataclass(frozen=True, slots=True)
class Proof:
    """How far an exact search came.

    Attributes:
        placement: The best it came upon; None where there was none.
        best: Its value, inf without one.
        bound: A lower bound on the value of every placement; inf where it is proven that none is feasible.
        evaluations: Placements evaluated.
    """

    placement: Placement | None
    best: float
    bound: float
    evaluations: int

    @property
    def is_complete(self) -> bool:
        """Whether nothing better can exist."""
        return self.bound >= self.best


def prove(
    problem: Problem,
    deadline: Deadline,
    starts: Sequence[Placement] = (),
    effort: Effort = EFFORT,
    *,
    tells: bool = False,
) -> Proof:
    """Search for the optimum from some placements, to the proof or to the deadline.

    Args:
        problem: What to place.
        deadline: When to stop.
        starts: Placements to begin from.
        effort: How hard to try.
        tells: Whether the caller of the compilation is told of bounds, as they hold for all that it asked for.

    Raises:
        InputError: for the latency of training: a segment's cost does not tell how long it synchronises.
    """
    if problem.objective == "latency" and np.any(problem.sync_s > 0):
        raise InputError(
            "the objective 'latency' is for inference, where nothing synchronises; this problem has sync_s"
        )
    if deadline.left_s() <= 0:
        return _at_once(problem, starts)
    chain = Chain(problem)
    if not (chain.is_exact or has_near_readers(chain)) and placement_count(problem) <= effort.links.most_enumerated:
        return _enumerate(problem, deadline, starts)
    is_cost = problem.objective == "cost"
    search: RangeSearch | LinkedSearch | None = None
    if is_cost and chain.is_exact:
        search = search_all(problem, deadline, starts, effort, tells=tells)
    elif not chain.is_exact and (is_cost or OBJECTIVES[problem.objective].sums_at_floor):
        search = LinkedSearch(problem, deadline, starts, effort)
        search.run()
    if search is not None:
        best, bound = search.best, search.bound
        if is_cost:
            best, bound = per_million_samples(problem, best), per_million_samples(problem, bound)
        return Proof(search.placement, best, best if search.bound >= search.best else bound, search.evaluations)
    is_listed = not chain.is_exact and linked_segment_count(chain) <= effort.links.most_segments
    timed = FixedTimeSearch(LinkedChain(chain) if is_listed else chain, deadline, starts, effort)
    timed.tells = tells
    timed.run()
    return Proof(timed.placement, timed.best, timed.bound, timed.evaluations)


def _at_once(problem: Problem, starts: Sequence[Placement]) -> Proof:
    """Price the given placements, and bound the others by computation alone, as where no time is left."""
    bound = trivial_bound(problem)
    values = evaluate(problem, *to_arrays(list(starts))).values if starts else np.array([np.inf])
    best = int(np.argmin(values))
    found = starts[best] if np.isfinite(values[best]) else None
    return Proof(found, float(values[best]), min(bound, float(values[best])), len(starts))


def _enumerate(problem: Problem, deadline: Deadline, starts: Sequence[Placement]) -> Proof:
    """Evaluate every placement, the given ones first; stopped early, nothing is proven."""
    batches = chain_from([to_arrays(list(starts))] if starts else [], every_placement(problem))
    best, placement, evaluations = np.inf, None, 0
    for types, cuts in batches:
        values = evaluate(problem, types, cuts).values
        evaluations += len(values)
        row = int(np.argmin(values))
        if values[row] < best:
            best, placement = float(values[row]), to_placement(types[row], cuts[row])
        if deadline.left_s() < 0:
            return Proof(placement, best, 0.0, evaluations)
    return Proof(placement, best, best, evaluations)
