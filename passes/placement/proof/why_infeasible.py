"""Why no placement is feasible: which constraint, by how much, and what would help, with numbers.

Constraints are put back one after the other, in the order of the list :data:`_REASONS`; the first under which
nothing is left is the one to name. Where several act together, they are taken away again one by one
(``dropped_constraints.py``): what is named is what would help to drop.

Left out: reasons of a single placement (``Fault`` in ``cost/evaluate.py``).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from heterps_compile.cost.chosen_units import BUDGET_TOLERANCE
from heterps_compile.cost.evaluate import FLOOR_TOLERANCE, detail, ranges_of, slowest_batch_s
from heterps_compile.cost.problem import Bools, Ints, Placement, Problem
from heterps_compile.cost.segments import problem_tables
from heterps_compile.cost.whole_machines import by_unit
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline, TimeUpError
from heterps_compile.passes.placement.geometry import Chain, Tile
from heterps_compile.units import counted, format_bytes, format_money, format_seconds

from .dropped_constraints import MEMORY, PINS, WITHOUT, fewest_to_drop, in_words, without
from .prove import Proof, prove

_EXPLAIN_S = 10.0  # for finding out what would help, where the deadline leaves so much
_LEAST_EXPLAIN_S = 1.0  # for the reason, however little is left
_UNLIMITED = 1 << 40  # units
_TIES = 1e-9  # of plans with as many units of one type, share of the price by which the cheapest is taken


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
    slow = replace(problem, min_throughput=0.0, min_stages=1, max_stages=problem.layer_count)
    return _cheapest(replace(slow, price_per_hour=np.ones(problem.type_count)), deadline).best


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
    if not np.isfinite(slow_s) or _meets(problem, deadline=deadline):
        return ""
    deadline = deadline.within(_EXPLAIN_S)
    dropped = fewest_to_drop(problem, partial(_meets, deadline=deadline), tuple(WITHOUT), deadline)
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
        problem, deadline
    )


def _meets(problem: Problem, *, deadline: Deadline) -> bool:
    return math.isfinite(_cheapest(problem, deadline).best)


def _with_units(problem: Problem) -> str:
    return "with its one unit" if problem.objective == "max-load" else "however many replicas it has"


def _budget(problem: Problem, deadline: Deadline) -> str:
    if math.isinf(problem.budget_per_hour):
        return ""
    budget, deadline = _money(problem, problem.budget_per_hour), deadline.within(_EXPLAIN_S)
    try:
        price = _cheapest(problem, deadline, problem.max_units).best
    except TimeUpError:
        return f"the budget of {budget} an hour and the limits on units together leave no plan; raise one of them"
    if math.isinf(price) or price <= problem.budget_per_hour * (1 + BUDGET_TOLERANCE):
        return ""
    reaching = f" that reaches {_rate(problem.min_throughput)}" if problem.min_throughput > 0 else ""
    message = (
        f"the budget of {budget} an hour is too small: the cheapest plan{reaching} "
        f"costs {_money(problem, price)} an hour; allow --budget {_cents(price)}"
    )
    return message + (_reachable(problem, deadline) if problem.min_throughput > 0 else "")


def _keeps_units_and_budget(problem: Problem, deadline: Deadline) -> bool:
    """Return whether some plan keeps the limits on units and the budget, which no other reason rules out."""
    price = _cheapest(problem, deadline, problem.max_units).best
    return price <= problem.budget_per_hour * (1 + BUDGET_TOLERANCE)


def _limits(problem: Problem, deadline: Deadline) -> str:
    found = _cheapest(problem, deadline)
    if found.placement is None:
        return ""
    needed = _units(problem, found.placement)
    short = [
        f"{needed[t]} {problem.type_names[t]!r} (limit {problem.max_units[t]})"
        for t in np.flatnonzero(needed > problem.max_units)
    ]
    at_floor = f"at {_rate(problem.min_throughput)} " if problem.min_throughput > 0 else ""
    message = f"the limits on units cannot be met: {at_floor}the cheapest plan without them needs {' and '.join(short)}"
    deadline = deadline.within(_EXPLAIN_S)
    message += _one_limit_raised(problem, deadline)
    return message + (_reachable(problem, deadline) if problem.min_throughput > 0 else "")


def _one_limit_raised(problem: Problem, deadline: Deadline) -> str:
    """Say which one limit is the cheapest to raise, within the budget if there is such a plan."""
    options, is_certain, price = list[tuple[bool, float, int, int, float]](), True, problem.price_per_hour
    for t in range(problem.type_count):
        limits, alone = problem.max_units.copy(), _TIES * price
        limits[t], alone[t] = _UNLIMITED, 1.0
        try:
            found = _cheapest(replace(problem, price_per_hour=alone), deadline, limits)
        except TimeUpError:
            is_certain = False
            continue
        if found.placement is not None:
            units = _units(problem, found.placement)
            paid, more = float(price @ units), int(units[t] - problem.max_units[t])
            is_dear = paid > problem.budget_per_hour * (1 + BUDGET_TOLERANCE)
            options.append((is_dear, more * float(price[t]), t, int(units[t]), paid))
    if not options:
        return "; no limit is enough to raise alone" if is_certain else ""
    is_dear, extra, t, needed, paid = min(options)
    within = f" with --budget {_cents(paid)}" if is_dear else ""
    return (
        f"; {needed} {problem.type_names[t]!r} would be enough{within} ({needed - problem.max_units[t]} more, "
        f"{_money(problem, extra)} an hour)"
    )


def _reachable(problem: Problem, deadline: Deadline) -> str:
    """Say what throughput can be reached, as far as the time suffices."""
    objective = "max-load" if problem.objective == "max-load" else "throughput"
    found = prove(replace(problem, objective=objective, min_throughput=0.0), deadline)
    if found.placement is None and math.isinf(found.bound):
        return f"; even without a floor {explain_infeasible(replace(problem, min_throughput=0.0), deadline)}"
    if found.placement is None:
        return ""
    reachable = _round_down(problem.batch / found.best)
    is_best = found.bound * 1.0001 >= found.best
    what = "the best reachable throughput is" if is_best else "what was found to be reachable in the time is"
    return f"; {what} {_rate(reachable)} (--min-throughput {reachable:.10g})"


def _cheapest(problem: Problem, deadline: Deadline, limits: Ints | None = None) -> Proof:
    """Find the cheapest plan an hour within some limits [T] on units, or any number of them, whatever the budget.

    Raises:
        TimeUpError: where the time does not suffice to find one, or to prove that there is none.
    """
    limits = np.full(problem.type_count, _UNLIMITED) if limits is None else limits
    found = prove(replace(problem, objective="price", max_units=limits, budget_per_hour=math.inf), deadline)
    if found.placement is None and math.isfinite(found.bound):
        raise TimeUpError
    return found


def _units(problem: Problem, placement: Placement) -> Ints:
    """Return [T], the fewest units of a plan that reaches the floor."""
    stages = detail(replace(problem, objective="price"), placement).stages
    units = np.bincount([s.type for s in stages], [s.replicas for s in stages], problem.type_count)
    return np.asarray(units, np.int64)


Reason = Callable[[Problem, Deadline], str]

_REASONS: tuple[Reason, ...] = (_no_type, _stage_count, _memory_and_types, _floor, _budget, _limits)


def _alone(chain: Chain, block: int) -> Tile:
    """Return the segments of one block."""
    return chain.tile(chain.traffic(block, block + 1, block + 1), np.array([block + 1]))


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
