"""How many replicas every stage of a placement gets under each objective.

::

    cost         those that make price times time of a batch least (``best_units.py``)
    price        the fewest at the throughput floor
    throughput   those that make the slowest stage fastest, within the budget and the limits on units
    latency      the fewest at the throughput floor: replicas do not make the way of one batch shorter
    max-load     one

Left out: whether the placement is feasible, and its value (``evaluate.py``).
"""

import numpy as np

from .best_units import best_units
from .problem import Bools, Floats, Problem
from .replicas import ReplicaDemand
from .segments import FlatStages
from .whole_machines import paid_per_hour, units_by_type

BUDGET_TOLERANCE = 1e-9
"""Relative: a budget is kept where rounding alone stands between it and the price."""

_CLOSE = 4e-12  # relative; times nearer than this cannot be told from rounding
_STEPS = 400


def fewest_units(problem: Problem, stages: FlatStages, slowest_s: Floats) -> Floats:
    """Return [N], the fewest units with which every stage takes at most its placement's ``slowest_s`` [B].

    Inf where no number is enough, which for ``max-load`` is every number but 1.
    """
    units = stages.work.demand().units(slowest_s[stages.placement])
    return np.where(units == 1, 1.0, np.inf) if problem.objective == "max-load" else units


def chosen_units(problem: Problem, stages: FlatStages, slowest_s: Floats) -> Floats:
    """Return [N], the units of every stage that are best for the objective; all placements must be feasible.

    Args:
        problem: The problem.
        stages: N stages of B placements.
        slowest_s: [B], the longest time of a batch that is allowed.
    """
    if problem.objective == "cost":
        return best_units(problem, stages, slowest_s)
    if problem.objective == "throughput":
        return _fastest_units(problem, stages, slowest_s)
    return fewest_units(problem, stages, slowest_s)


def is_affordable(problem: Problem, stages: FlatStages, units: Floats) -> Bools:
    """Return [B], whether units [N] keep to the budget and to the limits; inf units do not."""
    owners = len(stages.offsets)
    used = units_by_type(problem.type_count, stages.type, stages.placement, units, owners)
    paid = paid_per_hour(problem, stages.type, stages.placement, stages.offsets, units)
    within = np.all(used <= problem.max_units, axis=1)
    return np.asarray(within & (paid <= problem.budget_per_hour * (1 + BUDGET_TOLERANCE)))


def _fastest_units(problem: Problem, stages: FlatStages, slowest_s: Floats) -> Floats:
    """Narrow the range of times between one that is affordable and one that is not, until nothing lies in it.

    Times that units reach are steps: a time just below the one that is reached, and the middle of the range, are tried
    in turns. The first ends the search where it is not affordable.
    """
    demand: ReplicaDemand = stages.work.demand()
    slow_s = slowest_s.copy()  # affordable
    fast_s = np.maximum.reduceat(demand.fixed_s, stages.offsets)  # no number of units is faster
    units = demand.units(slow_s[stages.placement])
    for step in range(_STEPS):
        reached_s = np.maximum.reduceat(demand.time_s(units), stages.offsets)
        slow_s = np.minimum(slow_s, reached_s)
        open_ = fast_s < slow_s * (1 - _CLOSE)
        if not np.any(open_):
            break
        next_s = (slow_s + fast_s) / 2 if step % 2 else slow_s * (1 - _CLOSE)
        tried_s = np.where(open_, next_s, slow_s)
        tried = demand.units(tried_s[stages.placement])
        affordable = is_affordable(problem, stages, tried)
        units = np.where((affordable & open_)[stages.placement], tried, units)
        fast_s = np.where(open_ & ~affordable, tried_s, fast_s)
    return demand.units(slow_s[stages.placement])
