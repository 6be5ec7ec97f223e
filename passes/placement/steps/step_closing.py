r"""Branch and bound over the plans of a step: the lowest bounds first, until no plan can be better than the best known.

A branch is the first stages of a plan, for a number of micro-batches, each a segment with a class of replicas
(``step_segments.py``); further branches add one stage::

    micro-batches      8                    4
                    /     \                 |
    stage 0       a:0-3   a:0-5 x 2-3      ...         x 2-3: as many replicas
                  /    \
    stage 1    b:3-6   a:3-6 ...

Where the step is what is minimised, a branch is left where the units that are left are fewer than what the rest of the
layers needs, weighted, for a step that is shorter than the best: every further stage has at least the replicas with
which its own bound is, and with which it works off its micro-batches between what the branch has before the first of
them and behind the last.

A branch's bound has the delays, rounds and sums of gradients of its stages as ``schedule/shortest_step.py`` adds them
up, and of the rest the least of ``step_bound.py``. A branch with all layers is a plan but for the replicas within its
classes: all of them are bounded, and those that may be better than the best plan simulated. The lowest bound of a
branch that is still open is one of all plans; where none is left, the best plan is the optimum.

Left out: plans whose placement breaks a limit in the steady state; with measured times of small micro-batches these
may exist, and stay open.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import product
from math import prod

import numpy as np

from heterps_compile.cost.evaluate import to_arrays
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Bools, Floats, Ints
from heterps_compile.cost.whole_machines import rented_units
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline
from heterps_compile.passes.placement.geometry import Runs
from heterps_compile.passes.placement.proof.trivial_bounds import GAP
from heterps_compile.schedule.load import USUAL_MICRO_BATCHES
from heterps_compile.schedule.shortest_step import PassTimes, Turns
from heterps_compile.schedule.step_problem import StepProblem

from .step_bound import StepTimes, step_times
from .step_plans import SteppedPlan, StepPlan, feasible, of_units, simulated, values_of
from .step_segments import StepSegments, classes

_LEAST_WEIGHT = 1e-6
_TIMES = 48  # up to the best step, at which it is known what the rest of a plan needs


@dataclass(frozen=True, slots=True)
class ClosingEffort:
    """How hard to try.

    Attributes:
        cells: Segments times classes of replicas for one number of micro-batches; problems with more are left alone.
        branches: That are kept.
        extended: Branches that are extended.
        choices: Of replicas within the classes of one plan; plans with more stay open.
        actions: Forwards and backwards that are simulated.
    """

    cells: int = 1_000_000
    branches: int = 400_000
    extended: int = 10_000
    choices: int = 50_000
    actions: int = 4_000_000


CLOSING_EFFORT = ClosingEffort()


@dataclass(frozen=True, slots=True)
class Closed:
    """What is proven.

    Attributes:
        plan: The best known, or a better one that was come upon.
        bound: No plan has a lower value; minus infinity where that was not looked at.
        branches: That were kept.
    """

    plan: SteppedPlan
    bound: float
    branches: int


def close_steps(
    of: StepProblem, plan: SteppedPlan, deadline: Deadline, effort: ClosingEffort = CLOSING_EFFORT
) -> Closed:
    """Return the best plan, from one that is known, and a bound on the value of every plan that keeps the order."""
    segments = StepSegments(of)
    if not is_listed(segments, effort):
        return Closed(plan, -np.inf, 0)
    search = _Closing(segments, plan, deadline, effort)
    bound = search.run()
    best = search.best or plan
    return Closed(best, min(bound, best.value), search.kept)


def none_below(segments: StepSegments, value: float, effort: ClosingEffort) -> bool:
    """Return whether it is proven, within an effort, that no plan that keeps the order has a lower value."""
    return bound_below(segments, value, effort) >= value * (1 - 2 * GAP)


def bound_below(segments: StepSegments, value: float, effort: ClosingEffort) -> float:
    """Bound the values of plans that keep the order, by ``value`` at most; minus infinity if that was not tried."""
    if not is_listed(segments, effort):
        return -np.inf
    return _Closing(segments, None, NO_DEADLINE, effort, below=value).run()


def is_listed(segments: StepSegments, effort: ClosingEffort) -> bool:
    """Return whether a problem has few enough segments and classes of replicas to be looked at."""
    of = segments.of
    return max(len(segments.type) * len(classes(of.problem, count)[0]) for count in of.all_counts) <= effort.cells


@dataclass(frozen=True, eq=False)
class _Branches:
    """Branches that one was extended to, or none where they have a first stage.

    Attributes:
        of: The plans of a number of micro-batches.
        above: The branch that was extended, as its family and its place there; None for the one without stages.
        segment, choice: [B], of the last stage, and the class of its replicas.
        delay_s: [B], before it.
        begin_s: [B], before the first forward of a next stage, without the delay to it.
        end_s: [B], behind the last backward of the last stage.
        fixed_s, growing_s: [B], bounds of the step: what further stages do not add to, and what they do.
        paid: [B], price per hour.
    """

    of: StepTimes
    above: "tuple[_Branches, int] | None"
    segment: Ints
    choice: Ints
    delay_s: Floats
    begin_s: Floats
    end_s: Floats
    fixed_s: Floats
    growing_s: Floats
    paid: Floats

    def path(self, place: int) -> list[tuple[int, int]]:
        """Return segment and class of every stage of one of them, first to last."""
        return [(int(each.segment[row]), int(each.choice[row])) for each, row in self.stages(place)]

    def stages(self, place: int) -> "list[tuple[_Branches, int]]":
        """Return the branches that one of them was extended from, with their places, and itself: one a stage."""
        found: list[tuple[_Branches, int]] = [(self, place)]
        while found[-1][0].above is not None:
            found.append(found[-1][0].above)
        return found[::-1]


def _weights(segments: StepSegments) -> Floats:
    """Return [W, T], what units of every type weigh: all alike, and by how fast they compute all layers."""
    compute_s = segments.chain.compute_s[:, -1]
    usable = np.where(np.isfinite(compute_s) & (compute_s > 0), compute_s, np.inf)
    speed = usable.min(initial=np.inf) / usable if np.isfinite(usable).any() else np.ones(len(usable))
    speed = np.maximum(speed, _LEAST_WEIGHT)
    return np.unique(np.stack([np.ones(len(speed)), speed]), axis=0)


class _Closing:
    """The branches that are open, and the best plan."""

    def __init__(
        self,
        segments: StepSegments,
        plan: SteppedPlan | None,
        deadline: Deadline,
        effort: ClosingEffort,
        *,
        below: float = np.inf,
    ) -> None:
        self._segments, self.of, self._deadline, self._effort = segments, segments.of, deadline, effort
        self.best, self.kept, self._below = plan, 0, below
        self._open: list[tuple[float, int, _Branches, int]] = []
        self._never_closed, self._actions = np.inf, 0
        self._needs: dict[int, Floats] = {}
        self._needs_between: dict[int, tuple[Floats, Floats]] = {}
        self._weights = _weights(segments)

    @property
    def _value(self) -> float:
        """Return the value that a plan is looked for below."""
        return self._below if self.best is None else min(self.best.value, self._below)

    @property
    def _most(self) -> float:
        """Return the value at which a plan is no better than the best one."""
        return self._value * (1 - GAP)

    def run(self) -> float:
        """Search; return the bound."""
        usual = USUAL_MICRO_BATCHES if self.best is None else self.best.step.micro_batches
        for count in sorted(self.of.all_counts, key=lambda count: abs(count - usual)):
            if self._deadline.is_over:
                return -np.inf
            times = step_times(self._segments, count, self._most, self._deadline)
            if times is not None:
                self._extend(times, None, [])
        extended = 0
        while self._open and self._open[0][0] < self._most:
            if extended >= self._effort.extended or self.kept > self._effort.branches or self._deadline.is_over:
                return min(self._open[0][0], self._never_closed)
            bound, _, branches, place = heappop(self._open)
            path = branches.path(place)
            if self._segments.end[path[-1][0]] == self._segments.chain.length:
                self._try(branches.of, path, bound)
            else:
                extended += 1
                self._extend(branches.of, (branches, place), path)
        return min(self._value, self._never_closed)

    def _extend(self, of: StepTimes, above: tuple[_Branches, int] | None, path: list[tuple[int, int]]) -> None:
        """Keep the branches that one may be extended to, with bounds below the best plan."""
        segments, times, problem = self._segments, of.times, self.of.problem
        position = 0 if not path else int(segments.end[path[-1][0]])
        here = slice(int(segments.rows[position]), int(segments.rows[position + 1]))
        used = self._used(of, path)
        ends, type_ = segments.end[here], segments.type[here]
        is_last = ends == segments.chain.length
        is_open = times.is_any[here] & (times.fewest[here] + used[type_][:, None] <= problem.max_units[type_][:, None])
        is_open &= (len(path) + 1 + ~is_last <= problem.max_stages)[:, None]
        is_open &= (~is_last | (len(path) + 1 >= problem.min_stages))[:, None]
        left = (problem.max_units - used) @ self._weights.T  # [W]
        if self._is_of_time:
            of_stage = self._weights[:, type_][:, :, None] * times.fewest[here]
            is_open &= (of_stage + self._needed(of)[:, ends][:, :, None] <= left[:, None, None] * (1 + GAP)).all(axis=0)
        row, choice = np.nonzero(is_open)
        if not len(row):
            return
        segment = row + here.start
        cell = (segment, choice)
        forward_s, backward_s, both_s, sync_s = (
            each[cell] for each in (times.forward_s, times.backward_s, times.both_s, times.sync_s)
        )
        delay_s, begin_s, end_s, fixed_s, growing_s, paid = np.zeros((6, len(row)))
        if above is not None:
            delay_s = self._delays_s(of, path, segment, choice)
            branches, place = above
            last_backward_s = times.backward_s[path[-1]] + branches.end_s[place]
            begin_s = branches.begin_s[place] + delay_s
            end_s = delay_s + last_backward_s if self.of.training else end_s
            both_ways = 2 if self.of.training else 1
            growing_s = branches.growing_s[place] + both_ways * delay_s + both_s
            fixed_s, paid = fixed_s + branches.fixed_s[place], paid + branches.paid[place]
        rounds, begin_s = times.rounds[choice], np.maximum(begin_s, times.pull_s[cell])
        if self.of.training:
            end_s = np.maximum(sync_s, end_s)
            fixed_s = np.maximum(fixed_s, begin_s + rounds * both_s + end_s)
            fills_s = np.maximum(forward_s + rounds * backward_s, rounds * forward_s + backward_s)
            growing_s = np.maximum(growing_s, begin_s + fills_s + end_s)
        else:
            growing_s = np.maximum(growing_s, begin_s + rounds * forward_s)
        begin_s, paid = begin_s + forward_s, paid + times.price_per_hour[cell]
        lasting_s = np.maximum(fixed_s, growing_s + times.after_s[segments.end[segment]])
        lasting_s = np.maximum(lasting_s, times.least_s[cell])
        bounds = of.least_values(problem, paid, lasting_s, segments.end[segment], self._most)
        bounds = np.maximum(bounds, self._rented(of, used, segment, choice, lasting_s))
        is_kept = bounds < self._most
        if self._is_of_time and self.of.training:
            is_kept &= self._is_enough(of, left, cell, begin_s + backward_s + end_s)
        kept = np.flatnonzero(is_kept)
        found = _Branches(
            of, above, segment[kept], choice[kept], delay_s[kept], begin_s[kept], end_s[kept], fixed_s[kept],
            growing_s[kept], paid[kept],
        )  # fmt: skip
        self._push(found, bounds[kept], np.flatnonzero(is_last[row[kept]]))

    def _push(self, found: _Branches, bounds: Floats, whole: Ints) -> None:
        """Keep branches open with their bounds [B]; those at ``whole`` [W] have all layers."""
        if self.of.training and len(whole):
            bounds[whole] = np.maximum(bounds[whole], self._scheduled(found, whole))
        for place, bound in enumerate(bounds.tolist()):
            if bound < self._most:
                self.kept += 1
                heappush(self._open, (bound, self.kept, found, place))

    def _scheduled(self, found: _Branches, whole: Ints) -> Floats:
        """Return [W], bounds of branches with all layers, by what their stages wait for under either schedule."""
        times, problem = found.of.times, self.of.problem
        before = [] if found.above is None else found.above[0].stages(found.above[1])

        def of_stages(name: str) -> Floats:
            """Return [W, S], what branches hold of every stage."""
            own = np.asarray(getattr(found, name))[whole]
            return np.stack([*(np.full_like(own, getattr(each, name)[row]) for each, row in before), own], axis=1)

        cells = of_stages("segment").astype(np.int64), of_stages("choice").astype(np.int64)
        forward_s, delay_s = times.forward_s[cells], of_stages("delay_s")
        behind_s = np.append(delay_s[:, 1:], np.zeros((len(whole), 1)), axis=1)
        of_passes = PassTimes(
            of_stages("begin_s") - forward_s, forward_s, times.backward_s[cells], times.both_s[cells], behind_s,
            of_stages("end_s"),
        )  # fmt: skip
        turns = Turns.of(times.count, times.fewest[cells], times.most[cells])
        servers = problem.least_servers * problem.server_price_per_hour
        return values_of(problem, found.paid[whole] + servers, turns.least_steps_s(of_passes).min(axis=0))

    def _needed(self, of: StepTimes) -> Floats:
        """Return [W, n + 1], the weighted units that the stages from a position on need to be better than the best."""
        times = of.times
        if times.count not in self._needs:
            within = np.minimum.accumulate(times.least_s, axis=1) < self._most
            fewest = np.take_along_axis(times.fewest, within.argmax(axis=1)[:, None], axis=1)[:, 0]
            units = np.where(within.any(axis=1), fewest, np.inf)
            self._needs[times.count] = self._segments.least_to_end(self._weights[:, self._segments.type] * units)
        return self._needs[times.count]

    def _is_enough(self, of: StepTimes, left: Floats, cell: tuple[Ints, Ints], taken_s: Floats) -> Bools:
        """Return [B], whether the units left [W] may be enough for last stages [B] and what follows them.

        ``taken_s`` is what passes before the first forward of a next stage and behind its last backward.
        """
        segments, (times_s, needed) = self._segments, self._needed_between(of)
        place = np.searchsorted(times_s, (self._most - taken_s) * (1 + GAP))
        units = self._weights[:, segments.type[cell[0]]] * of.times.fewest[cell]
        rest = needed[:, np.minimum(place, len(times_s) - 1), segments.end[cell[0]]]
        return np.asarray((units + rest <= left[:, None] * (1 + GAP)).all(axis=0))

    def _needed_between(self, of: StepTimes) -> tuple[Floats, Floats]:
        """Return [J] times and [W, J, n + 1], the weighted units for stages from a position on to be busy no longer."""
        times = of.times
        if times.count not in self._needs_between:
            times_s = self._most * np.arange(_TIMES + 1) / _TIMES
            busy_s = np.minimum.accumulate(np.where(times.is_any, times.rounds * times.both_s, np.inf), axis=1)
            fewest = np.concatenate([times.fewest, np.full((len(busy_s), 1), np.inf)], axis=1)
            units = np.stack([
                np.take_along_axis(fewest, (busy_s > each).sum(axis=1)[:, None], axis=1)[:, 0] for each in times_s
            ])  # fmt: skip
            of_types = self._weights[:, None, self._segments.type]
            self._needs_between[times.count] = times_s, self._segments.least_to_end(of_types * units)
        return self._needs_between[times.count]

    @property
    def _is_of_time(self) -> bool:
        """Return whether the step is what is minimised."""
        return OBJECTIVES[self.of.problem.objective].paid(1.0, 1.0) is None

    def _used(self, of: StepTimes, path: list[tuple[int, int]]) -> Floats:
        """Return [T], the units of the stages of a branch."""
        used = np.zeros(self.of.problem.type_count)
        for segment, choice in path:
            used[self._segments.type[segment]] += of.times.fewest[segment, choice]
        return used

    def _rented(self, of: StepTimes, used: Floats, segment: Ints, choice: Ints, lasting_s: Floats) -> Floats:
        """Return bounds of branches by the whole machines of their stages alone; minus infinity without such."""
        problem = self.of.problem
        if problem.rented_together is None:
            return np.full(len(segment), -np.inf)
        units = np.repeat(used[None, :], len(segment), axis=0)
        units[np.arange(len(segment)), self._segments.type[segment]] += of.times.fewest[segment, choice]
        servers = problem.least_servers * problem.server_price_per_hour
        return values_of(
            problem, np.asarray(rented_units(problem, units) @ problem.price_per_hour) + servers, lasting_s
        )

    def _delays_s(self, of: StepTimes, path: list[tuple[int, int]], segment: Ints, choice: Ints) -> Floats:
        """Return the least delays from the last stage of a branch to what may come next."""
        segments, times = self._segments, of.times
        before = path[-1][0]
        size = segments.way_bytes[segments.end[before]]
        pair = (segments.type[before], segments.type[segment])
        way_s = self.of.way_latency_s[pair] + size * self.of.way_seconds_per_byte[pair] / times.count
        moving_s = times.moving_s[path[-1]] / (1 if len(path) == 1 else 2)
        after_s = times.moving_s[segment, choice] / np.where(segments.end[segment] == segments.chain.length, 1, 2)
        return np.where(size > 0, np.maximum(0.0, way_s - moving_s - after_s), 0.0)

    def _try(self, of: StepTimes, path: list[tuple[int, int]], bound: float) -> None:
        """Bound the replicas within the classes of a plan, and simulate those that may be better than the best."""
        segments = self._segments
        runs = np.array([segment for segment, _ in path])
        placement = segments.chain.placement(Runs(segments.first[runs], segments.end[runs], segments.type[runs]))
        ranges = [range(int(of.times.fewest[cell]), int(of.times.most[cell]) + 1) for cell in path]
        if prod(map(len, ranges)) > self._effort.choices or self._actions > self._effort.actions:
            self._never_closed = min(self._never_closed, bound)
            return
        for plan in self._in_order(of_units(self.of, placement, list(product(*ranges)), of.times.count)):
            self._actions += 4 * len(plan.units) * plan.micro_batches
            found = simulated(self.of, plan, self._most)
            if found is None:
                continue
            if feasible(self.of.problem, *to_arrays([placement]))[0]:
                self.best = found
            else:
                self._never_closed = min(self._never_closed, found.value)

    def _in_order(self, plans: list[StepPlan]) -> Iterator[StepPlan]:
        """Yield plans, best bound first, while these may be better than the best plan."""
        for plan in plans:
            if plan.value >= self._most:
                return
            yield plan
