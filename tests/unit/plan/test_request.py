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
        ("1.2.3", "'1.2.3'"),
        ("1__0 USD/h", "'1__0 USD/h'"),
        ("1e999 USD/h", "between"),
        ("5 EUR/h", "EUR.*USD.*USD"),
        ("-5", r"\b0\b"),
        ("free", r"\b0\b"),
    ],
)
def test_any_other_budget_is_refused(budget: str | float, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        make_request("USD", objective="throughput", budget=budget)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"objective": "price"}, "--min-throughput.*--objective"),
        ({"objective": "price", "min_throughput": 9.0, "budget": 5.0}, "budget"),
        ({"time_limit": "soon"}, "'soon'"),
        ({"time_limit": float("nan")}, r"nan.*\b0\b"),
        ({"min_throughput": []}, r"\[\]"),
        ({"min_stages": 0}, r"min_stages.*\b0\b.*\b1\b"),
        ({"max_stages": 1.5}, r"max_stages.*1.5.*\b1\b"),
        ({"seed": -1}, r"-1.*\b0\b"),
        ({"max_stages": 10**5000}, "max_stages.*2147483647"),
        ({"min_throughput": True}, "throughput.*True"),
    ],
)
def test_a_number_that_makes_no_sense_is_told(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        make_request("USD", **options)


def test_as_many_stages_at_most_as_at_least_are_exactly_so_many() -> None:
    assert make_request("USD", min_stages=2, max_stages=2).max_stages == 2
    with pytest.raises(InputError, match=r"\b3\b.*\b2\b"):
        make_request("USD", min_stages=3, max_stages=2)


def test_an_optimizer_is_for_training():
    with pytest.raises(InputError, match="'sgd'"):
        make_request("USD", optimizer="sgd")
    with pytest.raises(UnknownNameError, match="lion"):
        make_request("USD", mode="training", optimizer="lion")
    asked = make_request("USD", mode="training", optimizer="sgd")
    assert (asked.trains_with, asked.purpose) == ("sgd", "training with sgd")
    assert make_request("USD").trains_with is None
