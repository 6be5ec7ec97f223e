"""Why no placement is feasible: which constraint, by how much, and what would help, with numbers.

Constraints are put back one after the other, in the order of the list :data:`_REASONS`; the first under which
nothing is left is the one to name. Where several act together, they are taken away again one by one
(``dropped_constraints.py``): what is named is what would help to drop.

Left out: reasons of a single placement (``Fault`` in ``cost/evaluate.py``).
"""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from heterps_compile.cost.evaluate import FLOOR_TOLERANCE, ranges_of, slowest_batch_s
from heterps_compile.cost.problem import Bools, Floats, Problem
from heterps_compile.cost.segments import problem_tables
from heterps_compile.cost.whole_machines import by_unit
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline, TimeUpError
from heterps_compile.passes.placement.geometry import Chain, Segments, Tile
from heterps_compile.units import counted, format_bytes, format_money, format_seconds

from .dropped_constraints import MEMORY, PINS, WITHOUT, fewest_to_drop, in_words, without
from .path_programme import CoupledPath, Coupling, Terms, coupled_path
from .paths import SegmentPrices, StageCounts, cheapest_path
from .tiled_paths import TiledSegments
from .trivial_bounds import longest_s

_EXPLAIN_S = 10.0  # for finding out what would help, where the deadline leaves so much
_LEAST_EXPLAIN_S = 1.0  # for the reason, however little is left
_MOST_LISTED = 100_000


def explain_infeasible(problem: Problem, deadline: Deadline = NO_DEADLINE) -> InfeasibleError:
    """Return the error that says why a problem without any feasible placement has none.

    Args:
        problem: The problem.
        deadline: Of the search that found out; it leaves a second at least for the reason, which is the answer.
    """
    deadline = deadline.at_least(_LEAST_EXPLAIN_S)
    if problem.served_s is not None:
        problem = ranges_of(problem)[0].problem
    is_rented_whole, problem = problem.rented_together is not None, by_unit(problem)
    if problem.objective == "max-load":  # one unit a stage: what replicas cannot divide
        serial = np.zeros(problem.type_count)
        problem = replace(
            problem,
            compute_parallel=serial,
            data_parallel=serial,
            layer_compute_parallel=None,
            layer_data_parallel=None,
        )
    try:
        for reason in _REASONS:
            if is_rented_whole and reason is _limits and _keeps_units_and_budget(problem, deadline):
                return InfeasibleError(
                    f"the budget of {_money(problem, problem.budget_per_hour)} an hour is too small for machines that "
                    "are rented whole, and units by themselves would keep to it; raise it (--budget)"
                )
            message = reason(problem, deadline)
            if message and is_rented_whole and reason is _budget:
                message += "; whole machines may cost more"
            if message:
                return InfeasibleError(message)
    except TimeUpError:
        pass  # which constraint it is was not found out in the time
    return InfeasibleError(
        "no placement meets all constraints together: the throughput floor "
        f"({_rate(problem.min_throughput)}), the budget, the limits on units, the memory of the types, "
        f"{problem.min_stages} to "
        f"{problem.max_stages} stages; relax the floor (--min-throughput) first"
    )


def _no_type(problem: Problem, _deadline: Deadline) -> str:
    usable, chain = problem_tables(problem).usable, Chain(problem)
    for layer in np.flatnonzero(~usable.any(axis=1)):
        forbidden = _names(problem, ~problem.allowed[layer])
        unable = _names(problem, problem.allowed[layer] & ~usable[layer])
        because = [f"a pin, a forbidden pair or what the type supports rules out {forbidden}"] if forbidden else []
        because += [f"{unable} cannot run it"] if unable else []
        return (
            f"layer {problem.layer_names[layer]!r} may run on no type of the pool: {', and '.join(because)}; "
            "drop the pin or the pair (--pin, --forbid), or add a type that runs it"
        )
    for first, end in zip(chain.borders[:-1], chain.borders[1:], strict=True):
        if not usable[first:end].all(axis=0).any():
            return (
                f"layers {problem.layer_names[first]!r} to {problem.layer_names[end - 1]!r} cannot be cut apart, and "
                f"no one type of {', '.join(problem.type_names)} may run all of them; pin them to the same type"
            )
    return ""


def _stage_count(problem: Problem, _deadline: Deadline) -> str:
    most = Chain(problem).length
    if problem.min_stages > most:
        return (
            f"at least {problem.min_stages} stages are asked for, but the {counted(problem.layer_count, 'layer')} can "
            f"be cut into at most {most}; ask for --min-stages {most} or fewer"
        )
    if problem.min_stages > problem.max_stages:
        return f"at least {problem.min_stages} and at most {counted(problem.max_stages, 'stage')} exclude each other"
    return ""


def _memory_and_types(problem: Problem, deadline: Deadline) -> str:
    chain, fewest = Chain(problem), _fewest_stages(problem, deadline)
    if np.isinf(fewest):
        usable = problem_tables(problem).usable
        for block in range(chain.length):
            first, end = chain.borders[block], chain.borders[block + 1]
            if not _alone(chain, block).possible[:, 0, 0].any():
                largest = max(np.flatnonzero(usable[first:end].all(axis=0)), key=lambda t: problem.memory_bytes[t])
                name = f"layer {problem.layer_names[first]!r}"
                name += "" if end == first + 1 else f" to {problem.layer_names[end - 1]!r}, which cannot be cut apart,"
                needed = chain.memory_bytes(block)
                return (
                    f"{name} needs at least {format_bytes(needed)}, and the largest type it may run on, "
                    f"{problem.type_names[largest]!r}, has {format_bytes(problem.memory_bytes[largest])}; "
                ) + _roomier(problem, first, end, needed)
    return _too_many_stages(problem, fewest, deadline) if fewest > problem.max_stages else ""


def _fewest_stages(problem: Problem, deadline: Deadline) -> float:
    """Return the fewest stages that memory and the types which layers may run on leave; inf where there are none."""
    slow_s = longest_s(problem)
    each_costs_one = replace(problem, price_per_hour=np.full(problem.type_count, 1 / slow_s))
    graph = TiledSegments(Chain(problem), _prices(each_costs_one, slow_s), deadline)
    return float(graph.to_go(StageCounts.at_least(1))[0, 0])


def _too_many_stages(problem: Problem, fewest: float, deadline: Deadline) -> str:
    """Say what asks for more stages than are allowed: what they would be without memory, without pins, without both."""
    by_memory, by_pins, by_types = (
        _fewest_stages(without(problem, names), deadline) for names in ([PINS], [MEMORY], [MEMORY, PINS])
    )
    most, stages = problem.max_stages, counted(round(fewest), "stage")
    allow, pins = f"allow --max-stages {fewest:.0f}", "drop a pin or a pair (--pin, --forbid)"
    pinned = "pins, forbidden pairs and what the types support, along this order of the layers,"
    if by_types > most:
        because = f"no type runs all layers: in this order they ask for at least {stages}"
        return f"{because}, and at most {most} are allowed; {allow}, or add a type that runs more of them"
    if by_memory > most and by_pins > most:
        because = f"memory asks for at least {by_memory:.0f} stages, {pinned} for at least {by_pins:.0f}"
        return f"{because}, together for {fewest:.0f}, and at most {most} are allowed; {allow}"
    if by_memory > most:
        more = "" if by_memory == fewest else f" ({fewest:.0f} with the pins)"
        more += "" if by_types <= 1 else f" (with room for everything, what the types support asks for {by_types:.0f})"
        because = f"memory asks for at least {counted(round(by_memory), 'stage')} in this order of the layers{more}"
        return f"{because}, and at most {most} are allowed; {allow}, or add a type with more memory"
    if by_pins > most:
        more = "" if by_pins == fewest else f" ({fewest:.0f} with the memory of the types)"
        because = f"{pinned} ask for at least {counted(round(by_pins), 'stage')}{more}"
        return f"{because}, and at most {most} are allowed; {pins}, or {allow}"
    because = f"memory and {pinned} together ask for at least {stages} (memory alone {by_memory:.0f}, the pins "
    because += f"alone {by_pins:.0f})"
    return f"{because}, and at most {most} are allowed; {pins}, {allow}, or add a type with more memory"


def _roomier(problem: Problem, first: int, end: int, needed_bytes: float) -> str:
    """Say where layers would fit that may not go there, or that they fit nowhere."""
    runs = np.isfinite(problem.compute_s[first:end]).all(axis=0)
    forbidden = ~problem.allowed[first:end].all(axis=0)
    for t in np.flatnonzero(runs & forbidden & (problem.memory_bytes >= needed_bytes)):
        size = format_bytes(problem.memory_bytes[t])
        return f"{problem.type_names[t]!r}, which has {size}, is ruled out: drop the pin or the pair (--pin, --forbid)"
    return "use a smaller batch, or add a type with more memory"


def _floor(problem: Problem, deadline: Deadline) -> str:
    chain, slow_s = Chain(problem), slowest_batch_s(problem)
    if not np.isfinite(slow_s) or np.isfinite(_least_price(problem, chain, slow_s, deadline)):
        return ""
    deadline = deadline.within(_EXPLAIN_S)
    dropped = fewest_to_drop(problem, partial(_meets, slow_s=slow_s, deadline=deadline), tuple(WITHOUT), deadline)
    silent = Chain(
        replace(problem, edge_bytes=np.zeros_like(problem.edge_bytes))
    )  # beside others, a layer may send less
    least = [_least_time_s(_alone(silent, block)) for block in range(chain.length)]
    slowest = max(range(chain.length), key=lambda block: least[block][0])
    least_s, type_ = least[slowest]
    if least_s > slow_s:
        blocking = (
            f"layer {problem.layer_names[chain.borders[slowest]]!r} takes at least {format_seconds(least_s)} a batch "
            f"on {problem.type_names[type_]!r}, its best type, {_with_units(problem)}, and the floor leaves "
            f"{format_seconds(slow_s)}"
        )
    elif dropped == ():
        agrees = ", and replicas until they agree," if np.any(problem.sync_s > 0) else ""
        blocking = f"no single layer blocks, but what the stages have to send to one another{agrees} does"
    else:
        blocking = "no single layer blocks"
    if dropped:
        blocking += f", and without {in_words(dropped)} it could be reached"
    return f"a throughput of {_rate(problem.min_throughput)} cannot be reached: {blocking}" + _reachable(
        problem, chain, slow_s, _listed(chain), deadline
    )


def _meets(problem: Problem, *, slow_s: float, deadline: Deadline) -> bool:
    return bool(np.isfinite(_least_price(problem, Chain(problem), slow_s, deadline)))


def _with_units(problem: Problem) -> str:
    return "with its one unit" if problem.objective == "max-load" else "however many replicas it has"


def _budget(problem: Problem, deadline: Deadline) -> str:
    if math.isinf(problem.budget_per_hour):
        return ""
    chain = Chain(problem)
    slow_s, segments = min(slowest_batch_s(problem), longest_s(problem)), _listed(chain)
    if segments is None:
        price = _least_price(problem, chain, slow_s, deadline)
        deadline = deadline.within(_EXPLAIN_S)
    else:
        units = segments.demand.units(slow_s)
        paid, limits = problem.price_per_hour[segments.type] * units, problem.max_units.astype(np.float64)
        unbound, deadline = replace(problem, budget_per_hour=math.inf), deadline.within(_EXPLAIN_S)
        found = _solve(unbound, chain, segments, Terms(paid, units), deadline, limits=limits)
        if found.chosen is None and not found.is_optimal:  # the time did not suffice to tell one from the other
            budget = _money(problem, problem.budget_per_hour)
            return f"the budget of {budget} an hour and the limits on units together leave no plan; raise one of them"
        price = math.inf if found.chosen is None else float(paid[found.chosen].sum())
    if math.isinf(price) or price <= problem.budget_per_hour:
        return ""
    reaching = f" that reaches {_rate(problem.min_throughput)}" if problem.min_throughput > 0 else ""
    message = (
        f"the budget of {_money(problem, problem.budget_per_hour)} an hour is too small: the cheapest plan{reaching} "
        f"costs {_money(problem, price)} an hour; allow --budget {_cents(price)}"
    )
    return message + (_reachable(problem, chain, slow_s, segments, deadline) if problem.min_throughput > 0 else "")


def _keeps_units_and_budget(problem: Problem, deadline: Deadline) -> bool:
    """Return whether some plan keeps the limits on units and the budget, which no other reason rules out."""
    chain, slow_s = Chain(problem), min(slowest_batch_s(problem), longest_s(problem))
    segments = _listed(chain)
    if segments is None:
        return _least_price(problem, chain, slow_s, deadline) <= problem.budget_per_hour
    units, limits = segments.demand.units(slow_s), problem.max_units.astype(np.float64)
    found = _solve(problem, chain, segments, Terms(np.zeros(len(units)), units), deadline, limits=limits)
    return found.chosen is not None


def _limits(problem: Problem, deadline: Deadline) -> str:
    chain = Chain(problem)
    slow_s = min(slowest_batch_s(problem), longest_s(problem))
    graph, counts = TiledSegments(chain, _prices(problem, slow_s), deadline), _counts(problem)
    to_go = graph.to_go(counts)
    if np.isinf(to_go[0, 0]):
        return ""
    path = cheapest_path(graph, counts, to_go)
    needed = np.bincount(path.type, path.demand.units(slow_s), problem.type_count)
    short = [
        f"{needed[t]:.0f} {problem.type_names[t]!r} (limit {problem.max_units[t]})"
        for t in np.flatnonzero(needed > problem.max_units)
    ]
    at_floor = f"at {_rate(problem.min_throughput)} " if problem.min_throughput > 0 else ""
    message = f"the limits on units cannot be met: {at_floor}the cheapest plan without them needs {' and '.join(short)}"
    segments, deadline = _listed(chain), deadline.within(_EXPLAIN_S)
    if segments is not None:
        message += _one_limit_raised(problem, chain, segments, slow_s, deadline)
    if segments is not None and problem.min_throughput > 0:
        message += _reachable(problem, chain, slow_s, segments, deadline)
    return message


def _one_limit_raised(problem: Problem, chain: Chain, segments: Segments, slow_s: float, deadline: Deadline) -> str:
    best, is_certain = (math.inf, 0, 0.0, 0.0), True
    units = segments.demand.units(slow_s)
    for budget in dict.fromkeys((problem.budget_per_hour, math.inf)):  # within the budget, else beyond it
        allowed = replace(problem, budget_per_hour=budget)
        for t in range(problem.type_count):
            limits = problem.max_units.astype(np.float64)
            limits[t] = np.inf
            cost = np.where(segments.type == t, units, 0.0)
            found = _solve(allowed, chain, segments, Terms(cost, units), deadline, limits=limits)
            chosen, is_certain = found.chosen, is_certain and found.is_optimal
            if chosen is not None:
                needed = float(units[chosen][segments.type[chosen] == t].sum())
                paid = float(problem.price_per_hour[segments.type[chosen]] @ units[chosen])
                best = min(best, ((needed - problem.max_units[t]) * float(problem.price_per_hour[t]), t, needed, paid))
        if math.isfinite(best[0]):
            break
    price, t, needed, paid = best
    if not math.isfinite(price):
        return "; no limit is enough to raise alone" if is_certain else ""
    within = "" if paid <= problem.budget_per_hour else f" with --budget {_cents(paid)}"
    return (
        f"; {needed:.0f} {problem.type_names[t]!r} would be enough{within} ({needed - problem.max_units[t]:.0f} more, "
        f"{_money(problem, price)} an hour)"
    )


def _reachable(problem: Problem, chain: Chain, slow_s: float, segments: Segments | None, deadline: Deadline) -> str:
    """Say what throughput can be reached, as far as the time suffices; without a list, as if units had no limits."""
    most = min(problem.budget_per_hour, sys.float_info.max)  # which the price of what cannot be is above
    is_certain = True

    def reached_s(time_s: float) -> float:
        """Return the time of a batch of some plan that needs at most so much; inf where none is found."""
        nonlocal is_certain
        if segments is None:
            try:
                return time_s if _least_price(problem, chain, time_s, deadline) <= most else math.inf
            except TimeUpError:
                is_certain = False
                return math.inf
        units = segments.demand.units(time_s)
        terms, limits = Terms(np.zeros(len(units)), units), problem.max_units.astype(np.float64)
        found = _solve(problem, chain, segments, terms, deadline, limits=limits)
        chosen, is_certain = found.chosen, is_certain and (found.is_optimal or found.chosen is not None)
        return math.inf if chosen is None else float(segments.demand.take(chosen).time_s(units[chosen]).max())

    impossible_s, possible_s = slow_s, reached_s(longest_s(problem))
    if math.isinf(possible_s) and not is_certain:
        return ""
    if math.isinf(possible_s):
        return f"; even without a floor {explain_infeasible(replace(problem, min_throughput=0.0), deadline)}"
    while possible_s > impossible_s * 1.0001 and deadline.left_s() > 0:
        middle_s = math.sqrt(impossible_s * possible_s)
        reached = reached_s(middle_s)
        impossible_s, possible_s = (middle_s, possible_s) if math.isinf(reached) else (impossible_s, reached)
    reachable = _round_down(problem.batch / possible_s)
    is_best = is_certain and possible_s <= impossible_s * 1.0001
    what = "the best reachable throughput is" if is_best else "what was found to be reachable in the time is"
    return f"; {what} {_rate(reachable)} (--min-throughput {reachable:.10g})"


def _solve(
    problem: Problem, chain: Chain, segments: Segments, terms: Terms, deadline: Deadline, *, limits: Floats
) -> CoupledPath:
    """Find the cheapest path for the terms within limits [T] on units and the budget."""
    try:
        spent = problem.price_per_hour[segments.type] * terms.units
        coupling = replace(Coupling.of(problem, chain.length, problem.budget_per_hour), limits=limits)
        return coupled_path(segments, replace(terms, spent=spent), coupling, deadline)
    except TimeUpError:
        return CoupledPath(-math.inf, None, False)


Reason = Callable[[Problem, Deadline], str]

_REASONS: tuple[Reason, ...] = (
    _no_type,
    _stage_count,
    _memory_and_types,
    _floor,
    _budget,
    _limits,
)


def _listed(chain: Chain) -> Segments | None:
    """Return all segments, or None where they are too many for a mixed-integer programme."""
    if chain.segment_count > _MOST_LISTED:
        return None
    return chain.all_segments()


def _alone(chain: Chain, block: int) -> Tile:
    """Return the segments of one block."""
    return chain.tile(chain.traffic(block, block + 1, block + 1), np.array([block + 1]))


def _least_price(problem: Problem, chain: Chain, slow_s: float, deadline: Deadline) -> float:
    """Return what the units of the cheapest plan at a time of a batch cost an hour, as if they had no limits."""
    graph = TiledSegments(chain, _prices(problem, slow_s), deadline)
    return float(graph.to_go(_counts(problem))[0, 0]) / slow_s


def _prices(problem: Problem, slow_s: float) -> SegmentPrices:
    """Return exact prices at a time of a batch, as if units had no limits."""
    unlimited = np.full(problem.type_count, np.iinfo(np.int64).max)
    unbound = replace(problem, objective="cost", max_units=unlimited, budget_per_hour=math.inf)
    return SegmentPrices.at(unbound, slow_s)


def _counts(problem: Problem) -> StageCounts:
    if problem.max_stages < Chain(problem).length:
        return StageCounts.between(problem.min_stages, problem.max_stages)
    return StageCounts.at_least(problem.min_stages)


def _least_time_s(row: Tile) -> tuple[float, int]:
    """Return the least time of a batch that any number of replicas of a row's first segment reaches, and its type."""
    demand = row.demand
    least_s = np.where(row.possible, demand.least_time_s(), np.inf)[:, 0, 0]
    return float(least_s.min()), int(np.argmin(least_s))


def _names(problem: Problem, chosen: Bools) -> str:
    return ", ".join(repr(problem.type_names[t]) for t in np.flatnonzero(chosen))


def _money(problem: Problem, amount: float) -> str:
    return f"{format_money(amount)} {problem.currency}".rstrip()


def _cents(price_per_hour: float) -> str:
    """Return a price rounded up to cents, as an option takes it."""
    return f"{math.ceil(price_per_hour * 100) / 100:.12g}"


def _rate(samples_per_s: float) -> str:
    digits = f"{samples_per_s:.4g}"
    return f"{float(digits):,.0f} samples/s" if samples_per_s >= 1000 else f"{digits} samples/s"


def _round_down(number: float) -> float:
    """Return the number to four digits, above it by rounding at most."""
    step = 10.0 ** (math.floor(math.log10(number)) - 3)
    return math.floor(number * (1 + FLOOR_TOLERANCE / 2) / step) * step
