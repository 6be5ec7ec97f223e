"""The cheapest path over segments under limits that couple them, as a mixed-integer programme for HiGHS.

Columns are segments, 1 where the path uses them::

    minimise    sum of cost x
    subject to  segments out of position 0              = 1
                segments out of a - segments into a     = 0     for every other position but the last
                sum over segments on type t of units x <= limit t
                least <= sum of x <= most                      (stages)
                sum of price units x <= budget

The matrix of the path alone has whole-numbered corners; the limits are few, so the relaxation is nearly whole.

Not covered: the choice of tau, at which costs and units are fixed (``time_search.py``).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from heterps_compile.cost.chosen_units import BUDGET_TOLERANCE
from heterps_compile.cost.problem import Floats, Ints, Problem
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.geometry import Runs
from heterps_compile.passes.solver import run_solver


@dataclass(frozen=True, slots=True, eq=False)
class CoupledPath:
    """What the programme found.

    Attributes:
        bound: Proven lower bound on the cost of every path within the limits; inf where there is none.
        chosen: Indices of the segments of the best path found, in order; None where none was found.
        is_optimal: Whether that path is proven best (or none proven to exist).
    """

    bound: float
    chosen: Ints | None
    is_optimal: bool


@dataclass(frozen=True, slots=True, eq=False)
class Coupling:
    """What couples the segments of a path.

    Attributes:
        length: n, the last position.
        limits: [T], on units.
        least, most: Stages.
        unit_price: [T].
        budget: For the units of all segments of the path.
    """

    length: int
    limits: Floats
    least: int
    most: int
    unit_price: Floats
    budget: float

    @classmethod
    def of(cls, problem: Problem, length: int) -> "Coupling":
        """Return the limits of a problem on paths of so many positions."""
        limits, budget = problem.max_units.astype(np.float64), problem.budget_per_hour * (1 + BUDGET_TOLERANCE)
        return cls(length, limits, problem.min_stages, problem.max_stages, problem.price_per_hour, budget)


def coupled_path(
    segments: Runs,
    cost: Floats,
    units: Floats,
    coupling: Coupling,
    deadline: Deadline,
    *,
    most_s: float = np.inf,
    enough: float = -np.inf,
    may_overlap: bool = False,
) -> CoupledPath:
    """Find the cheapest path from the first position to the last within what couples its segments.

    Args:
        segments: M segments.
        cost: [M], inf for what is not possible.
        units: [M], of its type.
        coupling: The limits.
        deadline: Stop then; what it takes to write the programme down counts too.
        most_s: Most seconds that solving it may take.
        enough: Stop at a path that costs this or less.
        may_overlap: Whether a segment may begin before the end of the one before it.

    Raises:
        TimeUpError: where the programme is not written down in time, or too little is left to solve it.
    """
    deadline.check()
    import highspy  # noqa: PLC0415 - half a second that only coupled limits need

    begun_s = now_s()
    length, limits, budget = coupling.length, coupling.limits, coupling.budget
    usable = np.flatnonzero(np.isfinite(cost) & np.isfinite(units))
    if len(usable) == 0:
        return CoupledPath(np.inf, None, True)
    first, end, type_ = segments.first[usable], segments.end[usable], segments.type[usable]
    count, types = len(usable), len(limits)
    scale = float(np.max(np.abs(cost[usable]))) or 1.0  # HiGHS measures with absolute tolerances
    inner = end < length
    column = np.arange(count)
    has_budget = int(np.isfinite(budget))
    paid = coupling.unit_price[type_] * units[usable] if has_budget else np.zeros(0)
    rows = [first, end[inner], length + type_, np.full(count, length + types), np.full(len(paid), length + types + 1)]
    entries = [np.ones(count), -np.ones(np.count_nonzero(inner)), units[usable], np.ones(count), paid]
    back = np.arange(1, length - 1) if may_overlap else np.zeros(0, np.int64)  # from the position after it
    rows, entries = [*rows, back + 1, back], [*entries, np.ones(len(back)), -np.ones(len(back))]
    backwards, every = count + np.arange(len(back)), count + len(back)
    columns = np.concatenate([column, column[inner], column, column, column[: len(paid)], backwards, backwards])
    order = np.argsort(columns, kind="stable")

    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = every, length + types + 1 + has_budget
    model.col_cost_ = np.append(cost[usable] / scale, np.zeros(len(back)))
    model.col_lower_, model.col_upper_ = np.zeros(every), np.ones(every)
    model.integrality_ = [highspy.HighsVarType.kInteger] * every
    flow = (np.arange(length) == 0).astype(np.float64)
    model.row_lower_ = np.concatenate([flow, np.full(types, -np.inf), [coupling.least], [-np.inf] * has_budget])
    model.row_upper_ = np.concatenate([flow, limits, [min(coupling.most, length)], [budget] * has_budget])
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=every))])
    model.a_matrix_.index_ = np.concatenate(rows)[order]
    model.a_matrix_.value_ = np.concatenate(entries)[order]

    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # highspy ships no types for it
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 1e-9),
        ("mip_feasibility_tolerance", 1e-9),
        ("primal_feasibility_tolerance", 1e-9),
        ("dual_feasibility_tolerance", 1e-9),
        ("objective_target", enough / scale if np.isfinite(enough) else -1e300),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(model)
    run_solver(solver, deadline, begun_s=begun_s, most_s=most_s)
    status, info = solver.getModelStatus(), solver.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return CoupledPath(np.inf, None, True)
    has_path = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    chosen = None
    if has_path:
        taken = usable[np.asarray(solver.getSolution().col_value)[:count] > 0.5]
        chosen = taken[np.argsort(segments.first[taken])]
    is_optimal = status == highspy.HighsModelStatus.kOptimal
    return CoupledPath(float(info.mip_dual_bound) * scale, chosen, is_optimal)
