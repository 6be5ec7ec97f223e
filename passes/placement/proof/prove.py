"""The exact search for whatever objective a problem has; values and bounds are the objective's own.

Where pairs of types have links of their own and values skip stages, segments bound what stages cost but do not tell it
(``linked_chain.py``); as long as there are few placements, all of them are evaluated instead. Where units are rented
as whole machines, their counts are searched (``machine_search.py``).

Not covered: the searches (``time_search.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain as chain_from

import numpy as np

from heterps_compile.cost.evaluate import evaluate, ranges_of, slowest_batch_s, to_arrays, to_placement
from heterps_compile.cost.finders import PROOF
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.cost.table_servers import extended, stripped
from heterps_compile.errors import InputError
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.enumeration import every_placement, placement_count
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.incumbent import Incumbent

from .effort import EFFORT, Effort
from .linked_chain import has_near_readers
from .linked_search import LinkedSearch
from .machine_search import MachineSearch
from .time_search import TimeSearch, search_type
from .trivial_bounds import trivial_bound


@dataclass(frozen=True, slots=True)
class Proof:
    """How far an exact search came.

    Attributes:
        placement: The best it came upon; None where there was none, or none below the value of the incumbent.
        best: Its value; without one that of the incumbent, or inf.
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
    incumbent: Incumbent | None = None,
) -> Proof:
    """Search for the optimum from some placements, to the proof or to the deadline.

    Args:
        problem: What to place.
        deadline: When to stop.
        starts: Placements to begin from.
        effort: How hard to try.
        incumbent: The best plan that searches beside this one know of the same problem, or a value that a plan must be
            better than; what is found here is offered to it.

    Raises:
        InputError: for the latency of training: a segment's cost does not tell how long it synchronises.
    """
    if problem.objective == "latency" and np.any(problem.sync_s > 0):
        raise InputError(
            "the objective 'latency' is for inference, where nothing synchronises; this problem has sync_s"
        )
    if problem.served_s is not None:
        return _prove_served(problem, deadline, starts, effort, np.inf if incumbent is None else incumbent.value)
    incumbent = Incumbent(problem) if incumbent is None else incumbent
    if deadline.left_s() <= 0:
        return _at_once(problem, starts, incumbent)
    if problem.rented_together is not None:
        return _by_machines(problem, deadline, starts, effort, incumbent)
    chain = Chain(problem)
    if not (chain.is_exact or has_near_readers(chain)) and placement_count(problem) <= effort.links.most_enumerated:
        return _enumerate(problem, deadline, starts, incumbent)
    search: TimeSearch | LinkedSearch
    if chain.is_exact:
        search = search_type(problem)(chain, deadline, starts, effort=effort, incumbent=incumbent, tells=True)
    else:
        search = LinkedSearch(chain, deadline, starts, effort, incumbent)
    search.run()
    return Proof(incumbent.placement, incumbent.value, search.bound, search.evaluations)


def _prove_served(
    problem: Problem, deadline: Deadline, starts: Sequence[Placement], effort: Effort, below: float
) -> Proof:
    """Search each of the problems without servers that one with tables on servers is; the lower bound holds for it."""
    placement, best, bound, evaluations = None, below, np.inf, 0
    ranges = ranges_of(problem)
    for left, each in zip(range(len(ranges), 0, -1), ranges, strict=True):
        own = deadline.within(max(0.0, deadline.left_s()) / left)
        known = [extended(problem, start) for start in starts]
        # a batch that takes longer than the range allows is of no plan in it, and tells its search nothing
        is_beyond = problem.objective == "throughput" and best >= slowest_batch_s(each.problem)
        incumbent = Incumbent(each.problem, np.inf if is_beyond else best)
        for start, value in zip(known, evaluate(each.problem, *to_arrays(known)).values if known else (), strict=True):
            incumbent.offer(start, float(value), PROOF)
        proof = prove(each.problem, own, known, effort, incumbent=incumbent)
        evaluations += proof.evaluations
        found = incumbent.placement if proof.placement is None else proof.placement
        if found is not None and proof.best < best:
            placement, best = stripped(found), proof.best
        bound = min(bound, proof.bound)
    return Proof(placement, best, bound, evaluations)


def _by_machines(
    problem: Problem, deadline: Deadline, starts: Sequence[Placement], effort: Effort, incumbent: Incumbent
) -> Proof:
    """Search where some types are rented as whole machines, over how many there are of them."""

    def proved(relaxed: Problem, heard: Incumbent) -> tuple[Placement | None, float, int]:
        proof = prove(relaxed, deadline, (), effort, incumbent=heard)
        return proof.placement, proof.bound, proof.evaluations

    search = MachineSearch(problem, deadline, effort.most_machine_nodes, incumbent, proved)
    search.run(starts)
    return Proof(incumbent.placement, incumbent.value, search.bound, search.evaluations)


def _at_once(problem: Problem, starts: Sequence[Placement], incumbent: Incumbent) -> Proof:
    """Price the given placements, and bound the others by computation alone, as where no time is left."""
    bound = trivial_bound(problem)
    values = evaluate(problem, *to_arrays(list(starts))).values if starts else np.array([np.inf])
    best = int(np.argmin(values))
    if starts and np.isfinite(values[best]):
        incumbent.offer(starts[best], float(values[best]), PROOF)
    return Proof(incumbent.placement, incumbent.value, min(bound, incumbent.value), len(starts))


def _enumerate(problem: Problem, deadline: Deadline, starts: Sequence[Placement], incumbent: Incumbent) -> Proof:
    """Evaluate every placement, the given ones first; stopped early, nothing is proven."""
    batches = chain_from([to_arrays(list(starts))] if starts else [], every_placement(problem))
    evaluations = 0
    for types, cuts in batches:
        values = evaluate(problem, types, cuts).values
        evaluations += len(values)
        row = int(np.argmin(values))
        if values[row] < incumbent.value:
            incumbent.offer(to_placement(types[row], cuts[row]), float(values[row]), PROOF)
        if deadline.left_s() < 0:
            return Proof(incumbent.placement, incumbent.value, 0.0, evaluations)
    return Proof(incumbent.placement, incumbent.value, incumbent.value, evaluations)
