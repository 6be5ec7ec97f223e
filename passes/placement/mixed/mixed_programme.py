"""The cheapest units at a time tau of a batch where stages may have several types: a programme for HiGHS.

A segment of the chain is a stage where x is 1; it has k_t units of each type, of which one works on at most the part
v_t(tau) of a batch (``cost/mixed_units.py``), or a single unit y_t where that is fast enough alone::

    minimise    price of the units, or of the machines, that are rented
    subject to  segments out of a position - segments into it  = 1 for the first, else 0
                sum of v_t k_t + sum of y_t >= x               every segment: fast enough
                sum of k_t / 2 + sum of y_t >= x               one unit, or two and more
                sum over segments of k_t + y_t <= limit of t, or <= units of the machines of t
                least <= sum of x <= most, price <= budget

What replicas sum is counted as for two of the type's own, and links as the fastest: so no plan is cheaper than the
programme's bound. Where units may be parts, S given stages and L limits that bind leave at most S + L of the k_t above
zero in some best plan: no more than L stages need several types.

Left out: the choice of tau (``mixed_search.py``).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heterps_compile.cost.mixed_units import MixedPlacement
from heterps_compile.cost.problem import Floats, Ints, Problem
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.geometry import Chain, Segments
from heterps_compile.passes.solver import run_solver

_ROUNDING = 1e-7  # relative; by which a unit is taken to be faster, so that a bound stays one


@dataclass(frozen=True, slots=True, eq=False)
class MixedBound:
    """What a programme found.

    Attributes:
        price: No plan that takes at most tau costs less an hour; inf where there is none.
        placement: The best plan found, which may take a little longer than tau; None where none was found.
    """

    price: float
    placement: MixedPlacement | None


class MixedProgramme:
    """The programmes of a problem, one for every tau."""

    def __init__(self, problem: Problem, borders: Ints | None, deadline: Deadline) -> None:
        """Take the positions where stages may begin, or only some of them, 0 and the number of layers included."""
        plain = replace(
            problem,
            sync_s=np.zeros_like(problem.sync_s),
            rules=None,
            machines=None,
            rented_together=None,
            objective="cost",
        )
        chain = Chain(plain, borders)
        self._problem, self._chain = problem, chain
        self._listed: Segments = chain.all_segments(deadline)
        sums = np.vstack([np.zeros(problem.type_count), np.cumsum(problem.sync_s, axis=0)])[chain.borders]
        listed = self._listed
        own_s = sums[listed.end, listed.type] - sums[listed.first, listed.type]
        halves = np.full(problem.type_count, 0.5)
        if problem.machines is not None:
            halves = np.minimum(halves, problem.machines.share(np.full(problem.type_count, 2.0)))
        self._sync_s = own_s * halves[listed.type]
        self._stage, self._stage_of = np.unique(listed.first * (chain.length + 1) + listed.end, return_inverse=True)

    @property
    def segment_count(self) -> int:
        """Return how many segments there are."""
        return len(self._stage)

    def at(self, time_s: float, deadline: Deadline, *, is_free: bool) -> MixedBound:
        """Solve the programme of a tau.

        Args:
            time_s: tau.
            deadline: When to stop.
            is_free: Whether any plan within limits and budget will do, whatever it costs.

        Raises:
            TimeUpError: where too little time is left.
        """
        deadline.check()
        begun_s = now_s()
        speeds, is_enough = self._speeds(time_s)
        several, alone = np.flatnonzero(speeds > 0), np.flatnonzero(is_enough)
        programme = _Programme(self._problem, self._chain.length, is_free=is_free)
        first, end = np.divmod(self._stage, self._chain.length + 1)
        programme.add_stages(first, end)
        programme.add_units(self._stage_of[several], self._listed.type[several], speeds[several], 0.5)
        programme.add_units(self._stage_of[alone], self._listed.type[alone], np.ones(len(alone)), 1.0)
        price, values = programme.solved(deadline, begun_s)
        if values is None:
            return MixedBound(price, None)
        return MixedBound(price, self._placement(values, first, several, alone))

    def _speeds(self, time_s: float) -> tuple[Floats, Any]:
        """Return v of every segment and type, and whether one unit is enough."""
        demand = self._listed.demand
        with np.errstate(divide="ignore", invalid="ignore"):
            compute = demand.shared_compute_s / (time_s - demand.fixed_compute_s)
            data = demand.shared_data_s / (time_s - demand.fixed_data_s - self._sync_s)
        needed = np.maximum(np.maximum(compute, data), 1e-12)
        late = (time_s < demand.fixed_compute_s) | (time_s < demand.fixed_data_s + self._sync_s)
        if demand.least_s is not None:
            late |= time_s < demand.least_s
        # nothing left of a type's time is no speed, whatever is to be worked off
        late |= ~np.isfinite(needed)
        speeds = np.where(late, 0.0, (1 + _ROUNDING) / np.where(late, 1.0, needed))
        return np.minimum(speeds, 1e6), demand.once_s <= time_s * (1 + _ROUNDING)

    def _placement(self, values: Floats, first: Ints, several: Ints, alone: Ints) -> MixedPlacement:
        count = len(self._stage)
        taken = np.flatnonzero(values[:count] > 0.5)
        units = np.zeros((count, self._problem.type_count), np.int64)
        ends = count + len(several)
        for chosen, found in ((several, values[count:ends]), (alone, values[ends : ends + len(alone)])):
            np.add.at(units, (self._stage_of[chosen], self._listed.type[chosen]), np.round(found).astype(np.int64))
        taken = taken[np.argsort(first[taken])]
        starts = self._chain.borders[first[taken]]
        rows = (tuple(int(unit) for unit in units[stage]) for stage in taken)
        return MixedPlacement(tuple(int(start) for start in starts), tuple(rows))


class _Programme:
    """The columns and rows: stages, then units, then machines."""

    def __init__(self, problem: Problem, length: int, *, is_free: bool) -> None:
        self._problem, self._length, self._is_free = problem, length, is_free
        self._rows: list[Any] = []
        self._columns: list[Any] = []
        self._entries: list[Any] = []
        self._upper: list[Any] = []
        self._types: list[Ints] = []
        self._count, self._stages = 0, 0

    def add_stages(self, first: Ints, end: Ints) -> None:
        """Add a column for every segment; rows are the positions, the number of stages, and two for each segment."""
        self._stages = count = len(first)
        column, inner = np.arange(count), end < self._length
        self._put(first, column, np.ones(count))
        self._put(end[inner], column[inner], -np.ones(np.count_nonzero(inner)))
        self._put(np.full(count, self._length), column, np.ones(count))
        for kind in range(2):
            self._put(self._of_stage(kind, column), column, -np.ones(count))
        self._upper.append(np.ones(count))
        self._count = count

    def add_units(self, stage: Ints, types: Ints, speeds: Floats, share: float) -> None:
        """Add columns of units of types in stages, with their speeds, and what they count of a stage's one unit."""
        column = self._count + np.arange(len(stage))
        self._put(self._of_stage(0, stage), column, speeds)
        self._put(self._of_stage(1, stage), column, np.full(len(stage), share))
        self._put(self._of_type(types), column, np.ones(len(stage)))
        self._upper.append(np.ones(len(stage)) if share == 1.0 else self._problem.max_units[types].astype(np.float64))
        self._types.append(types)
        self._count += len(stage)

    def solved(self, deadline: Deadline, begun_s: float) -> tuple[float, Floats | None]:
        """Return the bound on the price, inf where nothing is possible, and the values of the best columns found."""
        import highspy  # noqa: PLC0415 - half a second that only this needs

        problem = self._problem
        types, together = problem.type_count, problem.rented_together
        machines = np.ones(types, np.int64) if together is None else together
        column = self._count + np.arange(types)
        self._put(self._of_type(np.arange(types)), column, -machines.astype(np.float64))
        price = problem.price_per_hour * machines
        has_budget = int(np.isfinite(problem.budget_per_hour))
        last = self._of_type(np.array([types]))
        if has_budget:
            self._put(np.repeat(last, types), column, price)
        upper = np.concatenate([*self._upper, problem.max_units // machines])
        cost = np.zeros(self._count + types)
        scale = float(price.max()) or 1.0
        if not self._is_free:
            cost[self._count :] = price / scale
        flow = (np.arange(self._length) == 0).astype(np.float64)
        none = np.full(types, -np.inf)
        lower_rows = [flow, [problem.min_stages], np.zeros(2 * self._stages), none, [-np.inf] * has_budget]
        upper_rows = [
            flow,
            [min(problem.max_stages, self._length)],
            np.full(2 * self._stages, np.inf),
            np.zeros(types),
            [problem.budget_per_hour * (1 + 1e-9)] * has_budget,
        ]
        rows, columns, entries = (np.concatenate(parts) for parts in (self._rows, self._columns, self._entries))
        order = np.argsort(columns, kind="stable")
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(cost), sum(map(len, lower_rows))
        model.col_cost_, model.col_lower_, model.col_upper_ = cost, np.zeros(len(cost)), upper.astype(np.float64)
        model.integrality_ = [highspy.HighsVarType.kInteger] * len(cost)
        model.row_lower_, model.row_upper_ = np.concatenate(lower_rows), np.concatenate(upper_rows)
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=len(cost)))])
        model.a_matrix_.index_ = rows[order]
        model.a_matrix_.value_ = entries[order]
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # highspy ships no types for it
        for option, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 1e-9), ("mip_abs_gap", 1e-9)):
            solver.setOptionValue(option, value)
        solver.passModel(model)
        run_solver(solver, deadline, begun_s=begun_s)
        status, info = solver.getModelStatus(), solver.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return np.inf, None
        bound = float(info.mip_dual_bound) * scale
        has_plan = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        return max(bound, 0.0), np.asarray(solver.getSolution().col_value) if has_plan else None

    def _of_stage(self, kind: int, stage: Ints) -> Ints:
        return self._length + 1 + kind * self._stages + stage

    def _of_type(self, types: Ints) -> Ints:
        return self._length + 1 + 2 * self._stages + types

    def _put(self, rows: Ints, columns: Ints, entries: Floats) -> None:
        self._rows.append(rows)
        self._columns.append(columns)
        self._entries.append(entries)
