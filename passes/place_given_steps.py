"""Plans of a problem with given costs for their steps: what is minimised is one batch alone.

The search over steps of models (``placement/steps/``) has the times of the problem that `predict` has: of micro-batches
of every size as they were measured, of links, each with one message at a time, of sums of gradients.
It leaves out what `predict` has besides: measured messages, stages that share a machine, updates, the overhead of a
step, and what replicas do not divide of a micro-batch that takes longer than its share of a batch. So the plans which
it came by are predicted too, and the best of these is taken (``prediction/choose_micro_batch.py``).

The bound is of a problem that has nothing by which a predicted step could be shorter: where messages were measured, or
stages may stand in one machine, ways take no time; where all-reduces were, neither do these; a layer has the fewest
bytes that any type has; and where small micro-batches are faster than their share, replicas divide all of a layer.

Left out: stages of several device types, batches of one replica each, both of which are known in the steady state.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from heterps_compile.cost.memory import MemoryParts
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import Deadline
from heterps_compile.problem_file.given_plan import GivenPlan, has_units
from heterps_compile.problem_file.given_problem import GivenProblem
from heterps_compile.problem_file.message_times import group_network, has_unknown_cards
from heterps_compile.problem_file.pose_given import PosedGiven, of_each, parallel_of, plan_of, times_of
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, rate
from heterps_compile.schedule.step_problem import PartTimes, StepProblem
from heterps_compile.units import counted, format_rate

from .placement.steps.minimise_step import least_factor, search_steps
from .placement.steps.step_closing import close_steps
from .placement.steps.step_plans import SteppedPlan, simulated, with_units
from .rivals_of_given import PlacedGiven, Rival, every_rival, is_small, rival

_MOST_PLANS = 16


def place_given_steps(
    given: GivenProblem, posed: PosedGiven, steady: SearchResult, starts: Sequence[Placement], deadline: Deadline
) -> PlacedGiven:
    """Search plans of short steps, and bound all plans, which may lead to a better one.

    Args:
        given: The problem.
        posed: Its arrays.
        steady: The best plan of the steady state.
        starts: Further placements to begin from.
        deadline: When to stop.

    Raises:
        InfeasibleError: where none of them reaches the floor, and all plans are too many to look at.
    """
    of = _steps(given, posed)
    found = search_steps(of, [steady.placement, *starts], deadline, seed=steady.seed)
    rivals, bound = [replace(rival(given, posed, steady.placement), price_per_hour=np.inf)], 0.0
    if found.plan is not None:
        least = close_steps(_least(given, of), found.plan, deadline)
        bound, step = max(0.0, least.bound), least.plan.step
        [plan] = with_units(of, least.plan.placement, step.units, [step.micro_batches])
        known = (found.plan, *found.others, simulated(of, plan) or found.plan)
        ranked = sorted({id(plan): plan for plan in known}.values(), key=lambda plan: plan.rank)
        plans = (Rival(_given(given, posed, plan), plan.value, plan.price_per_hour) for plan in ranked)
        rivals = list(islice((each for each in plans if has_units(given, each.plan)), _MOST_PLANS)) or rivals
    elif not is_small(posed.problem):
        floor, reached = posed.problem.min_throughput, rate(posed.problem.batch, found.shortest_s)
        raise InfeasibleError(
            f"no plan was found that reaches the floor of {format_rate(floor)} with {ONE_BATCH_ALONE}: the quickest "
            f"step makes {format_rate(reached)}; ask for less (--min-throughput), or for --reading steady-state"
        )
    most = counted(of.all_counts[-1], "micro-batch")
    return PlacedGiven(
        tuple(rivals),
        bound,
        f"plans that keep the layers in this order, in at most {most}, {ONE_BATCH_ALONE}",
        steady.method,
        notes=(*steady.notes, *found.notes),
        others=_others(given, posed, of, deadline),
    )


def _others(
    given: GivenProblem, posed: PosedGiven, of: StepProblem, deadline: Deadline
) -> Callable[[], Iterator[Rival]]:
    """Enumerate the plans of a small problem by lower bounds on their steps."""
    if not is_small(posed.problem):
        return lambda: iter(())
    factor = 1.0 if posed.problem.objective == "price" else max(0.0, least_factor(of))
    none = np.zeros(posed.problem.layer_count)[:, None]
    least = replace(of.problem, min_throughput=0.0, sync_s=of.problem.sync_s * none, rules=None)
    return partial(every_rival, given, PosedGiven(least, posed.groups), deadline, factor)


def is_quicker_divided(given: GivenProblem, posed: PosedGiven) -> bool:
    """Return whether micro-batches of a layer together take less than its batch undivided, as few samples may."""
    return _is_quicker_divided(_steps(given, posed))


def _is_quicker_divided(of: StepProblem) -> bool:
    return min(of.shrinks_by(count) for count in of.all_counts) < 1


def _given(given: GivenProblem, posed: PosedGiven, plan: SteppedPlan) -> GivenPlan:
    own = plan_of(given, posed, plan.placement, list(plan.step.units))
    return replace(own, schedule=plan.step.schedule, micro_batch=given.batch // plan.step.micro_batches)


def _steps(given: GivenProblem, posed: PosedGiven) -> StepProblem:
    """Return what steps of the problem are made of; data occupies network cards and links, as in the prediction."""
    problem, groups = posed.problem, posed.groups
    none = np.zeros(problem.type_count)
    times = times_of(given, groups)
    alpha = parallel_of(times, [given.known_pool.device_type(each.device) for each in groups])

    def part(count: int) -> PartTimes:
        samples = given.batch / count
        forward_s = of_each(times, lambda each: each.forward_time_s(samples), 0.0)
        backward_s = of_each(times, lambda each: each.backward_time_s(samples), 0.0)
        return PartTimes(forward_s, backward_s, backward_s)

    of = StepProblem(
        problem, given.training, is_divisible=True, times=None, again_s=None,
        networks=tuple(group_network(given, each) for each in groups), own_latency_s=none,
        memory=_memory(given, problem),
    )  # fmt: skip
    known = {count: part(count) for count in sorted({1, *of.all_counts})}
    worked = replace(
        problem,
        compute_s=np.where(np.isfinite(problem.compute_s), known[1].whole_s, np.inf),
        layer_compute_parallel=alpha,
    )
    if has_unknown_cards(given):
        worked = replace(
            worked, seconds_per_byte=none, latency_s=none, link_seconds_per_byte=None, link_latency_s=None
        )  # fmt: skip
    ways = of.way_seconds_per_byte, of.way_latency_s
    return replace(of, problem=worked, ways=ways, known_parts=known)


def _memory(given: GivenProblem, problem: Problem) -> Callable[[int, int], MemoryParts] | None:
    """Look up the least bytes of an undivided batch in a stage; None if all types hold the whole model."""
    kept = np.sum if given.training else np.max
    activations = problem.activation_bytes * given.batch
    if problem.weight_bytes.sum() + kept(activations) <= problem.memory_bytes.min():
        return None

    def of_stage(first: int, end: int) -> MemoryParts:
        held_bytes = int(problem.weight_bytes[first:end].sum())
        return MemoryParts(held_bytes, 0, 0, int(kept(activations[first:end])), safety_factor=1.0)

    return of_stage


def _least(given: GivenProblem, of: StepProblem) -> StepProblem:
    """Return the steps without what a predicted step may be shorter by."""
    problem = of.problem
    ways, sync_s, alpha = of.ways, problem.sync_s, problem.layer_compute_parallel
    if has_unknown_cards(given):
        ways = (np.zeros((problem.type_count,) * 2), np.zeros((problem.type_count,) * 2))
    if _is_quicker_divided(of):
        alpha = np.ones(problem.compute_s.shape)
    known = [[each.parameter_bytes for each in layer.times] for layer in given.layers]
    least, most = (np.array([float(function(row)) for row in known]) for function in (min, max))
    fewer = np.divide(least, most, out=np.ones_like(least), where=most > 0)
    least_part = np.zeros((len(fewer), 1)) if given.all_reduces else fewer[:, None]
    sync_s, rules = sync_s * least_part, problem.rules
    if rules is not None:
        rules = tuple(each.with_part(least_part) for each in rules)
    return replace(of, ways=ways, problem=replace(problem, sync_s=sync_s, rules=rules, layer_compute_parallel=alpha))
