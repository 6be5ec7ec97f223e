"""A request is checked when it is made; what makes no sense is told with its numbers."""

from typing import Any

import pytest

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.plan.request import make_request


@pytest.mark.parametrize(("budget", "amount"), [("5", 5.0), ("5 USD/h", 5.0), ("1e1", 10.0), (2.5, 2.5)])
def test_a_budget_is_a_number_or_a_price(budget: str | float, amount: float) -> None:
    assert make_request("USD", objective="throughput", budget=budget).budget_per_hour == amount


@pytest.mark.parametrize(
    ("budget", "fault"),
    [
        ("1.2.3", "'1.2.3' is no price: expected a price per hour"),
        ("...", "is no price"),
        ("1_", "is no price"),
        ("nan", "is no price"),
        ("1__0 USD/h", "is no price"),
        ("1e999 USD/h", "must lie between"),
        ("5 EUR/h", "is in EUR, the pool is priced in USD; give it in USD"),
        ("-5", "must be above 0"),
        (float("nan"), "must be above 0"),
        ("free", "must be above 0"),
    ],
)
def test_any_other_budget_is_refused(budget: str | float, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        make_request("USD", objective="throughput", budget=budget)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"objective": "price"}, "needs a throughput floor .--min-throughput.*or ask for --objective cost"),
        ({"objective": "price", "min_throughput": 9.0, "budget": 5.0}, "a budget goes with the objective throughput"),
        ({"time_limit": "soon"}, "the time limit is 'soon'; it must be a number"),
        ({"time_limit": float("nan")}, "the time limit is nan s; it must be above 0"),
        ({"min_throughput": []}, r"the throughput floor is \[\]; it must be a number"),
        ({"min_stages": 0}, "min_stages is 0; it must be a whole number, 1 or more"),
        ({"max_stages": 1.5}, "max_stages is 1.5; it must be a whole number, 1 or more"),
        ({"seed": -1}, "the seed is -1; it must be a whole number, 0 or more"),
        ({"seed": 1.5}, "the seed is 1.5; it must be a whole number, 0 or more"),
        ({"seed": 2**63}, "the seed is 9223372036854775808; it must be 9223372036854775807 or less"),
        ({"seed": True}, "the seed is True; it must be a whole number, 0 or more"),
        ({"max_stages": 10**5000}, "max_stages is a number of very many digits; it must be 2147483647 or less"),
        ({"min_throughput": True}, "the throughput floor is True; it must be a number"),
        ({"time_limit": 10**400}, "the time limit is 1000.*; it must be a number"),
    ],
)
def test_a_number_that_makes_no_sense_is_told(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        make_request("USD", **options)


def test_as_many_stages_at_most_as_at_least_are_exactly_so_many() -> None:
    assert make_request("USD", min_stages=2, max_stages=2).max_stages == 2
    with pytest.raises(InputError, match="at least 3 and at most 2 stages are asked for; no plan has both"):
        make_request("USD", min_stages=3, max_stages=2)


def test_an_optimizer_is_for_training():
    with pytest.raises(InputError, match="'sgd' is for training"):
        make_request("USD", optimizer="sgd")
    with pytest.raises(UnknownNameError, match="lion"):
        make_request("USD", mode="training", optimizer="lion")
    asked = make_request("USD", mode="training", optimizer="sgd")
    assert (asked.trains_with, asked.purpose) == ("sgd", "training with sgd")
    assert make_request("USD").trains_with is None
