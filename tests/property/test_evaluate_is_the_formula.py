"""``evaluate`` gives what the formulas of ``cost/problem.py`` give when they are worked out one by one."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import linked, on_machines, plain_value, small_problems, small_problems_for, with_shared_storage

from heterps_compile.cost.evaluate import Fault, detail, evaluate, to_placement
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Problem


def assert_plain_values(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    types = rng.integers(0, problem.type_count, (6, problem.layer_count))
    types[:3] = types[:3, :1]  # few stages, so that some are feasible
    cuts = rng.random(types.shape) < 0.2
    evaluation = evaluate(problem, types, cuts)
    for b in range(len(types)):
        placement = to_placement(types[b], cuts[b])
        expected = plain_value(problem, placement)
        assert evaluation.values[b] == pytest.approx(expected, rel=1e-9)
        assert (evaluation.faults[b] == 0) == math.isfinite(expected)
        assert (evaluation.violation[b] == 0) == math.isfinite(expected)


@settings(max_examples=60, deadline=None)
@given(small_problems(), st.integers(0, 2**32 - 1))
def test_every_placement_of_a_batch_has_the_plain_value(problem: Problem, seed: int) -> None:
    assert_plain_values(problem, seed)


@pytest.mark.parametrize("objective", ["price", "throughput", "latency", "max-load"])
@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_every_objective_has_the_plain_value(objective: str, data: st.DataObject, seed: int) -> None:
    assert_plain_values(data.draw(small_problems_for(objective)), seed)


@settings(max_examples=60, deadline=None)
@given(small_problems(), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_pairs_of_types_talk_over_their_own_links(problem: Problem, links: int, seed: int) -> None:
    assert_plain_values(linked(problem, links), seed)


@pytest.mark.parametrize("objective", list(OBJECTIVES))
@settings(max_examples=40, deadline=None)
@given(data=st.data(), storage=st.integers(0, 2**32 - 1), seed=st.integers(0, 2**32 - 1))
def test_replicas_wait_for_the_storage_they_share(objective: str, data: st.DataObject, storage: int, seed: int) -> None:
    assert_plain_values(with_shared_storage(data.draw(small_problems_for(objective)), storage), seed)


@pytest.mark.parametrize("objective", list(OBJECTIVES))
@settings(max_examples=30, deadline=None)
@given(data=st.data(), machines=st.integers(0, 2**32 - 1), seed=st.integers(0, 2**32 - 1))
def test_units_share_machines(objective: str, data: st.DataObject, machines: int, seed: int) -> None:
    problem = data.draw(small_problems_for(objective, units=9))
    assert_plain_values(on_machines(problem, machines), seed)


@settings(max_examples=30, deadline=None)
@given(small_problems(max_layers=4, units=300), st.integers(0, 2**32 - 1))
def test_hundreds_of_replicas_are_searched_to_the_end(problem: Problem, seed: int) -> None:
    types = np.repeat(np.random.default_rng(seed).integers(0, problem.type_count, (2, 1)), problem.layer_count, 1)
    evaluation = evaluate(problem, types)
    for b in range(2):
        assert evaluation.values[b] == pytest.approx(plain_value(problem, to_placement(types[b])), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(small_problems(), st.integers(0, 2**32 - 1))
def test_detail_agrees_with_evaluate_to_the_last_bit(problem: Problem, seed: int) -> None:
    types = np.repeat(np.random.default_rng(seed).integers(0, problem.type_count, (5, 1)), problem.layer_count, 1)
    evaluation = evaluate(problem, types)
    for b in range(len(types)):
        one = detail(problem, to_placement(types[b]))
        assert one.value == evaluation.values[b]
        assert one.throughput == evaluation.throughput[b]
        assert one.price_per_hour == evaluation.price_per_hour[b]
        assert one.faults == Fault(int(evaluation.faults[b]))
        if one.faults == 0:
            assert sum(s.price_per_hour for s in one.stages) == pytest.approx(one.price_per_hour, rel=1e-12)
            assert problem.batch / max(s.time_s for s in one.stages) == one.throughput
