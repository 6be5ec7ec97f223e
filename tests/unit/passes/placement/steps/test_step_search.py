"""The search over steps against every plan there is: placements, units, micro-batches and schedules."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from ruled_problems import ruled
from simulated import simulate
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.evaluate import Fault, detail, slowest_batch_s
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.placement.methods import find_method
from heterps_compile.passes.placement.steps.minimise_step import closed, least_factor, search_steps
from heterps_compile.schedule.names import orders
from heterps_compile.schedule.step_problem import StepProblem, plain_step_problem

BATCH, LAYERS, TYPES, UNITS = 4, 3, 2, 3
AGAIN = 0.02  # of a batch's computation, what a further micro-batch pays again


RULED = 1000
"""Seeds from here on are of problems whose stages agree by rules."""


def drawn(seed: int) -> StepProblem:
    """Draw a problem of three layers; every third is for throughput within a budget, or for price at a floor."""
    objective = ("cost", "throughput", "price")[seed % 3]
    problem = synthetic_problem(Recipe(seed, LAYERS, TYPES, branched=seed % 2 == 0))
    floor = problem.min_throughput / 30 if objective == "price" else 0.0
    problem = replace(
        problem,
        batch=BATCH,
        max_units=np.full(TYPES, UNITS),
        objective=objective,
        min_throughput=floor * BATCH / problem.batch,
        budget_per_hour=float(4 * problem.price_per_hour.max()) if objective == "throughput" else np.inf,
    )
    training = seed % 4 < 3 or seed >= RULED
    if not training:
        problem = replace(problem, sync_s=0 * problem.sync_s)
    if seed >= RULED:
        problem, training = ruled(problem, seed), True
    return plain_step_problem(problem, problem.compute_s * AGAIN, training=training)


def placements() -> Iterator[Placement]:
    for types in product(range(TYPES), repeat=LAYERS):
        alike = [p for p in range(1, LAYERS) if types[p] == types[p - 1]]
        for chosen in product((False, True), repeat=len(alike)):
            yield Placement(types, tuple(p for p, is_cut in zip(alike, chosen, strict=True) if is_cut))


def way_s(problem: Problem, placement: Placement, boundary: int, count: int, *, training: bool) -> float:
    """Return the way of a micro-batch from one stage to the next, value by value."""
    starts = (*placement.starts(), LAYERS)
    first, middle = starts[boundary : boundary + 2]
    size = 0.0
    for edge, producer in enumerate(problem.edge_producer):
        readers = problem.edge_readers[problem.edge_starts[edge] : problem.edge_starts[edge + 1]]
        if producer < middle <= max(readers, default=0):
            size += problem.edge_bytes[edge] / (2 if training else 1)
    pair = placement.types[first], placement.types[middle]
    slowest = max(problem.seconds_per_byte[type_] for type_ in pair)
    return max(problem.latency_s[type_] for type_ in pair) + size * slowest / count if size else 0.0


def step_s(of: StepProblem, placement: Placement, units: tuple[int, ...], count: int, schedule: str) -> float:
    """Return the step of a plan, stage by stage, by the formulas of docs/cost-model.md."""
    problem, training = of.problem, of.training
    stages = detail(problem, placement, np.array(units, np.float64)).stages
    forward_s, backward_s, moving_s, sync_s = [], [], [], []
    for stage in stages:
        layers = range(stage.first_layer, stage.end_layer)
        again_s = sum(AGAIN * problem.compute_s[layer, stage.type] for layer in layers) * (1 - 1 / count)
        compute_s = stage.replicas * stage.compute_s / count + again_s
        messages = (stage.received_bytes > 0) + (stage.sent_bytes > 0)
        latency_s = messages * problem.latency_s[stage.type] * (count - 1)
        data_s = (stage.replicas * (stage.data_s - stage.sync_s) + latency_s) / count
        share = 1 / 3 if training else 1.0
        busy_s = max(compute_s, data_s)
        forward_s.append(share * busy_s)
        backward_s.append((1 - share) * busy_s)
        moving_s.append(share * (busy_s - compute_s))
        hops_s = 2 * (stage.replicas - 1) * problem.latency_s[stage.type] if stage.sync_s else 0.0
        sync_s.append(stage.sync_s + hops_s if training else 0.0)
    inner = [time_s / (2 if 0 < s < len(stages) - 1 else 1) for s, time_s in enumerate(moving_s)]
    delays_s = [
        max(0.0, way_s(problem, placement, s, count, training=training) - sum(pair))
        for s, pair in enumerate(pairwise(inner))
    ]
    order = orders(schedule, units, count, training=training)
    backwards = backward_s if training else None
    return simulate(order, forward_s, backwards, replicas=units, transfer_s=delays_s, sync_s=sync_s).makespan_s


@cache
def best(seed: int) -> float:
    """Return the best value of all plans."""
    of, lowest = drawn(seed), np.inf
    problem = of.problem
    for placement in placements():
        if detail(problem, placement).faults & ~(Fault.FLOOR | Fault.UNITS | Fault.BUDGET):
            continue
        kinds = [placement.types[first] for first in placement.starts()]
        for units in product(range(1, UNITS + 1), repeat=len(kinds)):
            used = np.bincount(kinds, units, TYPES)
            price = float(problem.price_per_hour @ used)
            if (used > problem.max_units).any() or price > problem.budget_per_hour * (1 + 1e-9):
                continue
            for count in (count for count in (1, 2, 4) if count >= max(units)):
                for schedule in ("gpipe", "1f1b") if of.training else ("gpipe",):
                    time_s = step_s(of, placement, units, count, schedule)
                    paid = OBJECTIVES[problem.objective].paid(price, problem.batch / time_s)
                    if time_s <= slowest_batch_s(problem):
                        lowest = min(lowest, time_s if paid is None else paid)
    return lowest


SEEDS = [*range(5), *range(RULED, RULED + 5)]


@pytest.mark.slow  # more of the same kind on larger problems
@pytest.mark.parametrize("first", [0, RULED])
def test_the_search_finds_nothing_better_than_the_best_and_mostly_that(first):
    gaps = []
    for seed in range(first, first + 5):
        of = drawn(seed)
        start = find_method("exact")(of.problem).placement
        found = closed(of, search_steps(of, [start], NO_DEADLINE), NO_DEADLINE).plan
        assert found is not None
        told_s = step_s(of, found.placement, found.step.units, found.step.micro_batches, found.step.schedule)
        assert told_s == pytest.approx(found.step.step_s, rel=1e-9)
        assert found.value >= best(seed) * (1 - 1e-9)
        gaps.append(found.value / best(seed) - 1)
    assert np.median(gaps) == pytest.approx(0.0, abs=1e-9)
    assert max(gaps) < 0.05


@pytest.mark.slow  # searches every plan
def test_the_bound_of_the_steady_state_is_one_of_steps():
    for seed in SEEDS:
        of = drawn(seed)
        assert find_method("exact")(of.problem).bound * least_factor(of) <= best(seed) * (1 + 1e-9)


def test_parts_that_are_faster_than_the_whole_lower_the_bound():
    of = replace(drawn(0), again_s=-0.1 * drawn(0).problem.compute_s)
    assert least_factor(of) == pytest.approx(1 - 0.1 * (BATCH - 1))
    floor = replace(of, problem=replace(of.problem, min_throughput=1.0))
    assert least_factor(floor) == 0.0
