"""Search for plans whose stages may have units of several device types, with a bound on all such plans.

At a time tau of a batch a programme finds the cheapest stages and units (``mixed_programme.py``)::

    price        tau is the floor's
    throughput   tau is halved between one that a plan reaches and one that is out of reach of the limits
    cost         tau * price(tau): over a range of taus at least fast * price(slow); ranges are split

Plans are searched on some positions of a chain first. On chains of more than 60 they are searched on no more, and the
bound is that of the work, which some type of every stage does cheapest.

Left out: objectives that several types in a stage cannot help (``latency``, ``max-load``); the simulated step.
"""

import heapq
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from heterps_compile.cost.evaluate import detail, slowest_batch_s
from heterps_compile.cost.mixed_units import MixedPlacement, worth_of
from heterps_compile.cost.problem import Floats, Placement, Problem
from heterps_compile.cost.segments import problem_tables
from heterps_compile.errors import InputError
from heterps_compile.passes.deadline import Deadline, TimeUpError
from heterps_compile.passes.placement.geometry import Chain, Segments
from heterps_compile.passes.placement.proof.coarse_to_fine import thinned
from heterps_compile.passes.placement.proof.trivial_bounds import GAP, longest_s, per_million_samples
from heterps_compile.progress import tell

from .mixed_programme import MixedProgramme

MIXABLE = ("cost", "price", "throughput")
"""Objectives that stages of several types can help."""

_POSITIONS = (8, 16, 60)  # of a chain, from coarse to fine
_COARSE_SHARE = 0.3  # of the time that is left, for some of the positions
_MOST_LISTED = 400_000
_NEAR = 1e-4  # relative; a bound nearer than this to the best is near enough
_SURE = 2e-7  # relative; what the programme's own tolerances can make of equal numbers
_A_LITTLE_FASTER = 1e-6  # relative; so that rounding keeps no plan from the floor


@dataclass(frozen=True, slots=True)
class MixedFound:
    """What the search found.

    Attributes:
        plans: Those that the search came upon and their values, the best first; none where none is known.
        bound: No plan of the class has a lower value; inf where it is proven that there is none.
    """

    plans: tuple[tuple[MixedPlacement, float], ...]
    bound: float

    @property
    def value(self) -> float:
        """Return the value of the best plan; inf without one."""
        return self.plans[0][1] if self.plans else np.inf


def search_mixed(problem: Problem, start: Placement | None, time_limit_s: float | None = None) -> MixedFound:
    """Return the best plan that is found in the time, beginning with one whose stages have one type each.

    Args:
        problem: What to place.
        start: The placement to begin with; None for none.
        time_limit_s: Of the search; None for no limit.

    Raises:
        InputError: for an objective that stages of several types cannot help.
    """
    if problem.objective not in MIXABLE:
        raise InputError(
            f"stages of several device types do not help the objective {problem.objective!r}; ask for "
            f"{', '.join(MIXABLE)}, or leave --mixed-stages out"
        )
    search = _Search(problem, Deadline.after(time_limit_s))
    if start is not None:
        replicas = [stage.replicas for stage in detail(problem, start).stages]
        search.consider(MixedPlacement.of_plain(problem, start, replicas))
    tell("searching stages of several device types")
    return search.run()


class _Search:
    def __init__(self, problem: Problem, deadline: Deadline) -> None:
        self._problem, self._deadline = problem, deadline
        self._plans: dict[MixedPlacement, float] = {}
        self._best = np.inf
        self._work = _Work(problem, deadline)
        self._bound = 0.0

    def consider(self, placement: MixedPlacement) -> float:
        """Keep a plan that is feasible; return the time of a batch that it reaches."""
        worth = worth_of(self._problem, placement)
        if np.isfinite(worth.value):
            self._plans[placement] = worth.value
            self._best = min(self._best, worth.value)
        return max(worth.times_s)

    def run(self) -> MixedFound:
        """Search to the proof or to the deadline."""
        chain, bound, whole = Chain(self._problem), 0.0, self._deadline
        step = {"price": self._at_floor, "throughput": self._halve, "cost": self._over_ranges}[self._problem.objective]
        with suppress(TimeUpError):
            bound = self._work.bound(self._slowest_s)
            for positions in _POSITIONS:
                is_whole = chain.length <= positions
                borders = None if is_whole else thinned(chain, positions)
                self._bound, self._deadline = bound, whole if is_whole else whole.within(whole.left_s() * _COARSE_SHARE)
                with suppress(TimeUpError):
                    step(MixedProgramme(self._problem, borders, self._deadline))
                if is_whole:
                    bound = self._bound
                    break
        plans = sorted(self._plans.items(), key=lambda plan: plan[1])  # of equal ones the first that was found
        return MixedFound(tuple(plans), self._best if bound >= self._best * (1 - _SURE) else bound)

    def _solved(self, programme: MixedProgramme, time_s: float, *, is_free: bool = False) -> float:
        """Return the least price at a tau, inf where nothing reaches it; try the plan, and one a little faster."""
        found = programme.at(time_s, self._deadline, is_free=is_free)
        if found.placement is not None and self.consider(found.placement) > time_s:
            again = programme.at(time_s * (1 - _A_LITTLE_FASTER), self._deadline, is_free=is_free)
            if again.placement is not None:
                self.consider(again.placement)
        return found.price

    def _at_floor(self, programme: MixedProgramme) -> None:
        self._bound = max(self._bound, self._solved(programme, self._slowest_s))

    @property
    def _slowest_s(self) -> float:
        return min(slowest_batch_s(self._problem), longest_s(self._problem))

    def _halve(self, programme: MixedProgramme) -> None:
        slow_s = self._slowest_s
        if np.isinf(self._solved(programme, min(slow_s, self._best), is_free=True)) and np.isinf(self._best):
            self._bound = np.inf
            return
        low_s, high_s = self._bound, min(slow_s, self._best)
        while low_s < high_s * (1 - _NEAR):
            middle_s = (low_s + high_s) / 2
            if np.isinf(self._solved(programme, middle_s, is_free=True)):
                low_s = self._bound = middle_s
            else:
                high_s = min(middle_s, self._best)

    def _over_ranges(self, programme: MixedProgramme) -> None:
        problem, numbers = self._problem, count()

        def value(price: float, time_s: float) -> float:
            return per_million_samples(problem, price * time_s)

        slow_s = self._slowest_s
        price = self._solved(programme, slow_s)
        if np.isinf(price):
            self._bound = np.inf
            return
        open_ = [(self._bound, next(numbers), slow_s, 0.0, price)]
        closed = np.inf  # the least bound of ranges in which a plan may be better by next to nothing
        least = self._bound
        try:
            while open_ and open_[0][0] < self._best * (1 - _NEAR):
                least, _, slow_s, fast_s, price = heapq.heappop(open_)
                # no plan is better above the time at which the cheapest is as dear as the best
                cut_s = min(slow_s, problem.batch * self._best * 3600 / 1e6 / price) if price > 0 else slow_s
                middle_s = cut_s * 0.7 if fast_s == 0 else float(np.sqrt(cut_s * fast_s))
                for high_s, low_s in ((cut_s, middle_s), (middle_s, fast_s)):
                    if high_s <= low_s:
                        continue
                    own = price if high_s == slow_s else self._solved(programme, high_s)
                    if np.isinf(own):
                        continue
                    bound = max(least, value(own, low_s), value(self._work.least_unit_seconds(high_s), 1.0))
                    if bound < self._best * (1 - _NEAR):
                        heapq.heappush(open_, (bound, next(numbers), high_s, low_s, own))
                    else:
                        closed = min(closed, bound)
        except TimeUpError:
            self._bound = max(self._bound, min(least, closed, self._best))
            raise
        left = min((range_[0] for range_ in open_), default=np.inf)
        self._bound = max(self._bound, min(closed, left, self._best))


class _Work:
    """What work costs at least, on whatever types a stage has: a cheapest path over segments.

    In a time tau and all shorter ones, a part x of a stage takes no fewer than x times the unit-seconds of the whole
    stage on one type (``cost/replicas.py``, rules 1 and 2), so that the cheapest type alone is a bound.
    """

    def __init__(self, problem: Problem, deadline: Deadline) -> None:
        none = np.zeros_like(problem.sync_s)
        plain = replace(problem, sync_s=none, rules=None, machines=None, rented_together=None)
        chain = Chain(plain)
        self._problem, self._length = problem, chain.length
        self._listed: Segments | None = None  # where no time is left to list them, as where they are too many
        if chain.segment_count <= _MOST_LISTED:
            with suppress(TimeUpError):
                self._listed = chain.all_segments(deadline)

    def least_unit_seconds(self, time_s: float, weights: Floats | None = None) -> float:
        """Return the least sum of unit-seconds, at their price or a weight [T], of plans that take at most so long."""
        weights = self._problem.price_per_hour if weights is None else weights
        if self._listed is None:
            tables = problem_tables(self._problem)
            return float(np.where(tables.usable, self._problem.compute_s * weights, np.inf).min(axis=1).sum())
        listed = self._listed
        bound = listed.demand.units_and_bound(time_s)[1] * weights[listed.type]
        best = np.full(self._length + 1, np.inf)
        best[0] = 0.0
        starts = np.searchsorted(listed.first, np.arange(self._length + 1))
        for first in range(self._length):
            chosen = slice(starts[first], starts[first + 1])
            np.minimum.at(best, listed.end[chosen], best[first] + bound[chosen])
        return float(best[-1]) * (1 - GAP)

    def bound(self, slow_s: float) -> float:
        """Return a bound on the value of all plans that take at most so long for a batch."""
        problem = self._problem
        if problem.objective == "cost":
            return per_million_samples(problem, self.least_unit_seconds(slow_s))
        if problem.objective == "price":
            return self.least_unit_seconds(slow_s) / slow_s
        price, usable = problem.price_per_hour, problem_tables(problem).usable
        total_s = np.where(usable, problem.compute_s, 0.0).sum(axis=0) / np.maximum(usable.sum(axis=0), 1)
        speeds = 1 / np.maximum(total_s, 1e-12)
        shares = [(speeds, float(speeds @ problem.max_units))]
        shares += [(price, min(problem.budget_per_hour, float(price @ problem.max_units)))]
        return max(self._halved(slow_s, weights, most * (1 + GAP)) for weights, most in shares)

    def _halved(self, slow_s: float, weights: Floats, most: float) -> float:
        """Return a time of a batch that units of so much weight together do not reach."""
        low_s, high_s = 0.0, slow_s
        while low_s < high_s * (1 - _NEAR) and high_s > slow_s * _NEAR:
            middle_s = (low_s + high_s) / 2
            if self.least_unit_seconds(middle_s, weights) > most * middle_s:
                low_s = middle_s
            else:
                high_s = middle_s
        return low_s
