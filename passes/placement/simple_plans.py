"""Where searches begin: the simple plans that are worth a look on every problem, and the warm start.

Left out: searching (the methods do), and why a problem has no feasible plan (``why_infeasible.py``).
"""

from dataclasses import replace

import numpy as np

from heterps_compile.cost.evaluate import Fault, detail, evaluate, to_arrays
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.cost.segments import problem_tables
from heterps_compile.errors import InputError, UnprovenError
from heterps_compile.units import counted


def seed_placements(problem: Problem, warm_start: Placement | None) -> list[Placement]:
    """Return the warm start, if there is one; the whole model on each type; every layer where it is cheapest.

    A layer that may not run on a type goes where it is cheapest instead. Stages are cut evenly where the problem asks
    for more of them.

    Raises:
        InputError: where the warm start has another number of layers, or types that do not exist.
    """
    layers, types = problem.layer_count, problem.type_count
    usable = problem_tables(problem).usable
    busy_s = np.where(usable, np.maximum(problem.compute_s, problem.data_s), np.inf)
    cheapest = np.argmin(busy_s * np.maximum(problem.price_per_hour, 1e-9), axis=1)
    places = np.flatnonzero(~problem.uncuttable[1:layers]) + 1
    wanted = min(problem.min_stages - 1, len(places))
    cuts = tuple(int(places[i]) for i in np.unique(np.linspace(0, len(places) - 1, wanted).astype(int)))
    rows = [np.where(usable[:, t], t, cheapest) for t in range(types)] + [cheapest]
    for row in rows:
        for place in np.flatnonzero(problem.uncuttable[1:layers]) + 1:
            row[place] = row[place - 1]
    seeds = [Placement(tuple(int(t) for t in row), cuts) for row in rows]
    if warm_start is None:
        return seeds
    if len(warm_start.types) != layers or not all(0 <= t < types for t in warm_start.types):
        raise InputError(
            f"the warm start places {len(warm_start.types)} layers, the problem has {layers} on {types} types; "
            "take a plan of the same model and pool"
        )
    return [warm_start, *seeds]


def require_feasible(problem: Problem, placement: Placement, method: str) -> float:
    """Return the value of what a search found.

    Raises:
        InfeasibleError: where it is infeasible, naming what is wrong with it.
    """
    found = detail(problem, placement)
    if found.faults:
        broken = [fault.name for fault in Fault if fault & found.faults and fault.name]
        names = ", ".join(name.lower().replace("_", " ") for name in broken)
        raise UnprovenError(
            f"{method} found no feasible placement; the nearest has {counted(len(found.stages), 'stage')} and "
            f"breaks: {names}; --method exact searches all of them"
        )
    return found.value


def divide(problem: Problem, placement: Placement) -> Placement:
    """Add cuts, each where it costs least, until the placement has the least number of stages."""
    undivided = replace(problem, min_stages=1)
    while len(placement.starts()) < problem.min_stages:
        taken = set(placement.starts())
        free = [p for p in range(1, problem.layer_count) if p not in taken and not problem.uncuttable[p]]
        if not free:
            break
        divided = [Placement(placement.types, tuple(sorted((*placement.cuts, p)))) for p in free]
        evaluation = evaluate(undivided, *to_arrays(divided))
        placement = divided[int(np.lexsort((evaluation.violation, evaluation.values))[0])]
    return placement
