"""What the policy sees, its scores, and the plans drawn from them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_problems import plain_problem
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.problem import Problem
from heterps_compile.passes.placement.learned.features import FEATURE_COUNT, layer_features
from heterps_compile.passes.placement.learned.policy import fresh_policy, policy_input
from heterps_compile.passes.placement.learned.reinforce import Learner, Learning
from heterps_compile.passes.placement.local.sampling import Proposal, draw_plans, stage_rules, uniform_proposal

PROBLEM = synthetic_problem(Recipe(seed=2, layers=12, types=4, branched=True))


def with_types(problem: Problem, order: list[int]) -> Problem:
    per_type = ("compute_parallel", "data_parallel", "seconds_per_byte", "latency_s", "price_per_hour", "max_units")
    changes = {name: getattr(problem, name)[order] for name in (*per_type, "memory_bytes")}
    changes |= {name: getattr(problem, name)[:, order] for name in ("compute_s", "data_s", "sync_s", "allowed")}
    return replace(problem, **changes)


def test_features_are_finite_and_of_order_one() -> None:
    features = layer_features(PROBLEM, PROBLEM.min_throughput)
    assert features.shape == (12, 4, FEATURE_COUNT)
    assert np.abs(features).max() < 10


def test_features_do_not_depend_on_the_currency() -> None:
    yen = replace(PROBLEM, price_per_hour=150 * PROBLEM.price_per_hour)
    assert layer_features(yen, 9.0) == pytest.approx(layer_features(PROBLEM, 9.0), abs=1e-4)


def test_the_order_of_types_does_not_matter_to_the_policy() -> None:
    order, policy = [2, 0, 3, 1], fresh_policy(PROBLEM, "lstm", 0)
    with torch.no_grad():
        scores, begins = policy(policy_input(PROBLEM, [9.0]))
        again, begins_again = policy(policy_input(with_types(PROBLEM, order), [9.0]))
    assert again[:, 0].numpy() == pytest.approx(scores[:, 0, order].numpy(), abs=1e-4)
    assert begins_again.numpy() == pytest.approx(begins.numpy(), abs=1e-4)


def test_fresh_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (fresh_policy(PROBLEM, "lstm", seed) for seed in (1, 1, 2))
    assert torch.equal(first.read.weight, again.read.weight)
    assert not torch.equal(first.read.weight, other.read.weight)


def test_drawn_plans_keep_the_rules() -> None:
    rules = stage_rules(PROBLEM)
    draws = draw_plans(uniform_proposal(PROBLEM), rules, 50, np.random.default_rng(0))
    assert np.all(draws.begins[:, 0])
    assert not np.any(draws.begins[:, ~rules.may_begin])
    changes = draws.types[:, 1:] != draws.types[:, :-1]
    assert not np.any(changes & ~draws.begins[:, 1:])


def test_the_number_of_stages_is_kept_within_its_bounds() -> None:
    problem = plain_problem([[1.0, 1.0]] * 9, [1.0, 1.0], min_stages=3, max_stages=5)
    draws = draw_plans(uniform_proposal(problem), stage_rules(problem), 200, np.random.default_rng(0))
    counts = draws.begins.sum(axis=1)
    assert (counts.min(), counts.max()) == (3, 5)


def test_a_stage_goes_where_its_layers_scores_add_up_to_most() -> None:
    problem = plain_problem([[1.0, 1.0]] * 4, [1.0, 1.0])
    scores = np.array([[900.0, 0.0], [0.0, 500.0], [0.0, 0.0], [0.0, 300.0]])
    begins = np.array([0.0, -99.0, 99.0, -99.0])
    draws = draw_plans(Proposal(1.0, scores, begins), stage_rules(problem), 5, np.random.default_rng(0))
    assert np.all(draws.types == [0, 0, 1, 1])


def test_reinforce_makes_better_plans_likelier() -> None:
    problem = plain_problem([[1.0, 9.0], [9.0, 1.0]] * 4, [1.0, 1.0])
    learner = Learner(problem, fresh_policy(problem, "lstm", 0), Learning(), np.random.default_rng(0))
    means = [float(np.mean(learner.round()[1].values)) for _ in range(60)]
    assert np.mean(means[-5:]) < 0.8 * np.mean(means[:5])
