"""What is said where no placement is feasible."""

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.problem import Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.passes.placement.proof.why_infeasible import explain_infeasible


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"allowed": np.array([[True, True], [False, True]]), "compute_s": np.array([[1.0, 1.0], [1.0, np.inf]])},
            "layer 'layer1' may run on no type of the pool: a pin, a forbidden pair or what the type supports "
            "rules out 'cpu', and 'gpu' cannot run it; drop the pin or the pair (--pin, --forbid), "
            "or add a type that runs it",
        ),
        (
            {"allowed": np.eye(2, dtype=bool), "uncuttable": np.array([False, True, False])},
            "layers 'layer0' to 'layer1' cannot be cut apart, and no one type of cpu, gpu may run all of them; "
            "pin them to the same type",
        ),
        (
            {"min_stages": 3},
            "at least 3 stages are asked for, but the 2 layers can be cut into at most 2; "
            "ask for --min-stages 2 or fewer",
        ),
        (
            {"min_stages": 2**62},
            "at least 4611686018427387904 stages are asked for, but the 2 layers can be cut into at most 2; "
            "ask for --min-stages 2 or fewer",
        ),
        ({"min_stages": 2, "max_stages": 1}, "at least 2 and at most 1 stage exclude each other"),
        (
            {"weight_bytes": np.array([2.0**31, 1.0])},
            "layer 'layer0' needs at least 2 GiB, and the largest type it may run on, 'cpu', has 954 MiB; "
            "use a smaller batch, or add a type with more memory",
        ),
        (
            {
                "weight_bytes": np.array([2.0**31, 1.0]),
                "memory_bytes": np.array([2.0**30, 2.0**32]),
                "allowed": np.array([[True, False], [True, True]]),
            },
            "layer 'layer0' needs at least 2 GiB, and the largest type it may run on, 'cpu', has 1 GiB; "
            "'gpu', which has 4 GiB, is ruled out: drop the pin or the pair (--pin, --forbid)",
        ),
        (
            {"weight_bytes": np.array([8e8, 8e8]), "max_stages": 1},
            "memory asks for at least 2 stages in this order of the layers, and at most 1 are allowed; "
            "allow --max-stages 2, or add a type with more memory",
        ),
        (
            {
                "weight_bytes": np.array([8e8, 8e8]),
                "compute_s": np.array([[4.0, np.inf], [np.inf, 2.0]]),
                "max_stages": 1,
            },
            "no type runs all layers: in this order they ask for at least 2 stages, and at most 1 are allowed; "
            "allow --max-stages 2, or add a type that runs more of them",
        ),
        (
            {"compute_parallel": np.array([0.5, 0.5]), "min_throughput": 7200.0},
            "a throughput of 7,200 samples/s cannot be reached: layer 'layer0' takes at least 1 s a batch on 'gpu', "
            "its best type, however many replicas it has, and the floor leaves 500 ms; "
            "the best reachable throughput is 3,529 samples/s (--min-throughput 3529)",
        ),
        (
            {"max_units": np.array([1, 1]), "min_throughput": 3600.0, "price_per_hour": np.array([1.0, 1.5])},
            "the limits on units cannot be met: at 3,600 samples/s the cheapest plan without them needs 4 'gpu' "
            "(limit 1); 4 'gpu' would be enough (3 more, 4.50 an hour); "
            "the best reachable throughput is 900 samples/s (--min-throughput 900)",
        ),
        (
            {"objective": "throughput", "budget_per_hour": 0.5, "currency": "EUR"},
            "the budget of 0.5 EUR an hour is too small: the cheapest plan costs 1.00 EUR an hour; allow --budget 1",
        ),
        (
            {"objective": "latency", "budget_per_hour": 3.5, "min_throughput": 1800.0},
            "the budget of 3.50 an hour is too small: the cheapest plan that reaches 1,800 samples/s costs 4.00 an "
            "hour; allow --budget 4; the best reachable throughput is 1,350 samples/s (--min-throughput 1350)",
        ),
        (
            {"objective": "max-load", "min_throughput": 3600.0},
            "a throughput of 3,600 samples/s cannot be reached: layer 'layer0' takes at least 2 s a batch on 'gpu', "
            "its best type, with its one unit, and the floor leaves 1 s; "
            "the best reachable throughput is 1,800 samples/s (--min-throughput 1800)",
        ),
    ],
)
def test_the_reason_comes_with_its_numbers_and_a_way_out(changes: dict[str, object], message: str) -> None:
    problem = plain_problem([[4.0, 2.0], [4.0, 2.0]], [1.0, 3.0], **changes)
    assert str(explain_infeasible(problem)) == message
    for method in (Exact(), Brute()):
        with pytest.raises(InfeasibleError) as caught:
            method(problem)
        assert str(caught.value) == message


def test_memory_is_not_blamed_for_what_the_types_ask_for() -> None:
    inf = np.inf
    problem = plain_problem(
        [[4.0, inf], [inf, 2.0], [inf, 2.0]], [1.0, 3.0], weight_bytes=np.array([1.0, 8e8, 8e8]), max_stages=2
    )
    assert str(explain_infeasible(problem)).startswith(
        "memory asks for at least 3 stages in this order of the layers (with room for everything, what the types "
        "support asks for 2), and at most 2 are allowed; "
    )


def test_the_throughput_that_is_named_can_be_reached() -> None:
    changes = {"max_units": np.array([1, 1]), "min_throughput": 900.0}
    assert Exact()(plain_problem([[4.0, 2.0], [4.0, 2.0]], [1.0, 3.0], **changes)).gap == 0


def test_without_a_floor_the_limits_alone_are_named() -> None:
    problem = plain_problem([[1.0], [1.0], [1.0]], [1.0], min_stages=3, max_units=np.array([2]))
    assert str(explain_infeasible(problem)) == (
        "the limits on units cannot be met: the cheapest plan without them needs 3 'cpu' (limit 2); "
        "3 'cpu' would be enough (1 more, 1.00 an hour)"
    )


def test_a_floor_that_no_lower_one_would_save_says_so() -> None:
    problem = plain_problem([[1.0], [1.0]], [1.0], min_stages=2, max_units=np.array([1]), min_throughput=1.0)
    assert str(explain_infeasible(problem)).endswith(
        "; even without a floor the limits on units cannot be met: the cheapest plan without them needs 2 'cpu' "
        "(limit 1); 2 'cpu' would be enough (1 more, 1.00 an hour)"
    )


def test_limits_that_must_be_raised_together_are_all_named() -> None:
    problem = plain_problem(
        [[1.0, 2.0], [2.0, 1.0]],
        [1.0, 1.0],
        allowed=np.eye(2, dtype=bool),
        max_units=np.array([1, 1]),
        min_throughput=7200.0,
    )
    message = str(explain_infeasible(problem))
    assert "needs 2 'cpu' (limit 1) and 2 'gpu' (limit 1); no limit is enough to raise alone" in message


def _two_types(**changes: object) -> Problem:
    return plain_problem([[2.0, 1.0]], [1.0, 8.0], objective="throughput", min_throughput=3600.0, **changes)


def test_the_budget_that_is_named_keeps_the_limits_on_units() -> None:
    tight = {"max_units": np.array([1, 4]), "budget_per_hour": 1.5}
    message = str(explain_infeasible(_two_types(**tight)))
    assert message.startswith("the budget of 1.50 an hour is too small: the cheapest plan that reaches 3,600 samples/s")
    assert "costs 8.00 an hour; allow --budget 8; the best reachable throughput is 1,800" in message
    assert Exact()(_two_types(**tight | {"budget_per_hour": 8.0})).gap == 0


def test_the_throughput_that_is_named_keeps_the_budget() -> None:
    problem = _two_types(budget_per_hour=1.0)
    assert "the best reachable throughput is 1,800 samples/s (--min-throughput 1800)" in str(
        explain_infeasible(problem)
    )


def test_a_limit_to_raise_comes_with_the_budget_it_takes() -> None:
    problem = _two_types(max_units=np.array([1, 0]), budget_per_hour=1.0)
    assert "; 2 'cpu' would be enough with --budget 2 (1 more, 1.00 an hour); the best" in str(
        explain_infeasible(problem)
    )
