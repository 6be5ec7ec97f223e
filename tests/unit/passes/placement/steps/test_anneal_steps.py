"""Annealing on steps: its prices against the simulation, its gain on the descent, and its limits."""

from dataclasses import replace
from statistics import geometric_mean

import numpy as np
import pytest
from small_problems import linked, on_machines, rented_whole, small_problem, with_shared_storage
from synthetic import Recipe, synthetic_problem
from wording import names

from heterps_compile.cost.evaluate import to_placement
from heterps_compile.cost.memory import MemoryParts
from heterps_compile.cost.own_work import HandlingTimes, OwnWork
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.placement.compiled_loops import NOT_COMPILED
from heterps_compile.passes.placement.methods import find_method
from heterps_compile.passes.placement.steps import step_search
from heterps_compile.passes.placement.steps.anneal_steps import AnnealSteps, StepAnnealing
from heterps_compile.passes.placement.steps.minimise_step import StepsFound, search_steps
from heterps_compile.passes.placement.steps.step_plans import with_units
from heterps_compile.passes.placement.steps.step_search import StepEffort
from heterps_compile.schedule.shortest_step import TRAINING_SCHEDULES
from heterps_compile.schedule.step_length import step_length_s
from heterps_compile.schedule.step_problem import PartTimes, StepProblem, plain_step_problem

LAYERS, TYPES, UNITS = 7, 3, 6


def drawn(seed: int) -> StepProblem:
    """Draw a problem that has whatever the loop prices, each with a chance of its own."""
    rng = np.random.default_rng(seed)
    problem = small_problem(seed, layers=LAYERS, types=TYPES, memory=False, units=UNITS)
    problem = replace(problem, batch=12, objective="throughput", min_throughput=0.0, max_stages=LAYERS)
    for add in (linked, on_machines, rented_whole, with_shared_storage):
        problem = add(problem, seed) if rng.random() < 0.4 else problem
    training = rng.random() < 0.75
    problem = replace(problem, sync_s=problem.sync_s * training)
    of = plain_step_problem(
        problem, np.where(np.isfinite(problem.compute_s), problem.compute_s, 0) * 0.02, training=training
    )
    if rng.random() < 0.5 and training:
        tables = [rng.uniform(0, most, problem.compute_s.shape) for most in (0.5, 0.2, 0.2, 0.1)]
        of = replace(of, own=OwnWork(tables[0], (HandlingTimes(*tables[1:]),)))
    if rng.random() < 0.3:
        of = replace(
            of, ways=(rng.uniform(0, 0.05, (TYPES, TYPES)), rng.uniform(0, 0.5, (TYPES, TYPES))), known_parts={}
        )
    if rng.random() < 0.4 and training:
        adds = rng.uniform(0.5, 2.0, problem.compute_s.shape)
        for count in of.all_counts:
            part = of.parts(count)
            of.known_parts[count] = PartTimes(part.forward_s, part.backward_s, part.backward_s * adds)
    return of


def test_the_loop_prices_a_plan_as_it_is_simulated() -> None:
    compared = 0
    for seed in range(60):
        of, rng = drawn(seed), np.random.default_rng(seed)
        problem, search = of.problem, AnnealSteps(of)
        for _ in range(12):
            begins = (rng.random(LAYERS) < 0.5) & ~problem.uncuttable[:LAYERS]
            begins[0] = True
            stages = int(begins.sum())
            types = rng.integers(0, TYPES, stages)
            placement = to_placement(np.repeat(types, np.diff(np.append(np.flatnonzero(begins), LAYERS))), begins)
            count = int(rng.choice(of.all_counts))
            units = rng.integers(1, min(UNITS, count) + 1, stages).tolist()
            found_s, excess = search.price(placement, units, count)
            if not np.isfinite(found_s):
                continue
            [again] = with_units(of, placement, units, [count])
            schedules = TRAINING_SCHEDULES if of.training else ("gpipe",)
            step_s = min(step_length_s(name, again.loads, count, training=of.training) for name in schedules)
            assert found_s == pytest.approx(step_s, rel=1e-9), (seed, placement)
            used = np.bincount(types, units, TYPES)
            is_over = (used > problem.max_units).any() or again.price_per_hour > problem.budget_per_hour
            assert (excess > 0) == bool(is_over or stages < problem.min_stages)
            compared += 1
    assert compared > 100


def open_step(*, batch: int = 64, units: int = 4) -> StepProblem:
    """Return a problem on which the descent from the optimum of the steady state ends early."""
    problem = synthetic_problem(Recipe(8, 11, 3, branched=True))
    problem = replace(problem, batch=batch, objective="throughput", min_throughput=0.0, max_units=np.full(TYPES, units))
    return plain_step_problem(problem, problem.compute_s * 0.02, training=True)


def found_by(of: StepProblem, walks: int) -> StepsFound:
    start = find_method("exact")(of.problem).placement
    effort = StepEffort(annealing=StepAnnealing(changes=2000, walks=walks))
    return search_steps(of, [start], NO_DEADLINE, effort=effort)


def test_the_annealing_leaves_the_plan_at_which_the_descent_ends() -> None:
    descended, annealed = (found_by(open_step(), walks).plan for walks in (0, 4))
    assert descended is not None
    assert annealed is not None
    assert annealed.value < 0.9 * descended.value


def test_walks_that_begin_with_the_best_of_drawn_plans_end_with_better_ones() -> None:
    def found_s(drawn: int, seed: int) -> float:
        short = StepAnnealing(changes=500, at_once=500, walks=2, fresh=1.0, drawn=drawn)
        return min(plan.value for plan in AnnealSteps(open_step(), short, seed=seed).plans([], NO_DEADLINE))

    ratios = [found_s(64, seed) / found_s(0, seed) for seed in range(8)]
    assert geometric_mean(ratios) < 0.95


def test_limits_that_the_annealing_meets_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_by(open_step(), 1).notes == ()
    [many] = found_by(open_step(batch=512, units=64), 1).notes
    assert names(many, "256")
    held = MemoryParts(0, 0, 0, 10**30)
    dropped = found_by(replace(open_step(), memory=lambda first, end: held), 2).notes
    assert names(dropped[0], "2", "2")
    monkeypatch.setattr(step_search, "steps_are_compiled", lambda deadline: False)
    assert found_by(open_step(), 1).notes == (NOT_COMPILED,)
