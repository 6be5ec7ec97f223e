"""Annealing: what the loop prices is what ``evaluate`` says, and what it finds."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from small_problems import linked, on_machines, plain_problem, rented_whole, small_problem, with_shared_storage
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.evaluate import Fault, evaluate, evaluate_one, slowest_batch_s, to_placement
from heterps_compile.cost.problem import Bools, Ints, Problem
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.compiled_loops import compiled
from heterps_compile.passes.placement.local.annealing import Anneal, Annealing, drawing
from heterps_compile.passes.placement.local.annealing_loops import KINDS, Cooling, Donors, anneal
from heterps_compile.passes.placement.local.archive import Archive
from heterps_compile.passes.placement.local.sampling import draw_plans, stage_rules, uniform_proposal
from heterps_compile.passes.placement.local.segment_table import segment_table
from heterps_compile.passes.placement.simple_plans import seed_placements

STILL, NONE = Cooling(0, 1.0, 1.0, 1.0, 1.0), np.zeros((0, 4), np.int64)
NO_DONORS = Donors(NONE, NONE, np.zeros(0, np.int64))
SHORT = Annealing(changes=2_000, at_once=1_000)


def begin(problem: Problem, deadline: Deadline = NO_DEADLINE, how: Annealing = SHORT) -> tuple[Archive, Anneal]:
    archive = Archive(problem)
    archive.add_placements(seed_placements(problem, None))
    return archive, Anneal(segment_table(problem), archive, np.random.default_rng(1), deadline, how)


def posed(seed: int, objective: str) -> Problem:
    """Return a problem that has whatever problems may have, each with a chance of its own."""
    chance = np.random.default_rng(seed).random(5)
    problem = small_problem(seed, layers=7, types=3, memory=chance[0] < 0.5, units=6)
    floor = problem.min_throughput or 0.3 * problem.batch * (objective == "price")
    problem = replace(problem, objective=objective, min_throughput=floor, min_stages=1 + seed % 3)
    if objective == "latency":
        problem = replace(problem, sync_s=np.zeros_like(problem.sync_s), keeps_activations=False)
    for chosen, add in zip(chance[1:], (linked, on_machines, rented_whole, with_shared_storage), strict=True):
        problem = add(problem, seed) if chosen < 0.5 else problem
    return problem


@pytest.mark.parametrize("objective", ["cost", "price", "throughput", "latency", "max-load"])
def test_a_plan_is_priced_as_it_is_evaluated_whatever_the_problem_has(objective: str) -> None:
    judged = {"feasible": 0, "infeasible": 0}
    for seed in range(60):
        problem = posed(seed, objective)
        draws = draw_plans(uniform_proposal(problem), stage_rules(problem), 12, np.random.default_rng(seed))
        evaluation, (_, search) = evaluate(problem, draws.types, draws.begins), begin(problem)
        for row in range(12):
            walk, feasible = search.begin(draws.types[row], draws.begins[row]), evaluation.faults[row] == 0
            if feasible and objective in ("cost", "throughput"):  # at the time of a batch that is best for it
                walk.numbers[0, 0] = problem.batch / evaluation.throughput[row] * (1 + 1e-10)
            elif not np.isfinite(slowest_batch_s(problem)):
                walk.numbers[0, 0] = 1e6
            compiled(anneal)(search.tables, search.rules, walk, NO_DONORS, STILL)
            assert (walk.numbers[0, 2] == 0) == feasible, (seed, row, Fault(int(evaluation.faults[row])))
            judged["feasible" if feasible else "infeasible"] += 1
            if feasible:
                value = walk.numbers[0, 1] / (3600 * problem.batch / 1e6 if objective == "cost" else 1.0)
                assert value == pytest.approx(evaluation.values[row], rel=1e-8), (seed, row)
    assert min(judged.values()) > 30
    assert len(compiled(anneal).signatures) == 1  # type: ignore[attr-defined]  # of numba: compiled once for all


@pytest.mark.parametrize("objective", ["cost", "price", "throughput", "latency", "max-load"])
def test_a_plan_that_changed_often_is_priced_as_one_that_is_priced_anew(objective: str) -> None:
    """Stages that a change leaves as they are keep their price; many stages are asked for, so that most are left."""
    judged = 0
    for seed in range(30):
        problem = replace(posed(seed, objective), min_stages=4)
        _, search = begin(problem)
        walk = search.begin(np.arange(7) % 3, np.ones(7, np.bool_))
        for heat in np.geomspace(0.5, 0.005, 10).tolist():
            compiled(anneal)(search.tables, search.rules, walk, NO_DONORS, Cooling(200, heat, heat, 3.0, 30.0))
            changed = walk.numbers[0].copy()
            compiled(anneal)(search.tables, search.rules, walk, NO_DONORS, STILL)
            if changed[2] == 0:  # of one that exceeds constraints the time of a batch is open
                assert walk.numbers[0] == pytest.approx(changed, rel=1e-9), seed
                judged += 1
    assert judged > 50


@pytest.mark.parametrize("kind", ["exchange", "recut"])
def test_two_places_change_at_once_and_as_many_stages_are_left(kind: str) -> None:
    """Stages of layers on types 0 0 | 1 1 | 2 2; every change is taken, since nothing costs anything yet."""
    problem = linked(small_problem(0, layers=6, types=3, structure=False, memory=False, floor=False), 0)
    _, search = begin(problem)
    rules = search.rules._replace(odds=np.cumsum([name == kind for name in KINDS]).astype(np.float64), hurried=0.0)
    types, begins = np.array([0, 0, 1, 1, 2, 2]), np.arange(6) % 2 == 0
    seen = set()
    for _ in range(200):
        walk = search.begin(types, begins)
        compiled(anneal)(search.tables, rules, walk, NO_DONORS, Cooling(1, 1e9, 1e9, 3.0, 30.0))
        assert walk.stages[0] == 3
        seen.add((tuple(walk.bounds[0, 1:3].tolist()), tuple(walk.types[0, :3].tolist())))
    if kind == "exchange":
        assert seen == {((2, 4), kinds) for kinds in ((0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1))}
    else:  # one cut is left where it was
        assert {cuts for cuts, _ in seen} == {(1, 2), (2, 3), (2, 4), (2, 5), (1, 4), (3, 4), (4, 5)}


@pytest.mark.parametrize("objective", ["cost", "throughput"])
def test_the_optimum_over_links_branches_and_limits_is_found(objective: str) -> None:
    drawn = replace(small_problem(2, layers=5, types=3, memory=False), objective=objective)
    problem = linked(drawn, 2)
    archive, search = begin(problem)
    draw = drawing(problem, [uniform_proposal(problem)], np.random.default_rng(0))
    for _ in islice(search.steps(draw), 60):
        pass
    assert archive.best.value == pytest.approx(Brute()(problem).value, rel=1e-9)
    assert archive.best.value == evaluate_one(problem, archive.best.placement())


def test_no_change_cuts_where_nothing_may_be_cut_nor_leaves_too_many_stages() -> None:
    drawn = small_problem(3, layers=12, types=3, structure=False)
    uncuttable = np.zeros(13, np.bool_)
    uncuttable[[3, 4, 8]] = True
    problem = linked(replace(drawn, uncuttable=uncuttable, min_throughput=0.0, max_units=np.full(3, 99)), 3)
    problem = replace(problem, min_stages=2, max_stages=4)
    archive, search = begin(problem)
    for _ in islice(search.steps(drawing(problem, [uniform_proposal(problem)], np.random.default_rng(0))), 40):
        pass
    found = [plan for plan in archive.niches(64) if np.isfinite(plan.value)]
    assert len(found) > 1
    assert all(2 <= len(to_placement(plan.types, plan.begins).starts()) <= 4 for plan in found)
    assert not any(plan.begins[[3, 4, 8]].any() for plan in found)


@pytest.mark.parametrize("objective", ["cost", "throughput", "latency"])
@pytest.mark.parametrize("seed", range(3))
def test_a_walk_leaves_plans_that_take_no_time_because_no_layer_may_run(seed: int, objective: str) -> None:
    """Six runs of layers may each be on one type alone; the walk begins with all on a type that may run none."""
    drawn = synthetic_problem(Recipe(seed, layers=30, types=4))
    allowed = np.zeros((30, 4), np.bool_)
    allowed[np.arange(30), np.repeat(np.random.default_rng(seed).integers(0, 3, 6), 5)] = True
    problem = replace(drawn, allowed=allowed, objective=objective, min_throughput=0.0, budget_per_hour=np.inf)
    if objective == "latency":
        problem = replace(problem, sync_s=np.zeros_like(problem.sync_s), keeps_activations=False)
    _, search = begin(problem)
    walk = search.begin(np.full(30, 3), np.arange(30) == 0)
    compiled(anneal)(search.tables, search.rules, walk, NO_DONORS, Cooling(50_000, 0.2, 0.001, 3.0, 30.0))
    assert np.isfinite(walk.numbers[1, 1])
    assert walk.numbers[1, 1] > 1e-100


def test_a_walk_leaves_a_plan_without_time_that_has_too_few_units() -> None:
    """No layer takes time on the first type, of which there is no unit: a plan of it seems free."""
    problem = replace(
        plain_problem([[0.0, 1.0], [0.0, 2.0]], [1.0, 1.0]),
        max_units=np.array([0, 4]),
        objective="throughput",
        min_throughput=0.0,
    )
    _, search = begin(problem)
    walk = search.begin(np.zeros(2, np.int64), np.array([True, False]))
    compiled(anneal)(search.tables, search.rules, walk, NO_DONORS, Cooling(20_000, 0.2, 0.001, 3.0, 30.0))
    assert walk.numbers[1, 1] == pytest.approx(0.75)  # 3 s on four units


def test_a_seed_gives_the_same_plans_again_and_vain_walks_end_the_search() -> None:
    problem = linked(small_problem(2, layers=6, types=3), 2)
    ended = []
    for _ in range(2):
        archive, search = begin(problem, how=replace(SHORT, patience=5))
        for _ in search.steps(drawing(problem, [uniform_proposal(problem)], np.random.default_rng(0))):
            pass
        ended.append((archive.best.value, archive.evaluations, search.priced))
    assert ended[0] == ended[1]


def test_every_walk_begins_with_a_drawn_plan_while_none_is_feasible() -> None:
    problem = plain_problem([[1.0, 2.0]] * 6, [1.0, 2.0], max_units=np.zeros(2, np.int64))
    archive, search = begin(problem, how=replace(SHORT, patience=5, fresh=0.01))
    draw, drawn = drawing(problem, [uniform_proposal(problem)], np.random.default_rng(0)), []

    def counted() -> tuple[Ints, Bools]:
        drawn.append(draw())
        return drawn[-1]

    for _ in search.steps(counted):
        pass
    assert archive.best.value == np.inf
    assert len(drawn) >= 5  # of the walks in vain, after which it ends


def test_a_search_that_is_late_ends() -> None:
    problem = linked(small_problem(2, layers=6, types=3), 2)
    archive, search = begin(problem, Deadline.after(-1.0))
    before = archive.evaluations
    assert list(search.steps(drawing(problem, [uniform_proposal(problem)], np.random.default_rng(0)))) == []
    assert archive.evaluations == before
