"""Plans drawn at a time of a batch: the loop finds the cheapest, and draws come to feasible plans."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import linked, on_machines, plain_problem, small_problem
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.evaluate import evaluate
from heterps_compile.cost.problem import Bools, Floats, Ints, Problem
from heterps_compile.cost.segments import flatten_stages
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.placement.compiled_loops import compiled
from heterps_compile.passes.placement.enumeration import every_placement
from heterps_compile.passes.placement.local.annealing import Anneal, loop_tables
from heterps_compile.passes.placement.local.archive import Archive
from heterps_compile.passes.placement.local.path_loops import Terms, cheapest_paths, segment_talk
from heterps_compile.passes.placement.local.priced_paths import PricedPaths
from heterps_compile.passes.placement.local.segment_table import segment_table
from heterps_compile.passes.placement.simple_plans import seed_placements


def drawing(problem: Problem) -> tuple[Archive, PricedPaths]:
    archive, generator = Archive(problem), np.random.default_rng(1)
    archive.add_placements(seed_placements(problem, None))
    search = Anneal(segment_table(problem), archive, generator, NO_DEADLINE)
    return archive, PricedPaths(search, archive, generator)


def price_at(problem: Problem, types: Ints, begins: Bools, batch_s: float, prices: Floats) -> Floats:
    """Return [B], what the units of plans cost that batches of that time need; inf where no units are enough."""
    stages = flatten_stages(problem, types, begins, memory=True)
    units = stages.work.demand().units(batch_s)
    held = stages.memory_bytes <= problem.memory_bytes[stages.type]
    fits = (units <= problem.max_units[stages.type]) & held & (stages.forbidden == 0)
    paid = np.add.reduceat(np.where(fits, units * prices[stages.type], np.inf), stages.offsets)
    return np.where(np.diff(stages.offsets, append=len(units)) >= problem.min_stages, paid, np.inf)


@pytest.mark.parametrize("is_linked", [False, True])
def test_no_plan_is_cheaper_at_a_time_of_a_batch_where_values_go_to_the_next_stage_alone(is_linked: bool) -> None:
    """Without tables of links only, or where the context has nothing to say, as no value skips a stage."""
    compared = 0
    for seed in range(40):
        problem = small_problem(seed, layers=5, types=3, structure=not is_linked)
        problem = replace(linked(problem, seed) if is_linked else problem, min_stages=1 + seed % 4)
        table, rng = segment_table(problem), np.random.default_rng(seed)
        tables, grid = loop_tables(table), np.arange(len(table.positions))
        prices, batch_s = problem.price_per_hour * rng.uniform(0.5, 2, 3), float(np.exp(rng.uniform(-1, 2)))
        context = rng.integers(0, 3, 5)
        talk = compiled(segment_talk)(tables, table.moved_bytes, table.talks, grid, context)
        paths = compiled(cheapest_paths)(tables, talk, grid, Terms(batch_s, prices, problem.min_stages))
        cheapest = min(
            float(price_at(problem, types, begins, batch_s, prices).min()) for types, begins in every_placement(problem)
        )
        assert float(paths.cost[-1, :, 0, -1].min()) == pytest.approx(cheapest, rel=1e-12), seed
        compared += np.isfinite(cheapest)
    assert 10 < compared < 40
    assert len(compiled(cheapest_paths).signatures) == 1  # type: ignore[attr-defined]  # of numba: compiled once for all
    assert len(compiled(segment_talk).signatures) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(4))
def test_draws_find_what_the_optimum_is_within_a_tenth_of(seed: int) -> None:
    problem = linked(small_problem(seed, layers=5, types=3, memory=False), seed)
    problem = on_machines(problem, seed) if seed % 2 else problem
    best = min(float(evaluate(problem, *each).values.min()) for each in every_placement(problem))
    archive, paths = drawing(problem)
    for _ in range(60):
        paths.draw()
    assert archive.best.value <= 1.1 * best


def test_a_plan_has_so_many_stages_at_least_and_the_archive_has_seen_it() -> None:
    problem = replace(synthetic_problem(Recipe(3, layers=120, types=4, branched=True)), min_stages=6)
    archive, paths = drawing(problem)
    drawn = [plan for plan in (paths.draw() for _ in range(5)) if plan is not None]
    assert drawn
    assert all(plan.begins.sum() >= 6 for plan in drawn)
    assert archive.best.rank <= min(plan.rank for plan in drawn)
    assert paths.priced > 0


def test_units_that_are_short_get_dearer_until_plans_keep_to_them() -> None:
    """The second type is better for every layer, and there are two of it."""
    problem = small_problem(0, layers=8, types=2, structure=False, memory=False, floor=False)
    compute_s = np.column_stack([np.full(8, 2.0), np.full(8, 1.0)])
    problem = replace(
        problem,
        compute_s=compute_s,
        data_s=np.zeros((8, 2)),
        sync_s=np.zeros((8, 2)),
        compute_parallel=np.ones(2),
        price_per_hour=np.array([1.0, 1.0]),
        max_units=np.array([20, 2]),
        min_throughput=problem.batch / 2.0,
        layer_compute_parallel=None,
        layer_data_parallel=None,
    )
    archive, paths = drawing(problem)
    for _ in range(20):
        paths.draw()
    assert np.isfinite(archive.best.value)
    assert {0, 1} == set(archive.best.types.tolist())


def test_layers_that_take_no_time_and_a_type_without_units_are_drawn_too() -> None:
    problem = plain_problem([[0.0, 1.0], [0.0, 2.0]], [1.0, 1.0], max_units=np.array([0, 4]))
    archive, paths = drawing(problem)
    plan = paths.draw()
    assert plan is not None
    assert plan.types.tolist() == [1, 1]
    assert archive.best.rank <= plan.rank


def test_a_seed_draws_the_same_plans_again() -> None:
    problem = linked(small_problem(2, layers=6, types=3), 2)
    runs = []
    for _ in range(2):
        archive, paths = drawing(problem)
        for _ in range(10):
            paths.draw()
        runs.append((archive.best.value, archive.evaluations, paths.priced))
    assert runs[0] == runs[1]
