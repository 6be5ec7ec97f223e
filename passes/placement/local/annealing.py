"""Simulated annealing of whole plans, each change priced with links, limits and memory as they are.

What a stage costs alone leaves out the types it talks to and the units that others take, so where pairs of types have
links of their own, or limits bind, its price alone is too low. Here a plan is changed
in one place, a million times a second, and a change for the worse is taken with odds that fall::

    walk 1     hot ~~~~~~~~~~~~~> cold        each from a drawn plan, one of the best known, or one of the best with a
    walk 2     hot ~~~~~~~~~~~~~> cold        window drawn anew; walks get longer
    walk 3         warm ~~~~~~~~~~~~~> cold

A plan carries a time of a batch, which a change may alter and the plan's own stages lower to what they attain: its
value is that with the replicas for that time, never less than ``evaluate`` finds. The best plan of every walk is
evaluated.

Left out: the changes and their price (``annealing_loops.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from heterps_compile.cost.evaluate import slowest_batch_s
from heterps_compile.cost.link_traffic import link_traffic
from heterps_compile.cost.problem import Bools, Floats, Ints, Problem
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.compiled_loops import compiled

from .annealing_loops import COST, LATENCY, ONE_UNIT, PRICE, SLOWEST, Cooling, Donors, Rules, Tables, Walk, anneal
from .archive import Archive
from .sampling import Draw, Proposals, draw_plans, stage_rules
from .segment_table import SegmentTable

_OBJECTIVES = {"cost": COST, "price": PRICE, "latency": LATENCY, "throughput": SLOWEST, "max-load": ONE_UNIT}
_NONE = np.zeros((0, 0))
_NO_CHANGE = Cooling(0, 1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Annealing:
    """How plans are annealed.

    Attributes:
        changes: Of the first walk.
        growth: Of a walk's changes, from one to the next.
        most: Changes of a walk at most.
        at_once: Changes between two looks at the clock.
        hottest, warm, coldest: Relative worsening that is taken with odds of 1/e: at most where a walk begins with a
            drawn plan; at most where it begins with a good one; where it ends.
        exceeding: What exceeding a constraint by its own size costs, relative to the plan's value, first and last.
        fresh: Share of walks that begin with a drawn plan; all do while no plan is feasible, for the one that exceeds
            its constraints the least is seldom a part of the way to one that does not.
        patience: Walks without a better plan, after which it ends.
        most_priced: Ends when so many stages have been priced.
        niches: Good plans that differ, whose windows are crossed in.
        odds: Of the kinds of changes, relative.
        shift: Mean of how far a bound moves, in positions.
        hurried: Share of changes that change the time of a batch, too.
        hurry: Mean of the logarithm of its change.
    """

    changes: int = 20_000
    growth: float = 1.1
    most: int = 2_000_000
    at_once: int = 20_000
    hottest: float = 0.2
    warm: float = 0.03
    coldest: float = 0.001
    exceeding: tuple[float, float] = (3.0, 30.0)
    fresh: float = 0.4
    patience: int = 40
    most_priced: int = 150_000_000
    niches: int = 8
    odds: tuple[float, ...] = (20, 30, 8, 12, 10, 6, 5, 5, 2, 5, 5, 10)
    shift: float = 4.0
    hurried: float = 0.6
    hurry: float = 0.2


def cooling_between(
    heats: tuple[float, float], exceeding: tuple[float, float], begin: float, end: float, changes: int
) -> Cooling:
    """Return the part of a walk's cooling between two shares of its changes.

    Args:
        heats: First and last of the walk.
        exceeding: What exceeding a limit costs, first and last of the walk.
        begin: Share of the walk's changes before the part.
        end: Share of the walk's changes up to its end.
        changes: Of the part.
    """

    def between(ends: tuple[float, float], share: float) -> float:
        return float(ends[0] * (ends[1] / ends[0]) ** share)

    first, last = ((between(heats, share), between(exceeding, share)) for share in (begin, end))
    return Cooling(changes, first[0], last[0], first[1], last[1])


class Anneal:
    """An annealing on one problem, from the plans of an archive and into it.

    Attributes:
        table: Of the problem.
        tables, rules: Of the problem, for the loop.
        priced: Stages priced.
    """

    def __init__(
        self,
        table: SegmentTable,
        archive: Archive,
        generator: np.random.Generator,
        deadline: Deadline,
        how: Annealing = Annealing(),
    ) -> None:
        problem = table.problem
        self._archive, self._generator, self._deadline, self._how = archive, generator, deadline, how
        self.table, self._positions, self._last = table, table.positions, len(table.positions) - 1
        self.tables = loop_tables(table)
        most = min(self._last, problem.max_stages, max(40, 2 * problem.min_stages))
        odds = np.cumsum(how.odds) / np.sum(how.odds)
        budget = np.inf if problem.objective == "cost" else problem.budget_per_hour
        self.rules = Rules(
            _OBJECTIVES[problem.objective],
            problem.min_stages,
            most,
            slowest_batch_s(problem),
            self._open_s(),
            self._any_value(),
            budget,
            odds,
            how.shift,
            how.hurried,
            how.hurry,
        )
        self._room = 2 * most + 4
        self._random = generator.integers(1, 1 << 62, 1, dtype=np.uint64)
        self.priced = 0

    def steps(self, draw: Draw) -> Iterator[None]:
        """Anneal walk after walk; a step is some ten thousand changes."""
        how, changes, idle = self._how, float(self._how.changes), 0
        while idle < how.patience and self.priced < how.most_priced and self._deadline.left_s() >= 0:
            before = self._archive.best.rank
            yield from self._walk(draw, round(changes))
            idle = 0 if self._archive.best.rank < before else idle + 1
            changes = min(changes * how.growth, how.most)

    def _walk(self, draw: Draw, changes: int) -> Iterator[None]:
        """Anneal one plan: a drawn one, the best one, or one of the best."""
        how, generator, known = self._how, self._generator, self._archive.niches(self._how.niches)
        is_fresh, place = generator.random() < how.fresh, int(generator.integers(2 * len(known)))
        is_fresh |= how.fresh > 0 and not np.isfinite(self._archive.best.value)
        start = known[place] if 0 < place < len(known) else self._archive.best
        if np.isfinite(self._archive.best.value):
            self.rules = self.rules._replace(good=self._archive.best.value * self._of_loop)
        walk = self.begin(*(draw() if is_fresh else (start.types, start.begins)))
        donors = Donors(*self._stacked([(plan.types, plan.begins) for plan in known]))
        hottest = how.coldest * ((how.hottest if is_fresh else how.warm) / how.coldest) ** generator.random()
        parts = -(-changes // how.at_once)
        for part in range(parts):
            heats, changed = (hottest, how.coldest), changes // parts
            cooling = cooling_between(heats, how.exceeding, part / parts, (part + 1) / parts, changed)
            self.priced += compiled(anneal)(self.tables, self.rules, walk, donors, cooling)
            self._offer(walk, is_over=part + 1 == parts)
            yield
            if self._deadline.left_s() < 0:
                return

    def _open_s(self) -> float:
        """Return the longest time of a batch, or one that is long enough for any stage on one unit."""
        slowest_s = slowest_batch_s(self._archive.problem)
        return (
            slowest_s if np.isfinite(slowest_s) else float((self.tables.data_s[-1] + self.tables.compute_s[-1]).max())
        )

    @property
    def _of_loop(self) -> float:
        """Return what the loop's values are of those of ``evaluate``."""
        problem = self._archive.problem
        return 3600 * problem.batch / 1e6 if problem.objective == "cost" else 1.0

    def _any_value(self) -> float:
        """Return what stands for the value of a good plan before there is one: that of a unit for all layers."""
        of_hour, open_s = float(self.tables.rate.max()), self._open_s()
        return {COST: of_hour * open_s, PRICE: of_hour}.get(_OBJECTIVES[self._archive.problem.objective], open_s)

    def begin(self, types: Ints, begins: Bools) -> Walk:
        """Return a walk that begins with a plan, given layer by layer."""
        (bounds, none), (kinds, _), (count, _) = self._stacked([(types, begins), (types[:0], begins[:0])])
        numbers = np.array([[self.rules.open_s, np.inf, 0.0], [0.0, np.inf, 0.0]])
        return Walk(np.stack([bounds, none]), np.stack([kinds, kinds]), np.array([count, 0]), numbers, self._random)

    def price(self, types: Ints, begins: Bools, batch_s: float) -> tuple[float, float]:
        """Return what a plan costs at a time of a batch, in the loop's unit, and what it exceeds constraints by."""
        walk = self.begin(types, begins)
        walk.numbers[0, 0] = batch_s
        compiled(anneal)(self.tables, self.rules, walk, Donors(*self._stacked([])), _NO_CHANGE)
        return float(walk.numbers[0, 1]), float(walk.numbers[0, 2])

    def _stacked(self, plans: list[tuple[Ints, Bools]]) -> tuple[Ints, Ints, Ints]:
        """Return bounds, types and numbers of stages of plans, given layer by layer."""
        bounds, kinds = np.zeros((2, len(plans), self._room), np.int64)
        count = np.zeros(len(plans), np.int64)
        for row, plan in enumerate(plans):
            at, of_stages = self._stages(*plan)
            bounds[row, : len(at)], kinds[row, : len(of_stages)], count[row] = at, of_stages, len(of_stages)
        return bounds, kinds, count

    def _stages(self, types: Ints, begins: Bools) -> tuple[Ints, Ints]:
        """Return bounds, the last position included, and types of stages; no more of them than a plan may have."""
        places = np.flatnonzero(begins)
        at, kept = np.unique(np.searchsorted(self._positions, places), return_index=True)
        kept = kept[at < self._last][: self.rules.most]
        return np.append(at[: len(kept)], self._last), types[places[kept]]

    def _offer(self, walk: Walk, *, is_over: bool) -> None:
        """Evaluate the best plan of a walk where it is a new one; where the walk is over without any, the last."""
        has_best, is_known = bool(np.isfinite(walk.numbers[1, 1])), bool(walk.numbers[1, 2])
        if is_known if has_best else not is_over:
            return
        row = int(has_best)
        bounds = self._positions[walk.bounds[row, : walk.stages[row] + 1]]
        types, begins = np.repeat(walk.types[row, : walk.stages[row]], np.diff(bounds)), np.zeros(bounds[-1], np.bool_)
        begins[bounds[:-1]] = True
        self._archive.add(types[None], begins[None])
        walk.numbers[1, 2] = 1.0


def drawing(problem: Problem, proposals: Proposals, generator: np.random.Generator) -> Draw:
    """Return what draws a plan from one of some proposals."""
    rules = stage_rules(problem)

    def draw() -> tuple[Ints, Bools]:
        draws = draw_plans(proposals[int(generator.integers(len(proposals)))], rules, 1, generator)
        return draws.types[0], draws.begins[0]

    return draw


def loop_tables(table: SegmentTable) -> Tables:
    """Return a problem's tables for the loop."""
    problem, machines = table.problem, table.problem.machines
    ends, starts = np.arange(len(table.positions)), np.zeros(len(table.positions), np.int64)
    shape = len(ends), problem.type_count
    work, _ = table.work(starts, ends, None, np.zeros(shape))
    talking, _ = table.work(starts[:1], ends[:1], None, np.ones((1, shape[1])))
    demand, together = work.demand(), problem.rented_together
    of_layers = {
        "compute_s": work.compute_s,
        "data_s": work.data_s,
        "fixed_compute_s": demand.fixed_compute_s,
        "fixed_data_s": demand.fixed_data_s,
        "sync_s": demand.sync_s,
        "shared_s": work.shared_s,
        "forbidden": table.forbidden,
    }
    sums = np.zeros((*shape, len(of_layers)))  # what the loop reads together lies together
    for column, part in enumerate(of_layers.values()):
        sums[..., column] = 0.0 if part is None else part
    of_problem = {
        "memory_bytes": _NONE if table.memory_bytes is None else table.memory_bytes,
        "fixed_talk": talking.demand().fixed_data_s[0],
        "rate": problem.price_per_hour,
        "limits": np.maximum(problem.max_units, 1e-9).astype(np.float64),
        "capacity_bytes": problem.memory_bytes,
        "together": np.ones(shape[1]) if together is None else together.astype(np.float64),
        "units_per_machine": np.ones(shape[1]) if machines is None else machines.units,
        "inner": np.zeros(shape[1]) if machines is None else machines.inner,
        "layer": table.positions,
        **_link_tables(table),
    }
    parts: dict[str, Any] = {name: sums[..., column] for column, name in enumerate(of_layers)}
    for name, part in of_problem.items():  # numba compiles the loop anew for arrays that are read-only
        parts[name] = np.require(part, requirements=("C", "W"))
    return Tables(**parts)


def _link_tables(table: SegmentTable) -> dict[str, Floats | Ints]:
    """Return what is moved: over links between pairs of types, or else as sums of bytes."""
    problem, links = table.problem, link_traffic(table.problem)
    if links is None:
        none = dict.fromkeys(("starts", "producer", "low", "high", "reader", "before"), np.zeros(0, np.int64))
        bytes_ = {"moved_bytes": table.moved_bytes, "talks": table.talks, "size_bytes": np.zeros(0)}
        return {"per_byte": problem.seconds_per_byte[None], "latency_s": problem.latency_s[None], **bytes_, **none}
    position = np.repeat(np.arange(len(links.starts) - 1), np.diff(links.starts))
    order = np.lexsort((links.producer, position))
    entries = {name: getattr(links, name)[order] for name in ("producer", "size_bytes", "low", "high")}
    whole = {name: getattr(links, name) for name in ("per_byte", "latency_s", "starts", "reader", "before")}
    return {"moved_bytes": _NONE, "talks": _NONE, **entries, **whole}
