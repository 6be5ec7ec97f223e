"""Add units of other device types to the stages of a plan, as far as that makes it better.

From the best plan whose stages have one type each, and from one stage on all units, plans are changed one change at a
time, and the first change that helps is kept, until none does::

    stages     2 a  |  1 b         2 a  |  1 a + 1 b        a unit more, or fewer, or of another type in its place
                                   1 a  |  1 a + 1 b        a unit of another stage
                                   2 a + 1 b                two neighbours as one stage

The bound is that of the work: whatever types share a layer, the cheapest of them does it for the least.

Left out: the placement that it begins with; objectives that several types in a stage cannot help (``latency``,
``max-load``); the simulated step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from heterps_compile.cost.evaluate import detail, slowest_batch_s
from heterps_compile.cost.mixed_units import MixedPlacement, detail_of, worth_of
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.cost.segments import problem_tables
from heterps_compile.errors import InputError
from heterps_compile.passes.deadline import Deadline
from heterps_compile.progress import tell
from heterps_compile.units import format_seconds

from .proof.prove import prove
from .proof.trivial_bounds import GAP, trivial_bound
from .simple_plans import seed_placements

MIXABLE = ("cost", "price", "throughput")
"""Objectives that stages of several types can help."""

_BETTER = 1 - 1e-9  # relative, of what a change has to bring
_LITTLE = 1e-3  # of a batch; units that work on less are no help
_START_SHARE = 0.3  # of the time, for the fastest plan where none keeps the floor

_Standing = tuple[float, float, float]
"""By how much a plan exceeds its limits, its value, and the sum of its stages' times; the lower the better."""


@dataclass(frozen=True, slots=True)
class MixedFound:
    """Plans that were found.

    Attributes:
        plans: With their values, the best first; none where none keeps the limits.
        bound: No plan of the class has a lower value; inf where it is proven that none keeps the throughput floor.
        notes: Empty if no change improves a plan further; names the time limit if it ended the search.
    """

    plans: tuple[tuple[MixedPlacement, float], ...]
    bound: float
    notes: tuple[str, ...]

    @property
    def value(self) -> float:
        """Return the value of the best plan; inf without one."""
        return self.plans[0][1] if self.plans else np.inf


def mix_types(problem: Problem, start: Placement | None, time_limit_s: float | None = None) -> MixedFound:
    """Find plans whose stages may have units of several device types.

    Args:
        problem: What to place.
        start: The best placement whose stages have one type each; None where none keeps the limits.
        time_limit_s: None for no limit.

    Raises:
        InputError: for an objective that stages of several types cannot help.
    """
    if problem.objective not in MIXABLE:
        raise InputError(
            f"stages of several device types do not help the objective {problem.objective!r}; ask for "
            f"{', '.join(MIXABLE)}, or leave --mixed-stages out"
        )
    tell("adding units of other device types to stages")
    deadline, plans = Deadline.after(time_limit_s), dict[MixedPlacement, float]()
    finished = [_improve(problem, begun, plans, deadline) for begun in _starts(problem, start, deadline)]
    ordered = sorted(plans.items(), key=lambda plan: plan[1])  # of equal ones the first that was found
    return MixedFound(tuple(ordered), bound_of_work(problem), () if all(finished) else (_stopped(time_limit_s),))


def _stopped(limit_s: float | None) -> str:
    limit = "its time limit" if limit_s is None else f"its time limit of {format_seconds(limit_s)}"
    return f"the search for stages of several device types ended at {limit}; a better plan may exist"


def bound_of_work(problem: Problem) -> float:
    """Bound the value of every plan, of one type a stage or several, by the work of its layers on their best types."""
    usable, price = problem_tables(problem).usable, problem.price_per_hour
    mean_s = np.where(usable, problem.compute_s, 0.0).sum(axis=0) / np.maximum(usable.sum(axis=0), 1)
    speeds = 1 / np.maximum(mean_s, 1e-12)
    money = min(problem.budget_per_hour, float(price @ problem.max_units))
    least_s = 0.0
    for weights, most in ((price, money), (speeds, float(speeds @ problem.max_units))):
        needed = np.where(usable, problem.compute_s * weights, np.inf).min(axis=1).sum()
        least_s = max(least_s, float(needed) / most * (1 - GAP) if most > 0 else 0.0)
    if least_s > slowest_batch_s(problem):
        return np.inf
    return least_s if problem.objective == "throughput" else trivial_bound(problem)


def _starts(problem: Problem, start: Placement | None, deadline: Deadline) -> Iterator[MixedPlacement]:
    if start is None:  # the fastest plan may be made to keep the limits
        fastest = replace(problem, objective="throughput", min_throughput=0.0, budget_per_hour=np.inf)
        own = deadline.within(_START_SHARE * max(0.0, deadline.left_s()))
        start = prove(fastest, own, seed_placements(fastest, None)).placement
        posed = fastest
    else:
        posed = problem
    if start is not None:
        replicas = [stage.replicas for stage in detail(posed, start).stages]
        yield MixedPlacement.of_plain(problem, start, replicas)
    yield MixedPlacement((0,), (tuple(int(count) for count in problem.max_units),))


def _improve(problem: Problem, plan: MixedPlacement, plans: dict[MixedPlacement, float], deadline: Deadline) -> bool:
    """Keep a plan and all that are better on the way from it; return False if the deadline ends the way."""
    standing = _standing(problem, plan)
    is_better = True
    while is_better:
        if standing[0] == 0 and all(each.share > _LITTLE for stage in detail_of(problem, plan) for each in stage.types):
            plans[plan] = standing[1]
        is_better = False
        for changed in _changes(problem, plan):
            if deadline.is_over:
                return False
            found = _standing(problem, changed)
            if _is_better(found, standing):
                plan, standing, is_better = changed, found, True
                break
    return True


def _is_better(found: _Standing, than: _Standing) -> bool:
    """Compare the first numbers of two plans that differ by more than rounding."""
    for own, other in zip(found, than, strict=True):
        if own < other * _BETTER or own * _BETTER > other:
            return own < other
    return False


def _standing(problem: Problem, plan: MixedPlacement) -> _Standing:
    worth = worth_of(problem, plan)
    passed_s = float(np.sum(worth.times_s))
    if np.isfinite(worth.value):
        return 0.0, worth.value, passed_s
    over = max(0.0, max(worth.times_s) / slowest_batch_s(problem) - 1)
    over += max(0.0, worth.price_per_hour / problem.budget_per_hour - 1)
    return over if over > 0 else np.inf, np.inf, passed_s


def _changes(problem: Problem, plan: MixedPlacement) -> Iterator[MixedPlacement]:
    """Yield the plans that are one change away."""
    units = np.array(plan.units, np.int64)
    idle = problem.max_units - units.sum(axis=0)
    for changed in _other_units(units, idle):
        yield replace(plan, units=tuple(map(tuple, changed.tolist())))
    for stage in range(1, len(units)):
        joined = np.delete(units, stage, axis=0)
        joined[stage - 1] += units[stage]
        starts = plan.starts[:stage] + plan.starts[stage + 1 :]
        yield MixedPlacement(starts, tuple(map(tuple, joined.tolist())))


def _other_units(units: np.ndarray, idle: np.ndarray) -> Iterator[np.ndarray]:
    stages, types = units.shape
    for stage, type_ in product(range(stages), range(types)):
        count = 1
        while count <= max(idle[type_], units[stage, type_]):
            for added in (count, -count):
                if added <= idle[type_] and -added <= units[stage, type_]:
                    yield _with(units, (stage, type_, added))
            count *= 2
    for stage, type_, other in product(range(stages), range(types), range(types)):
        if type_ != other and units[stage, type_] and idle[other]:
            yield _with(units, (stage, type_, -1), (stage, other, 1))
    for stage, other, type_ in product(range(stages), range(stages), range(types)):
        if stage != other and units[stage, type_]:
            yield _with(units, (stage, type_, -1), (other, type_, 1))


def _with(units: np.ndarray, *added: tuple[int, int, int]) -> np.ndarray:
    changed = units.copy()
    for stage, type_, count in added:
        changed[stage, type_] += count
    return changed
