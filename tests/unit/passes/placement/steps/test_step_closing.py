"""The bound of the step, and branch and bound, against every plan of small problems."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from small_problems import with_rows
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.evaluate import detail, to_arrays
from heterps_compile.cost.own_work import HandlingTimes, OwnWork
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.steps.step_bound import step_times
from heterps_compile.passes.placement.steps.step_closing import CLOSING_EFFORT, ClosingEffort, close_steps, none_below
from heterps_compile.passes.placement.steps.step_plans import SteppedPlan, feasible, of_units, simulated
from heterps_compile.passes.placement.steps.step_segments import StepSegments, class_times, classes
from heterps_compile.schedule.step_problem import PartTimes, StepProblem, plain_step_problem

BATCH, LAYERS, TYPES, UNITS = 4, 3, 2, 4
SEEDS = range(6)
MORE_SEEDS = range(6, 36)
SERVED_SEEDS = range(200, 204)
MORE_SERVED_SEEDS = range(204, 220)
WORKING_SEEDS = range(300, 304)
MORE_WORKING_SEEDS = range(304, 320)


def drawn(seed: int, *, served: bool = False, works: bool = False) -> StepProblem:
    """Draw a problem of three layers, with what the bound must hold for: links, limits, memory, machines, a floor."""
    rng = np.random.default_rng(seed)
    recipe = Recipe(seed, LAYERS, TYPES, branched=seed % 2 == 0, tight_memory=seed % 5 == 0, machines=seed % 3 == 1)
    problem = synthetic_problem(recipe)
    objective, training = ("cost", "throughput", "price")[seed % 3], seed % 4 < 3
    floor = 0.0 if objective == "throughput" else problem.min_throughput * BATCH / problem.batch
    problem = replace(
        problem,
        batch=BATCH,
        max_units=np.array([UNITS, UNITS - seed % 3]),
        objective=objective,
        sync_s=problem.sync_s * training,
        min_throughput=floor / 30 if objective == "price" else floor / 300 * (seed % 2),
        budget_per_hour=float(5 * problem.price_per_hour.max()) if objective == "throughput" else np.inf,
        min_stages=1 + (seed % 11 == 5),
        max_stages=2 if seed % 13 == 7 else LAYERS,
        rented_together=np.array([1, 2]) if seed % 7 == 3 else None,
    )
    if seed % 4 == 1:
        slower = 1 + rng.random((TYPES, TYPES))
        problem = replace(
            problem,
            link_seconds_per_byte=problem.seconds_per_byte[:, None] * slower,
            link_latency_s=problem.latency_s[:, None] * slower,
            seconds_per_byte=problem.seconds_per_byte * slower.min(axis=1),
            latency_s=problem.latency_s * slower.min(axis=1),
        )
    if served:
        problem = with_rows(replace(problem, keeps_activations=training), seed)
    of = plain_step_problem(problem, problem.compute_s * 0.02, training=training)
    if works and training:
        tables = [problem.compute_s * rng.uniform(0, most, problem.compute_s.shape) for most in (0.5, 0.2, 0.2, 0.1)]
        of = replace(of, own=OwnWork(tables[0], (HandlingTimes(*tables[1:]),)))
    if seed % 5 == 2 and training:  # adding to gradients takes another time than making them
        adds = rng.uniform(0.5, 2.0, problem.compute_s.shape)
        parts = {count: of.parts(count) for count in of.all_counts}
        for count, part in parts.items():
            of.known_parts[count] = PartTimes(part.forward_s, part.backward_s, part.backward_s * adds)
    return of


def placements(problem: Problem) -> Iterator[Placement]:
    for types in product(range(TYPES), repeat=LAYERS):
        alike = [p for p in range(1, LAYERS) if types[p] == types[p - 1]]
        for chosen in product((False, True), repeat=len(alike)):
            placement = Placement(types, tuple(p for p, is_cut in zip(alike, chosen, strict=True) if is_cut))
            if feasible(problem, *to_arrays([placement]))[0]:
                yield placement


def every_plan(of: StepProblem) -> Iterator[SteppedPlan]:
    """Yield every placement with all units, micro-batches and schedules, by the best of its schedules."""
    for placement in placements(of.problem):
        units = list(product(range(1, UNITS + 1), repeat=len(placement.starts())))
        for count in of.all_counts:
            for plan in of_units(of, placement, units, count):
                found = simulated(of, plan)
                if found is not None:
                    yield found


def check(seed: int, *, served: bool = False, works: bool = False) -> None:
    """Hold the bounds of one problem to all its plans, and the search from the worst of them to the best."""
    of = drawn(seed, served=served, works=works)
    plans = sorted(every_plan(of), key=lambda plan: plan.value)
    if not plans:
        return
    best, worst = plans[0], plans[-1]
    begun = close_steps(of, worst, Deadline.after(None), ClosingEffort(extended=0))
    assert begun.bound <= best.value * (1 + 1e-9)
    assert not none_below(StepSegments(of), best.value * (1 + 1e-4), ClosingEffort(extended=0))
    closed = close_steps(of, worst, Deadline.after(None))
    assert closed.plan.value == pytest.approx(best.value, rel=1e-8)
    assert closed.bound == pytest.approx(best.value, rel=1e-8)
    segments = StepSegments(of)
    assert none_below(segments, best.value * (1 - 1e-4), CLOSING_EFFORT)
    assert not none_below(segments, best.value * (1 + 1e-4), CLOSING_EFFORT)
    for stepped in plans[:: max(1, len(plans) // 40)]:
        hold(of, stepped)


def hold(of: StepProblem, plan: SteppedPlan) -> None:
    """Hold what every segment of a plan says of steps to the plan's."""
    segments, count = StepSegments(of), plan.step.micro_batches
    times, fewest = class_times(segments, count), classes(of.problem, count)[0]
    borders = [*plan.placement.starts(), LAYERS]
    of_border = {int(border): position for position, border in enumerate(segments.chain.borders)}
    for first, end, units in zip(borders, borders[1:], plan.step.units, strict=False):
        own = (of_border[first], of_border[end], plan.placement.types[first])
        rows = zip(segments.first.tolist(), segments.end.tolist(), segments.type.tolist(), strict=True)
        row = list(rows).index(own)
        least_s = times.least_s[row, np.searchsorted(fewest, units, side="right") - 1]
        assert least_s <= plan.step.step_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_is_below_the_bound_and_the_worst_plan_leads_to_the_best(seed: int) -> None:
    check(seed)


@pytest.mark.slow  # 30 more problems
@pytest.mark.parametrize("seed", MORE_SEEDS)
def test_the_same_of_many_problems(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", SERVED_SEEDS)
def test_the_same_with_tables_on_servers(seed: int) -> None:
    check(seed, served=True)


@pytest.mark.slow  # 16 more problems
@pytest.mark.parametrize("seed", MORE_SERVED_SEEDS)
def test_the_same_of_many_problems_with_tables_on_servers(seed: int) -> None:
    check(seed, served=True)


@pytest.mark.parametrize("seed", WORKING_SEEDS)
def test_the_same_with_what_replicas_do_by_themselves(seed: int) -> None:
    check(seed, works=True)


@pytest.mark.slow  # 16 more problems
@pytest.mark.parametrize("seed", MORE_WORKING_SEEDS)
def test_the_same_of_many_problems_with_what_replicas_do_by_themselves(seed: int) -> None:
    check(seed, works=True)


@pytest.mark.parametrize("seed", range(200, 204))
def test_no_step_is_shorter_than_a_batch_in_the_steady_state_or_than_its_own_bound(seed: int) -> None:
    of = drawn(seed, served=True)
    for placement in placements(of.problem):
        units = list(product((1, 2, UNITS), repeat=len(placement.starts())))
        for count in of.all_counts:
            for plan in of_units(of, placement, units, count):
                found = simulated(of, plan)
                if found is None:
                    continue
                steady = detail(of.problem, placement, np.array(plan.units, np.float64))
                batch_s = max(stage.time_s for stage in steady.stages)
                assert found.step.step_s >= of.shrinks_by(count) * batch_s * (1 - 1e-9)
                assert found.step.step_s >= plan.least_s * (1 - 1e-9)


def test_replicas_of_one_class_take_as_many_rounds():
    problem = replace(drawn(0).problem, max_units=np.array([8, 3]))
    fewest, most = classes(problem, 8)
    assert list(zip(fewest, most, strict=True)) == [(1, 1), (2, 2), (3, 3), (4, 7), (8, 8)]


def test_where_no_plan_can_be_better_there_is_nothing_to_search():
    of = drawn(1)
    assert step_times(StepSegments(of), 1, 0.0, Deadline.after(None)) is None


def test_a_problem_that_is_too_large_is_left_alone():
    of = drawn(0)
    best = min(every_plan(of), key=lambda plan: plan.value)
    found = close_steps(of, best, Deadline.after(None), ClosingEffort(cells=1))
    assert (found.plan, found.bound) == (best, -np.inf)
