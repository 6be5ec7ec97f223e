"""What a bound is a bound for: the plans of the layers in the order they were posed in."""

import re
from pathlib import Path

import heterps_compile
from heterps_compile.cost.objective import OBJECTIVES, plans_of_the_problem, what_is_proven

COST, FAST = OBJECTIVES["cost"], OBJECTIVES["throughput"]


def test_a_bound_that_is_reached_and_one_that_is_not():
    assert what_is_proven(COST, 54, 0.0) == "no plan that keeps these 54 layers in this order is cheaper"
    assert what_is_proven(COST, 54, 1.1e-16) == what_is_proven(COST, 54, 0.0)
    assert (
        what_is_proven(FAST, 2, 0.0125) == "no plan that keeps these 2 layers in this order is more than 1.25 % faster"
    )
    assert plans_of_the_problem(1) == "plan for this one layer"


def test_a_value_is_told_as_what_it_is():
    """64 samples every half second, 2.5 EUR an hour, half a second."""
    told = {name: OBJECTIVES[name].describe(value, 64, "EUR") for name, value in (
        ("cost", 2.5), ("price", 2.5), ("throughput", 0.5), ("latency", 0.5), ("max-load", 0.5),
    )}  # fmt: skip
    assert told == {
        "cost": "2.50 EUR per million samples",
        "price": "2.50 EUR/h",
        "throughput": "128 samples/s",
        "latency": "500 ms a batch",
        "max-load": "500 ms a batch",
    }


def test_no_sentence_claims_more_than_the_problem():
    package = Path(heterps_compile.__file__).parent
    claims = re.compile(r"no plan is (\{|\w+er\b|more than)|No plan exists|no split is|finds none that is|is optimal")
    said = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if claims.search(line)
    ]
    assert said == []


def test_a_change_is_that_of_the_number_printed():
    """A tenth less time a batch is a ninth more samples per second."""
    assert FAST.change(1.0, 0.5) == FAST.better_by(1.0, 0.5) == 1.0
    assert (COST.change(1.0, 0.5), COST.better_by(1.0, 0.5)) == (-0.5, 0.5)


def test_a_bound_for_every_order_is_said_to_hold_for_every_plan_and_a_lower_one_beside_the_other():
    assert what_is_proven(COST, 54, 0.0, 0.0) == "no plan of these 54 layers is cheaper"
    assert what_is_proven(COST, 54, 0.01, 0.01) == "no plan of these 54 layers is more than 1 % cheaper"
    assert what_is_proven(COST, 54, 0.0, 0.031) == (
        "no plan that keeps these 54 layers in this order is cheaper; in other orders a plan may be up to 3.1 % cheaper"
    )
    assert (
        what_is_proven(COST, 1, 0.0, 0.0)
        == what_is_proven(COST, 1, 0.0, 0.5)
        == "no plan for this one layer is cheaper"
    )
    assert plans_of_the_problem(2, in_any_order=True) == "plan of these 2 layers"
