"""A placement that fits its units as a schedule holds it: the search asks for the least, and for more where it must.

The search's problem counts of every layer's activations the part of one micro-batch of as many as there may be: no
schedule holds less of a stage, whether it keeps its activations or computes them again, so that no plan that fits is
refused and its bound is one of all plans. What the plan it finds really holds is known once replicas, micro-batches
and schedule are chosen. Where that does not fit, or stages compute their activations again, the search is asked once
more with four times the part, and so on up to a whole batch, which fits under every schedule::

    part of a batch     1/32      1/8       1/2       1
    plan                too big   fits,     fits
                                  recomputes

The best of the plans that fit is taken, by what they are worth with the computation that is repeated.

Left out: a search that knows schedules while it searches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.evaluate import slowest_batch_s
from heterps_compile.cost.memory import ALWAYS, NEVER
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Problem
from heterps_compile.cost.segments import problem_tables
from heterps_compile.errors import InfeasibleError, UnprovenError
from heterps_compile.plan.placed_stages import stages_of
from heterps_compile.progress import tell
from heterps_compile.schedule.load import least_part
from heterps_compile.schedule.shortest_step import SAME_TIME, Step
from heterps_compile.units import counted, format_bytes

from .choose_schedule import step_of
from .deadline import Deadline
from .drafts import Fused, Placed, Posed, Provisioned, advance
from .provision import Provision
from .rules_of_stages import with_request

_TIMES_MORE = 4


@dataclass(frozen=True, slots=True)
class _Held:
    """A placement under its schedule.

    Attributes:
        placed: The draft.
        value: Its objective, with computation that is repeated; inf where a floor or a budget is broken by that.
        recomputes: Whether any stage computes its activations again that need not, or has not the rule that the search
            counted.
        lacking: Which stage does not fit, with the numbers; "" where all do.
    """

    placed: Placed
    value: float
    recomputes: bool
    lacking: str


def whole_batch(problem: Problem, *, is_divisible: bool) -> Problem:
    """Return a problem that was posed with the least part of activations, with those of a whole batch."""
    return _with_activations(problem, 1 / least_part(problem, is_divisible=is_divisible))


def _with_activations(problem: Problem, factor: float) -> Problem:
    """Return a problem with so many times the activations, which what a replica holds with a rule has in it too."""
    activation_bytes, rules = problem.activation_bytes * factor, problem.rules
    if rules is not None:
        further = (activation_bytes - problem.activation_bytes)[:, None] * problem.keeps_activations
        rules = tuple(replace(rule, base_bytes=rule.base_bytes + further) for rule in rules)
    return replace(problem, activation_bytes=activation_bytes, rules=rules)


def may_lack_memory(draft: Posed) -> bool:
    """Return whether some type cannot hold the whole model with a whole batch."""
    whole = whole_batch(draft.problem, is_divisible=draft.graph.is_divisible)
    return problem_tables(whole).memory_binds or any(
        bool(np.any(rule.held_bytes(whole.max_units).sum(axis=0) > whole.memory_bytes)) for rule in whole.rules or ()
    )


def place_within_memory(place: Callable[[Posed, float | None], Placed], draft: Posed, limit_s: float | None) -> Placed:
    """Search for a placement that fits as it is held.

    Args:
        place: Searches, in so many seconds.
        draft: Posed with the least part of activations.
        limit_s: Of all searches together; None for no limit.

    Raises:
        InfeasibleError: where no placement is feasible, or none that was found fits.
    """
    deadline = Deadline.after(limit_s)
    placed = place(draft, limit_s)
    if not may_lack_memory(draft):
        return placed
    first = _held(placed)
    found = [first]
    if first.lacking or first.recomputes:
        for factor in _factors(draft):
            if deadline.is_over:
                break
            tell("searching with more memory for activations")
            problem = _with_activations(draft.problem, factor)
            try:
                placed = place(replace(draft, problem=problem), None if limit_s is None else deadline.left_s())
            except InfeasibleError:
                break  # and with still more all the more
            loose = _with_activations(placed.problem, 1 / factor)
            found.append(_held(replace(placed, problem=loose)))
            if not (found[-1].lacking or found[-1].recomputes):
                break
    fitting = [each for each in found if not each.lacking and each.value < float("inf")]
    if not fitting:
        raise UnprovenError(found[-1].lacking or "no plan reaches the floor with activations that fit the units")
    return _bounded(min(fitting, key=lambda each: each.value), first.placed)


def _factors(draft: Posed) -> Iterator[float]:
    """Yield by how much more of the activations is asked for than at first, ascending; the last is a whole batch."""
    most = round(1 / least_part(draft.problem, is_divisible=draft.graph.is_divisible))
    factor = _TIMES_MORE
    while factor < most:
        yield float(factor)
        factor *= _TIMES_MORE
    if most > 1:
        yield float(most)


def _held(placed: Placed) -> _Held:
    """Return what a placement holds under the schedule that it gets, and what it is worth then."""
    fused = advance(placed, Fused, stages=stages_of(placed.problem, placed.search.placement))
    provisioned = Provision()(fused)
    if placed.problem.rules is not None:
        provisioned = with_request(provisioned)
    step = step_of(provisioned)
    scheduled = step.stages(provisioned)
    chosen, problem = step.best, placed.problem
    # a step that was minimised has in it what is computed again
    again = any(chosen.recomputes) and placed.recompute != ALWAYS and placed.search.step is None
    value = placed.search.value
    if again or problem.rules is not None:
        is_step = placed.search.step is not None
        slowest_s = chosen.step_s if is_step else max(stage.time_s for stage in scheduled)
        paid = sum(stage.price_per_hour for stage in scheduled) + provisioned.parameter_servers.price_per_hour
        by_price = OBJECTIVES[problem.objective].paid(paid, problem.batch / slowest_s)
        value = slowest_s if by_price is None else by_price
        value = value if again else max(value, placed.search.value)
        # a rule that its memory keeps a stage from leaves it another, which the search did not count
        again |= value > placed.search.value * SAME_TIME
        if slowest_s > slowest_batch_s(problem):
            value = float("inf")
    return _Held(placed, value, again, "" if chosen.fits else _lacking(provisioned, step.trials))


def _lacking(draft: Provisioned, trials: Sequence[Step]) -> str:
    """Name the stage that lacks most under the step that lacks least, by how much, and what would help."""
    room = [draft.cluster.device_type(stage.device).memory_bytes for stage in draft.stages]

    def fullest(step: Step) -> int:
        return max(range(len(room)), key=lambda s: step.replica_bytes[s] / room[s])

    least = min(trials, key=lambda step: step.replica_bytes[fullest(step)] / room[fullest(step)])
    held_bytes, worst = least.replica_bytes, fullest(least)
    stage = draft.stages[worst]
    layers = " to ".join(dict.fromkeys((repr(stage.layers[0]), repr(stage.layers[-1]))))
    ways = []
    if draft.recompute == NEVER and draft.request.mode == "training":
        ways.append("--recompute auto" if draft.can_recompute else "a backend whose stages recompute")
    if draft.graph.batch_symbol is None:
        ways.append("a batch that can be divided into micro-batches (--batch N)")
    ways.append(f"a type with {format_bytes(held_bytes[worst])} or more")
    rule = ""
    if stage.sync is not None and stage.memory is not None:
        rule = f", {format_bytes(stage.memory.sync_bytes)} of it for {stage.sync.rule},"
        ways.insert(0, "another rule (--sync)")
    return (
        f"no plan was found that fits as its schedule holds it: the best has a stage of layers {layers} that needs "
        f"{format_bytes(held_bytes[worst])}{rule} on {stage.device!r} with "
        f"{counted(least.micro_batches, 'micro-batch')}, which has {format_bytes(room[worst])} "
        f"({format_bytes(held_bytes[worst] - room[worst])} too little); take {', or '.join(ways)}"
    )


def _bounded(held: _Held, first: Placed) -> Placed:
    """Return a placement with its value, and the bounds of the problem that all plans are plans of."""
    search = held.placed.search
    value = held.value
    search = replace(
        search,
        value=value,
        bound=min(first.search.bound, value),
        bound_of_all_orders=min(first.search.bound_of_all_orders, value),
    )
    return replace(held.placed, search=search)
