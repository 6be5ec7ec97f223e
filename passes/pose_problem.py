"""Reduce the draft to the arrays that a search sees, with the tables on servers that must be there.

Where the tables of a plan lie is decided before: by the plan, or by the request. A table of whose layer no unit holds
all is on servers here, unless all are to be held; by ``cheapest`` the search may put others there too
(``served_sets.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from heterps_compile.cost.layer_times import LayerTimes, layer_times
from heterps_compile.cost.memory import ALWAYS, MEMORY_TOLERANCE, changed_weights
from heterps_compile.cost.pose import pose_problem
from heterps_compile.cost.problem import Floats, Problem
from heterps_compile.cost.segments import problem_tables
from heterps_compile.cost.served_tables import Table, served_costs, tables_of
from heterps_compile.cost.sync_groups import layer_words
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.escape import printable
from heterps_compile.plan.request import CHEAPEST, HELD, PROVISIONERS, SERVED
from heterps_compile.schedule.load import with_least_activations
from heterps_compile.units import counted, format_bytes

from .drafts import Annotated, Posed, advance
from .searched_rules import with_searched_rules


@dataclass(frozen=True, slots=True)
class PoseProblem:
    """Estimate every layer on every device type and state the search problem.

    Of activations the problem has the least that a schedule may hold (``within_memory.py``).
    """

    name: ClassVar[str] = "pose-problem"

    def __call__(self, draft: Annotated) -> Posed:
        """Fill in ``times`` and ``problem``, with the tables on servers that a plan, or what is asked, has there.

        Raises:
            InputError: where servers are asked for and the pool has none, or the model no table for them.
            UnknownNameError: where a rule of --sync is for no layer of the model.
            InfeasibleError: where a table must lie on servers, and the pool has none.
        """
        _refuse_to_repeat(draft)
        tables, request = tables_of(draft.layers, draft.costs), draft.request
        if draft.served_layers is not None:
            return pose(draft, [table for table in tables if table.rows_bytes.keys() <= set(draft.served_layers)])
        request.sync_rules.refuse_unknown(layer_words(draft.layers, draft.costs))
        if not tables:
            _need_tables(draft)
            return pose(draft, [])
        if request.tables == SERVED:
            return pose(draft, tables)
        held = pose(draft, [])
        must = _that_no_unit_holds(held.problem, tables)
        if must:
            _refuse_unserved(draft, held.problem, must)
        if request.tables == HELD:
            return held
        if request.tables == CHEAPEST:
            pose(draft, tables)  # which says where the pool has no servers
            return pose(draft, must, [table for table in tables if table not in must])
        return pose(draft, must)


def pose(draft: Annotated, served: Sequence[Table], left_open: Sequence[Table] = ()) -> Posed:
    """Return the draft posed with some more tables on servers, and others that the search may put there.

    Raises:
        InputError: where the pool has no servers for them.
    """
    if served and draft.cluster.parameter_server is None:
        raise InputError(
            f"the pool {draft.cluster.name!r} has no parameter servers, and {counted(len(served), 'table')} would lie "
            "on them; add a [parameter_server] to it, or hold the tables in their stages (--tables held)"
        )
    request, costs = draft.request, served_costs(draft.layers, draft.costs, served)
    times = layer_times(
        draft.layers,
        costs,
        draft.cluster,
        draft.measurements,
        training=request.mode == "training",
        precision=request.precision,
    )
    problem = pose_problem(draft.layers, costs, times, request)
    if draft.recompute == ALWAYS:
        problem = replace(problem, compute_s=problem.compute_s * recomputation_factors(times, problem))
    problem = with_least_activations(problem, is_divisible=draft.graph.is_divisible)
    posed = advance(draft, Posed, costs=costs, times=times, problem=problem, open_tables=tuple(left_open))
    return with_searched_rules(posed)


def _that_no_unit_holds(problem: Problem, tables: Sequence[Table]) -> list[Table]:
    """Return the tables of layers that fit no type which may run them."""
    needed = (problem.weight_bytes + problem.activation_bytes)[:, None]
    usable = problem_tables(problem).usable
    fits = np.any(usable & (needed <= problem.memory_bytes * (1 + MEMORY_TOLERANCE)), axis=1) | ~usable.any(axis=1)
    too_large = {name for name, is_held in zip(problem.layer_names, fits, strict=True) if not is_held}
    return [table for table in tables if not table.rows_bytes.keys().isdisjoint(too_large)]


def _need_tables(draft: Annotated) -> None:
    if draft.request.tables == SERVED:
        raise InputError(
            f"--tables served: {printable(draft.graph.name)!r} has no table that servers could hold, which is a matrix "
            "of float32 that is looked up and not read otherwise; leave it out"
        )


def _refuse_unserved(draft: Annotated, problem: Problem, must: Sequence[Table]) -> None:
    """Refuse tables that no unit holds where no server can."""
    way_out = ""
    if draft.cluster.parameter_server is None:
        way_out = f"add a [parameter_server] to the pool {draft.cluster.name!r}, so that it may lie on servers"
    elif draft.request.tables == HELD:
        way_out = "leave --tables held out, so that it may lie on servers"
    elif draft.request.sync_rules.uses_servers:
        way_out = f"leave --sync {draft.request.synchronisation} out, so that it may lie on servers"
    elif draft.request.provisioner != PROVISIONERS[0]:
        way_out = "leave --provisioner out, so that it may lie on servers"
    if not way_out:
        return
    largest = max(must, key=lambda table: table.size_bytes)
    layer = problem.layer_names.index(next(iter(largest.rows_bytes)))
    usable = problem_tables(problem).usable[layer]
    most = int(np.argmax(np.where(usable, problem.memory_bytes, -1.0)))
    raise InfeasibleError(
        f"the table {printable(largest.name)!r} has {format_bytes(largest.size_bytes)}, its layer holds "
        f"{format_bytes(problem.weight_bytes[layer] + problem.activation_bytes[layer])} with all that goes with it, "
        f"and the largest unit that may run it, {problem.type_names[most]!r}, has "
        f"{format_bytes(problem.memory_bytes[most])}; {way_out}"
    )


def recomputation_factors(times: LayerTimes, problem: Problem) -> Floats:
    """Return [L, T], by how much layers compute longer whose activations are computed again."""
    found = np.ones(problem.compute_s.shape)
    for layer, type_ in zip(*np.nonzero(np.isfinite(problem.compute_s)), strict=True):
        phases = times.phases(int(layer), int(type_))
        found[layer, type_] += phases.forward_s / phases.whole_s if phases.whole_s > 0 else 0.0
    return found


def _refuse_to_repeat(draft: Annotated) -> None:
    """Refuse to compute all activations again where a forward changes a weight.

    Raises:
        InputError: naming it.
    """
    changed = changed_weights(draft.layers, range(len(draft.layers.layers)))
    if draft.recompute == ALWAYS and changed:
        raise InputError(
            f"a forward changes the weight {printable(changed[0])!r}, so the stage that has it cannot repeat it; take "
            f"--recompute auto, which leaves that stage out, or never"
        )
