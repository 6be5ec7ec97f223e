"""Where nothing is feasible, what is blamed is what would help to drop; brute force says what would."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from small_problems import plain_problem, small_problem

from heterps_compile.cost.evaluate import evaluate
from heterps_compile.cost.problem import Problem
from heterps_compile.passes.placement.baselines.brute import every_placement
from heterps_compile.passes.placement.proof.dropped_constraints import (
    MEMORY,
    MOST_STAGES,
    PINS,
    WITHOUT,
    in_words,
    without,
)
from heterps_compile.passes.placement.proof.why_infeasible import explain_infeasible


def is_feasible(problem: Problem) -> bool:
    return any(np.isfinite(evaluate(problem, types, cuts).values).any() for types, cuts in every_placement(problem))


def crowded(seed: int) -> Problem:
    """Draw a problem whose types have little memory and whose layers are pinned here and there; units are no limit."""
    rng = np.random.default_rng(seed)
    problem = small_problem(seed, layers=5, types=2, floor=False, structure=False)
    allowed = rng.random((5, 2)) < rng.choice([0.5, 0.8, 1.0])
    allowed[~allowed.any(axis=1)] = True
    return replace(
        problem,
        allowed=allowed,
        memory_bytes=np.full(2, rng.choice([110.0, 160.0, 240.0, 1e9])),
        max_units=np.full(2, 10**6),
        max_stages=int(rng.integers(1, 4)),
    )


def test_too_few_stages_are_blamed_on_what_asks_for_more():
    seen: Counter[str] = Counter()
    for seed in range(150):
        problem = crowded(seed)
        if is_feasible(problem) or not is_feasible(without(problem, [MOST_STAGES])):
            continue
        message = str(explain_infeasible(problem))
        saved_by = {name for name in (MEMORY, PINS) if is_feasible(without(problem, [name]))}
        begins = {
            frozenset({MEMORY}): "memory asks for at least",
            frozenset({PINS}): "pins, forbidden pairs and what the types support, along this order of the layers, ask",
            frozenset({MEMORY, PINS}): "memory and pins, forbidden pairs",
            frozenset(): "memory asks for at least",
        }[frozenset(saved_by)]
        assert message.startswith(begins), (seed, message)
        assert ("together" in message) == (len(saved_by) != 1)
        named = int(message.partition("--max-stages ")[2].split(",")[0])
        assert is_feasible(replace(problem, max_stages=named)), (seed, message)
        assert not is_feasible(replace(problem, max_stages=named - 1)), (seed, message)
        seen[begins] += 1
    assert len(seen) == 3, seen


def test_a_floor_that_other_constraints_put_out_of_reach_names_the_fewest_to_drop():
    sizes: Counter[int] = Counter()
    for seed in range(50):
        problem = crowded(seed)
        rng = np.random.default_rng(seed)
        parallel = np.full(2, rng.choice([0.3, 0.6]))
        problem = replace(problem, compute_parallel=parallel, data_parallel=parallel)
        if not is_feasible(problem):
            continue
        problem = replace(problem, min_throughput=problem.batch / float(rng.uniform(0.2, 2.0)))
        if is_feasible(problem):
            continue
        for size in range(1, len(WITHOUT) + 1):
            sets = [names for names in combinations(WITHOUT, size) if is_feasible(without(problem, names))]
            if sets:
                break
        message = str(explain_infeasible(problem))
        if sets:
            assert f"without {in_words(sets)} it could be reached" in message, (seed, message)
        else:
            assert "it could be reached" not in message, (seed, message)
            # nothing but the floor itself: a layer that is too slow, or what stages send
            assert ("takes at least" in message) != ("what the stages have to send" in message), (seed, message)
        sizes[len(sets[0]) if sets else 0] += 1
    assert {0, 1} <= set(sizes), sizes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"allowed": np.array([[True, False], [False, True], [True, False]])},
            "pins, forbidden pairs and what the types support, along this order of the layers, ask for at least "
            "3 stages, and at most 2 are allowed; drop a pin or a pair (--pin, --forbid), or allow --max-stages 3",
        ),
        (
            {"compute_s": np.array([[1.0, np.inf], [np.inf, 1.0], [1.0, np.inf]])},
            "no type runs all layers: in this order they ask for at least 3 stages, and at most 2 are allowed; "
            "allow --max-stages 3, or add a type that runs more of them",
        ),
        (
            {
                "allowed": np.array([[True, False], [False, True], [False, True]]),
                "weight_bytes": np.array([3e8, 5e8, 6e8]),
            },
            "memory and pins, forbidden pairs and what the types support, along this order of the layers, together ask "
            "for at least 3 stages (memory alone 2, the pins alone 2), and at most 2 are allowed; drop a pin or a pair "
            "(--pin, --forbid), allow --max-stages 3, or add a type with more memory",
        ),
        (
            {"weight_bytes": np.array([8e8, 8e8, 8e8])},
            "memory asks for at least 3 stages in this order of the layers, and at most 2 are allowed; allow "
            "--max-stages 3, or add a type with "
            "more memory",
        ),
    ],
)
def test_who_asks_for_the_stages_is_named(changes: dict[str, object], message: str) -> None:
    problem = plain_problem([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], [1.0, 1.0], max_stages=2, **changes)
    assert str(explain_infeasible(problem)) == message


def test_a_layer_is_not_blamed_for_what_it_sends_only_when_it_stands_alone() -> None:
    problem = plain_problem(
        [[1.0], [1.0]],
        [1.0],
        edge_producer=np.array([0]),
        edge_bytes=np.array([100.0]),
        edge_readers=np.array([1]),
        edge_starts=np.array([0, 1]),
        seconds_per_byte=np.array([1.0]),
        data_parallel=np.array([0.0]),
        min_stages=2,
        min_throughput=3600.0,
    )
    message = str(explain_infeasible(problem))
    assert (
        "no single layer blocks, and without the fewest stages asked for (--min-stages) it could be reached" in message
    )
