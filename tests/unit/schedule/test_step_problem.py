"""What a micro-batch takes in a stage, which numbers of them there are, and bounds of many plans at once."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.problem import Placement
from heterps_compile.passes.placement.steps.step_plans import with_units
from heterps_compile.schedule.load import micro_batch_counts
from heterps_compile.schedule.shortest_step import INFERENCE_SCHEDULES, TRAINING_SCHEDULES, least_step_s
from heterps_compile.schedule.step_length import step_length_s
from heterps_compile.schedule.step_problem import PartTimes, StepProblem, plain_step_problem

PLACEMENTS = (Placement((0, 1, 0)), Placement((0, 1, 1)), Placement((1, 1, 1), (2,)), Placement((0, 0, 0)))


def drawn(seed: int, *, training: bool, batch: int = 4) -> StepProblem:
    """Draw a problem of three layers and two types."""
    problem = synthetic_problem(Recipe(seed, 3, 2, branched=seed % 2 == 0))
    problem = replace(problem, batch=batch, max_units=np.full(2, 3), sync_s=problem.sync_s * training, min_throughput=0)
    return plain_step_problem(problem, problem.compute_s * 0.02, training=training)


def idle(training: bool, **changes: object) -> StepProblem:
    """Return a problem of one layer on one type, whose replicas divide all and agree in no time."""
    problem = synthetic_problem(Recipe(0, 1, 1))
    none, one = np.zeros((1, 1)), np.ones(1)
    problem = replace(
        problem, batch=4, max_units=np.array([4]), compute_s=none + 12.0, data_s=none, sync_s=none,
        compute_parallel=one, data_parallel=one, latency_s=0 * one,
    )  # fmt: skip
    return plain_step_problem(replace(problem, **changes), none, training=training)  # type: ignore[arg-type]


@pytest.mark.parametrize("training", [True, False])
def test_a_bound_among_those_of_many_plans_is_that_of_the_plan_and_of_one_micro_batch_its_step(training: bool) -> None:
    for seed, placement in product(range(3), PLACEMENTS):
        of = drawn(seed, training=training)
        for units in product((1, 2, 3), repeat=len(placement.starts())):
            for plan in with_units(of, placement, units, of.all_counts):
                count = plan.micro_batches
                alone_s = least_step_s(plan.loads, count, training=training)
                names = TRAINING_SCHEDULES if training else INFERENCE_SCHEDULES
                shortest_s = min(step_length_s(name, plan.loads, count, training=training) for name in names)
                assert alone_s * (1 - 1e-9) <= plan.least_s <= shortest_s * (1 + 1e-9)
                if count == 1 or not training:
                    assert plan.least_s == pytest.approx(alone_s, rel=1e-9)
                if count == 1:
                    assert plan.least_s == pytest.approx(shortest_s, rel=1e-9)


def test_a_replica_makes_gradients_once_and_adds_to_them_from_then_on() -> None:
    """Of 4 micro-batches of 1 + 2 s, to which each but a replica's first adds 3 s: 2.75, 2.5 and 2 s in the mean."""
    of = idle(training=True)
    table = np.ones((1, 1))
    of.known_parts.update({1: PartTimes(4 * table, 8 * table, 12 * table), 4: PartTimes(table, 2 * table, 3 * table)})
    taken = {}
    for units in (1, 2, 4):
        [plan] = with_units(of, Placement((0,)), [units], [4])
        each = plan.loads[0].micro_batch(4)
        taken[units] = each.forward_s, each.backward_s
    assert taken == {
        units: pytest.approx((1.0, backward_s), rel=1e-9) for units, backward_s in ((1, 2.75), (2, 2.5), (4, 2.0))
    }


@pytest.mark.parametrize(("training", "phases_s"), [(True, (1.0, 2.0)), (False, (3.0, 0.0))])
def test_a_stage_that_only_moves_data_moves_a_third_of_it_forward_in_training(training: bool, phases_s: tuple) -> None:
    none = np.zeros((1, 1))
    [plan] = with_units(idle(training, compute_s=none, data_s=none + 3.0), Placement((0,)), [1], [1])
    each = plan.loads[0].micro_batch(1)
    assert (each.forward_s, each.backward_s) == pytest.approx(phases_s)


@pytest.mark.parametrize(
    ("batch", "replicas", "most"), [(6, 1, 6), (32, 1, 32), (64, 1, 32), (64, 7, 32), (64, 8, 64), (40, 5, 40)]
)
def test_as_many_micro_batches_are_tried_as_divide_a_batch_and_suit_its_replicas(
    batch: int, replicas: int, most: int
) -> None:
    counts = micro_batch_counts(batch, replicas)
    assert counts == [count for count in range(1, batch + 1) if batch % count == 0 and count <= most]


def test_a_number_of_micro_batches_is_one_that_the_plan_would_try_and_leaves_no_replica_without() -> None:
    of = drawn(0, training=True, batch=480)
    of = replace(of, problem=replace(of.problem, max_units=np.array([6, 500])))
    for most in (1, 4, 5, 6, 48, 480, 500):
        wanted = [n for n in micro_batch_counts(480, most) if n >= most or most > 480]
        taken = [n for n in of.all_counts if of.takes(n, np.array([float(most)]))[0]]
        assert taken == wanted
