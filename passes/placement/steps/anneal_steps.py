"""Annealing on what is minimised: the step of a plan, with its units, micro-batches and schedule.

Walks begin with good plans and with drawn ones, hot or less so. Drawn plans are changed a few hundred times each, and
the best of them begin walks. The best plan of a walk is priced again with all that the loop leaves out
(``step_loops.py``); a plan that breaks a limit then is dropped, and counted.

Left out: a proof; the last bit of units, which ``step_search.py`` finds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from heterps_compile.cost.chosen_units import BUDGET_TOLERANCE
from heterps_compile.cost.evaluate import slowest_batch_s, to_arrays, to_placement
from heterps_compile.cost.problem import Floats, Ints, Placement, tiny_problem
from heterps_compile.cost.roofline import TRAINING_FACTOR
from heterps_compile.cost.segments import crossing_bytes
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline
from heterps_compile.passes.placement.compiled_loops import CompiledBeside, compiled
from heterps_compile.passes.placement.local.annealing import cooling_between, loop_tables
from heterps_compile.passes.placement.local.annealing_loops import COST, PRICE, SLOWEST, Cooling
from heterps_compile.passes.placement.local.segment_table import SegmentTable, segment_table
from heterps_compile.progress import tell
from heterps_compile.schedule.load import ROUNDS_OF_REPLICAS, USUAL_MICRO_BATCHES
from heterps_compile.schedule.step_problem import StepProblem, plain_step_problem
from heterps_compile.units import counted

from .step_loops import ODDS, StepRules, StepTables, StepWalk, anneal_steps
from .step_plans import SteppedPlan, feasible, simulated, with_units

_MOST_COUNT = 256  # micro-batches of a plan of the loop; with more, most of its time goes there
_MOST_STAGES = 40
_MOST_WAIT_S = 120.0  # for another process that compiles the loop
_TRIES = 100  # to draw stages that each have a type for all their layers
_STILL = Cooling(0, 1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class StepAnnealing:
    """How plans are annealed.

    Attributes:
        changes: Of a walk.
        walks: At most.
        work: Actions simulated and stages priced, at most.
        at_once: Changes between two looks at the clock.
        hottest, warm, coldest: Relative worsening that is taken with odds of 1/e: at most where a walk begins with a
            drawn plan; at most where with a good one; where it ends.
        exceeding: What exceeding a limit by its own size costs, relative to the plan's value, first and last.
        fresh: Share of walks that begin with a drawn plan.
        drawn: Plans that are drawn for them.
        tried: Changes of each, before the best are chosen.
        stages: Of drawn plans, at most.
        shift: Mean of how far a bound moves, in positions.
    """

    changes: int = 100_000
    walks: int = 8
    work: int = 400_000_000
    at_once: int = 10_000
    hottest: float = 0.1
    warm: float = 0.02
    coldest: float = 0.0005
    exceeding: tuple[float, float] = (3.0, 30.0)
    fresh: float = 0.75
    drawn: int = 64
    tried: int = 300
    stages: int = 9
    shift: float = 4.0


STEP_ANNEALING = StepAnnealing()


class WalkPlan(NamedTuple):
    """A plan for the loop.

    Attributes:
        bounds: [S + 1], positions where stages begin, and the last.
        types, units: [S].
        place: Which number of micro-batches.
    """

    bounds: Ints
    types: Ints
    units: Ints
    place: int


class AnnealSteps:
    """An annealing on the steps of one problem.

    Attributes:
        tables, rules: Of the problem, for the loop.
        worked: Actions simulated and stages priced.
        plans_priced: Plans that the loop priced.
        walks, dropped: Walks that ended, and those of them whose best plan broke a limit that the loop leaves out.
    """

    def __init__(self, of: StepProblem, how: StepAnnealing = STEP_ANNEALING, *, seed: int = 0) -> None:
        problem, table = of.problem, segment_table(of.problem)
        self._of, self._how, self._generator = of, how, np.random.default_rng(seed)
        self._positions, self._last = table.positions, len(table.positions) - 1
        self.tables = step_tables(of, table)
        most = min(self._last, problem.max_stages, max(_MOST_STAGES, 2 * problem.min_stages))
        self.rules = StepRules(
            {"cost": COST, "price": PRICE}.get(problem.objective, SLOWEST),
            problem.min_stages,
            most,
            slowest_batch_s(problem),
            problem.budget_per_hour * (1 + BUDGET_TOLERANCE),
            USUAL_MICRO_BATCHES,
            ROUNDS_OF_REPLICAS,
            np.array(ODDS),
            how.shift,
        )
        self._random = self._generator.integers(1, 1 << 62, 1, dtype=np.uint64)
        self.worked, self.plans_priced, self.walks, self.dropped = 0, 0, 0, 0
        self._is_too_long = False

    @property
    def notes(self) -> tuple[str, ...]:
        """List the limits that the annealing met, in sentences."""
        found = []
        if self._is_too_long:
            found.append(f"plans of more than {self.rules.most} stages were not annealed")
        if self._of.all_counts[-1] > _MOST_COUNT:
            found.append(f"plans of more than {_MOST_COUNT} micro-batches were not annealed")
        if self.dropped:
            found.append(
                f"{self.dropped} of {counted(self.walks, 'annealed plan')} were dropped: they break a limit that the "
                "annealing leaves out, such as the memory of micro-batches under way"
            )
        return tuple(found)

    def plans(self, known: Sequence[SteppedPlan], deadline: Deadline) -> Iterator[SteppedPlan]:
        """Anneal walk after walk; yield the best plan of each, simulated with all that the problem has.

        Args:
            known: Plans that walks begin with, besides drawn ones.
            deadline: Of all walks.
        """
        how, generator = self._how, self._generator
        begun = [self._of_loop(plan.placement, plan.step.units, plan.step.micro_batches) for plan in known]
        good = [plan for plan in begun if plan is not None]
        self._is_too_long = any(len(plan.step.units) > self.rules.most for plan in known)
        fresh = self._best_drawn() if how.walks else []
        for number in range(how.walks):
            if self.worked > how.work or deadline.is_over:
                return
            tell("annealing the step", fraction=number / how.walks)
            drawn = None
            if not good or generator.random() < how.fresh:
                drawn = fresh.pop(0) if fresh else self._drawn()
            if drawn is None and not good:
                continue
            walk = self._begin(good[int(generator.integers(len(good)))] if drawn is None else drawn)
            hottest = how.warm if drawn is None else how.hottest
            parts = -(-how.changes // how.at_once)
            for part in range(parts):
                self._anneal(walk, hottest, part / parts, (part + 1) / parts, how.at_once)
                if deadline.is_over or self.worked > how.work:
                    break
            self.walks += 1
            if np.isfinite(walk.numbers[1, 0]):
                found = _best_of(walk)
                if (again := self._again(found)) is None:
                    self.dropped += 1
                else:
                    good.append(found)
                    yield again

    def _best_drawn(self) -> list[WalkPlan]:
        """Draw plans, change each a little, and return those that keep to all limits then, best first."""
        how, found = self._how, list[tuple[float, WalkPlan]]()
        for _ in range(how.drawn):
            if (plan := self._drawn()) is not None:
                walk = self._begin(plan)
                self._anneal(walk, how.coldest, 0.0, 1.0, how.tried)
                found.append((float(walk.numbers[1, 0]), _best_of(walk)))
        return [plan for value, plan in sorted(found, key=itemgetter(0)) if np.isfinite(value)]

    def _anneal(self, walk: StepWalk, hottest: float, begin: float, end: float, changes: int) -> None:
        """Change the plan of a walk, between two shares of its changes."""
        how = self._how
        cooling = cooling_between((hottest, how.coldest), how.exceeding, begin, end, changes)
        self.worked += compiled(anneal_steps)(self.tables, self.rules, walk, cooling)
        self.plans_priced += cooling.steps

    def _begin(self, plan: WalkPlan) -> StepWalk:
        """Return a walk that begins with a plan."""
        room = self.rules.most + 4
        bounds, kinds, units = np.zeros((3, 2, room), np.int64)
        bounds[0, : len(plan.bounds)] = plan.bounds
        kinds[0, : len(plan.types)], units[0, : len(plan.types)] = plan.types, plan.units
        sizes = np.array([[len(plan.types), plan.place], [0, 0]])
        return StepWalk(bounds, kinds, units, sizes, np.array([[np.inf, 0.0, 0.0]] * 2), self._random)

    def price(self, placement: Placement, units: Sequence[int], count: int) -> tuple[float, float]:
        """Price a plan: its step, and its excess over limits; inf for a plan that the loop cannot have.

        Args:
            placement: Of layers.
            units: [S], replicas.
            count: Micro-batches.
        """
        plan = self._of_loop(placement, units, count)
        if plan is None:
            return np.inf, 0.0
        walk = self._begin(plan)
        compiled(anneal_steps)(self.tables, self.rules, walk, _STILL)
        return float(walk.numbers[0, 2]) if np.isfinite(walk.numbers[0, 0]) else np.inf, float(walk.numbers[0, 1])

    def _of_loop(self, placement: Placement, units: Sequence[int], count: int) -> WalkPlan | None:
        """Return a plan for the loop; None for other positions, micro-batches or too many units."""
        starts, counts = np.array(placement.starts()), self.tables.counts
        bounds, place = np.searchsorted(self._positions, starts), int(np.searchsorted(counts, count))
        is_known = place < len(counts) and counts[place] == count and len(starts) <= self.rules.most
        is_known = is_known and max(units) < self.tables.hops_s.shape[1]
        if not is_known or not np.array_equal(self._positions[bounds], starts):
            return None
        kinds = np.array([placement.types[first] for first in starts.tolist()])
        return WalkPlan(np.append(bounds, self._last), kinds, np.array(units), place)

    def _drawn(self) -> WalkPlan | None:
        """Return a random plan: seldom of many stages, each on a type that can run all its layers; None for none."""
        generator, rules, forbidden = self._generator, self.rules, self.tables.of.forbidden
        most = max(rules.fewest, min(rules.most, self._how.stages))
        for _ in range(_TRIES):
            stages = max(rules.fewest, int(np.exp(generator.uniform(0, np.log(most + 1)))))
            cuts = np.sort(generator.choice(np.arange(1, self._last), min(stages, self._last) - 1, replace=False))
            bounds = np.concatenate([[0], cuts, [self._last]])
            can = forbidden[bounds[1:]] == forbidden[bounds[:-1]]
            if can.any(axis=1).all():
                kinds = np.array([generator.choice(np.flatnonzero(row)) for row in can])
                place = int(generator.integers(np.searchsorted(self.tables.counts, USUAL_MICRO_BATCHES, "right")))
                return WalkPlan(bounds, kinds, np.ones(len(kinds), np.int64), place)
        return None

    def _again(self, plan: WalkPlan) -> SteppedPlan | None:
        """Simulate a plan with all that the problem has; None if it breaks a limit."""
        bounds, begins = self._positions[plan.bounds], np.zeros(self._positions[-1], np.bool_)
        begins[bounds[:-1]] = True
        placement = to_placement(np.repeat(plan.types, np.diff(bounds)), begins)
        if not feasible(self._of.problem, *to_arrays([placement]))[0]:
            return None
        found = with_units(self._of, placement, plan.units.tolist(), [int(self.tables.counts[plan.place])])
        return next((simulated(self._of, each) for each in found if np.isfinite(each.value)), None)


def _best_of(walk: StepWalk) -> WalkPlan:
    """Return the best plan of a walk."""
    stages, place = walk.sizes[1].tolist()
    return WalkPlan(walk.bounds[1, : stages + 1], walk.types[1, :stages], walk.units[1, :stages], place)


def steps_are_compiled(deadline: Deadline) -> bool:
    """Return whether the loop can be called in time; where another process compiles it, wait for that."""
    return compile_steps_beside().is_ready(min(_MOST_WAIT_S, max(0.0, deadline.left_s())))


@cache
def compile_steps_beside() -> CompiledBeside:
    """Start the one process that compiles the loop, unless its code is kept."""
    return CompiledBeside((anneal_steps,), __name__, compile_steps.__name__)


def compile_steps() -> None:
    """Compile the loop and keep its code."""
    problem = tiny_problem()
    of = plain_step_problem(problem, 0 * problem.compute_s, training=True)
    for _ in AnnealSteps(of, StepAnnealing(changes=1, walks=1, at_once=1)).plans([], NO_DEADLINE):
        pass


def step_tables(of: StepProblem, table: SegmentTable) -> StepTables:
    """Return the tables of steps for the loop."""
    problem, chain_ends = of.problem, np.arange(len(table.positions))
    begins, shape = np.zeros_like(chain_ends), (len(chain_ends), problem.type_count)
    work, _ = table.work(begins, chain_ends, None, np.zeros(shape))
    counts = np.array([count for count in of.all_counts if count <= _MOST_COUNT])
    parts = [of.parts(count) for count in counts.tolist()]
    replicas = np.arange(1, counts[-1] + 1)
    hops_s = np.zeros((problem.type_count, len(replicas) + 1))
    if of.training and np.any(problem.sync_s > 0):
        hops_s[:, 1:] = [[network.hops_s(k) for k in replicas.tolist()] for network in of.networks]

    def sums(of_layers: Floats) -> Floats:
        """Return [P, T]."""
        found = np.zeros((problem.layer_count + 1, problem.type_count))
        np.cumsum(of_layers, axis=0, out=found[1:])
        return np.ascontiguousarray(found[table.positions])

    def stacked(tables: Sequence[Floats]) -> Floats:
        return np.stack([sums(each) for each in tables])

    own = of.own
    none = np.zeros_like(problem.compute_s)
    behind = [none] * 4
    if own is not None:
        of_rule = own.handling[0]
        behind = [own.update_s, of_rule.once_s, of_rule.shared_s, of_rule.each_s]
    talks = table.talks
    sync_s = np.zeros(shape) if work.sync_s is None else work.sync_s
    return StepTables(
        loop_tables(table)._replace(sync_s=sync_s, fixed_data_s=work.serial_data_s),
        counts,
        stacked([part.forward_s for part in parts]),
        stacked([part.backward_s for part in parts]),
        stacked([part.accumulate_s for part in parts]),
        sums(of.parts(1).whole_s),
        stacked(behind),
        hops_s,
        talks,
        crossing_bytes(problem)[table.positions] / (2 if of.training else 1),
        np.require(of.way_seconds_per_byte, requirements=("C", "W")),
        np.require(of.way_latency_s, requirements=("C", "W")),
        np.require(of.own_latency_s, requirements=("C", "W")),
        of.ways is not None,
        of.training,
        1 / TRAINING_FACTOR if of.training else 1.0,
    )
