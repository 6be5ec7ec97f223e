"""Problems made from a seed."""

import numpy as np
import pytest

from heterps_compile.cost.evaluate import evaluate
from heterps_compile.cost.synthetic import FAMILIES, Recipe, synthetic_problem
from heterps_compile.passes.placement.proof.exact import Exact


def test_the_same_recipe_gives_the_same_problem_and_another_seed_another() -> None:
    first, again, other = (synthetic_problem(Recipe(seed=s, layers=9, types=3)) for s in (1, 1, 2))
    assert np.array_equal(first.compute_s, again.compute_s)
    assert first.min_throughput == again.min_throughput
    assert not np.array_equal(first.compute_s, other.compute_s)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("coupled", [False, True])
def test_every_problem_has_its_size_and_a_feasible_plan_at_a_floor_that_binds(family: str, coupled: bool) -> None:
    recipe = Recipe(3, 14, 4, branched=coupled, limited=coupled, tight_memory=coupled, family=family)
    problem = synthetic_problem(recipe)
    assert (problem.layer_count, problem.type_count) == (14, 4)
    assert problem.min_throughput > 0
    assert np.isfinite(Exact()(problem, time_limit_s=20).value)
    whole = evaluate(problem, np.repeat(np.arange(4)[:, None], 14, axis=1))
    assert np.any(whole.price_per_hour > problem.price_per_hour.min())


def test_a_plain_recipe_is_a_chain_without_limits() -> None:
    problem = synthetic_problem(Recipe(seed=1, layers=10, types=3))
    assert problem.edge_producer.tolist() == list(range(9))
    assert problem.edge_readers.tolist() == list(range(1, 10))
    assert problem.max_units.min() == 100_000
    assert not problem.uncuttable.any()


def test_couplings_are_what_the_recipe_says() -> None:
    branched = synthetic_problem(Recipe(seed=1, layers=40, types=3, branched=True))
    assert len(branched.edge_readers) > len(branched.edge_producer)
    assert synthetic_problem(Recipe(seed=1, layers=10, types=3, limited=True)).max_units.max() < 100_000
    tight = synthetic_problem(Recipe(seed=1, layers=40, types=6, tight_memory=True))
    activations = tight.activation_bytes
    held = tight.weight_bytes.sum() + (activations.sum() if tight.keeps_activations else activations.max())
    assert np.count_nonzero(tight.memory_bytes < held) >= 1
    assert tight.memory_bytes.max() >= held


def test_accelerators_stand_in_machines_where_the_recipe_says_so() -> None:
    problem = synthetic_problem(Recipe(seed=2, layers=8, types=4, family="conv", machines=True))
    assert problem.machines is not None
    is_cpu = np.array([kind == "cpu" for kind in problem.type_kinds])
    assert problem.machines.units[is_cpu].tolist() == [1.0] * is_cpu.sum()
    assert problem.machines.units[~is_cpu].min() >= 2
    assert problem.machines.inner[~is_cpu].max() < 1
    assert np.isfinite(Exact()(problem, time_limit_s=20).value)
    assert synthetic_problem(Recipe(seed=2, layers=8, types=4)).machines is None


def test_layers_have_fractions_of_their_own_where_the_recipe_says_so() -> None:
    plain, own = (synthetic_problem(Recipe(seed=2, layers=12, types=3, own_fractions=told)) for told in (False, True))
    assert (plain.layer_compute_parallel, plain.layer_data_parallel) == (None, None)
    for fractions in (own.layer_compute_parallel, own.layer_data_parallel):
        assert fractions is not None
        assert fractions.shape == (12, 3)
        assert 0 <= fractions.min() < fractions.max() <= 1
    assert np.array_equal(plain.compute_s, own.compute_s)
    found = Exact()(own, time_limit_s=20)
    assert found.bound == found.value
