"""Groups of several degrees of tensor parallelism share the units of their device type.

A degree of a type is a type of the search, with a limit of replicas of its own. The search first has every degree on
all units, which bounds the plans there are; where a plan then takes more units than a type has, it branches on a degree
t of which the plan has n replicas::

    fewer than n replicas of t      or      n at least, so that others share the units that these leave

The branch of the lowest bound comes first, and its plan is the best one as soon as its units are there.

Not covered: which branch takes most units away.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.problem import Ints, Placement, Problem, SearchResult
from heterps_compile.errors import InfeasibleError
from heterps_compile.problem_file.given_problem import GivenProblem
from heterps_compile.problem_file.pose_given import PosedGiven

ONE_DEGREE = "one degree of tensor parallelism of each type was searched"

_MOST_BRANCHES = 100

Search = Callable[[Problem], SearchResult | InfeasibleError]


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """Limits [T] of replicas, the fewest [T] that are counted on, and what was found within."""

    limits: Ints
    least: Ints
    found: SearchResult


def search_shares(
    given: GivenProblem, posed: PosedGiven, search: Search
) -> tuple[SearchResult | InfeasibleError, PosedGiven]:
    """Return the best plan whose units are there, with the arrays that it was found in.

    Args:
        given: The problem.
        posed: Its arrays, each degree with all units of its type.
        search: Searches arrays with other limits.
    """
    root, number, unproven = posed.problem, count(1), [np.inf]
    found = search(root)
    if isinstance(found, InfeasibleError):
        return found, posed
    open_branches = [(found.value, 0, _Branch(root.max_units, np.zeros_like(root.max_units), found))]
    for _ in range(_MOST_BRANCHES):
        if not open_branches:
            break
        value, _, branch = heapq.heappop(open_branches)
        own = _limited(posed, branch.limits)
        halves = _halves(given, own, branch)
        if halves is None:
            bound = min([branch.found.bound, *unproven, *(other.found.bound for _, _, other in open_branches)])
            return replace(branch.found, bound=min(bound, value)), own
        for limits, least in halves:
            found = search(_limited(posed, limits).problem)
            if isinstance(found, SearchResult):
                heapq.heappush(open_branches, (found.value, next(number), _Branch(limits, least, found)))
            else:  # whose time may have been up
                unproven.append(branch.found.bound)
    return _of_one_degree(posed, search, min([*unproven, *(other.found.bound for _, _, other in open_branches)]))


def _limited(posed: PosedGiven, limits: Ints) -> PosedGiven:
    """Replace limits of replicas; 0 forbids the type."""
    allowed = posed.problem.allowed & (limits > 0)
    compute_s = np.where(allowed, posed.problem.compute_s, np.inf)
    limited = replace(posed.problem, max_units=np.maximum(limits, 1), allowed=allowed, compute_s=compute_s)
    return replace(posed, problem=limited)


def _used_of(problem: Problem, placement: Placement) -> Ints:
    """Count the replicas [T] of every type."""
    types = [placement.types[first] for first in placement.starts()]
    replicas = [stage.replicas for stage in detail(problem, placement).stages]
    return np.bincount(types, weights=replicas, minlength=problem.type_count).astype(np.int64)


def _halves(given: GivenProblem, posed: PosedGiven, branch: _Branch) -> list[tuple[Ints, Ints]] | None:
    """Split limits and least replicas in two, None if all units exist."""
    used = _used_of(posed.problem, branch.found.placement)
    degrees = np.array([group.tensor_parallel for group in posed.groups])
    for device in dict.fromkeys(group.device for group in posed.groups):
        units = given.known_pool.device_type(device).max_units
        own = np.array([group.device == device for group in posed.groups])
        if (degrees * used)[own].sum() <= units:
            continue
        type_ = int(np.argmax(np.where(own & (used > branch.least), degrees * used, -1)))
        fewer, least, others = branch.limits.copy(), branch.least.copy(), branch.limits.copy()
        fewer[type_], least[type_] = used[type_] - 1, used[type_]
        for other in np.flatnonzero(own):
            taken = (degrees * least)[own].sum() - degrees[other] * least[other]
            others[other] = min(others[other], (units - taken) // degrees[other])
        return [(fewer, branch.least), *([(others, least)] if (others >= least)[own].all() else [])]
    return None


def _of_one_degree(
    posed: PosedGiven, search: Search, bound: float
) -> tuple[SearchResult | InfeasibleError, PosedGiven]:
    """Search with one degree per type, which a note of the result names."""
    names = [group.device for group in posed.groups]
    is_first = np.array([name not in names[:at] for at, name in enumerate(names)])
    own = _limited(posed, posed.problem.max_units * is_first)
    found = search(own.problem)
    if isinstance(found, InfeasibleError):
        why = f"{found}; that is of one degree of tensor parallelism of each type, and other degrees may have a plan"
        return InfeasibleError(why), own
    return replace(found, bound=min(found.bound, bound), notes=(*found.notes, ONE_DEGREE)), own
