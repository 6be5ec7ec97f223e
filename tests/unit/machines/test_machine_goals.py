"""What is asked of machines: times, money, batches, and what is refused."""

import pytest

from heterps_compile.errors import InputError, OptionError
from heterps_compile.machines import Goal
from heterps_compile.machines.goal import (
    Transience,
    batches_between,
    described,
    parse_duration,
    parse_lifetime,
    parse_money,
)
from heterps_compile.plan.command_options import ONNX
from heterps_compile.plan.machine_options import MACHINES
from heterps_compile.transient.lifetime import Weibull, exponential
from heterps_compile.units import format_duration


def test_times_have_one_number_and_one_unit():
    assert [parse_duration(text) for text in ("24h", "90 min", "2d", "3600 s", ".5h")] == [
        86400,
        5400,
        172800,
        3600,
        1800,
    ]
    for text in ("24", "1h30min", "2 days 3 h", "h", "", "1 H", "24h "[:2] + "x"):
        with pytest.raises(InputError, match=r"\bmin\b"):
            parse_duration(text)
    for text in ("0h", "-3h", "1e400h"):
        with pytest.raises(InputError, match=r"\b0\b"):
            parse_duration(text)


def test_nothing_is_a_time_where_that_makes_sense():
    assert parse_duration("0s", zero=True) == 0
    with pytest.raises(InputError, match=r"'-1s'.*\b0\b"):
        parse_duration("-1s", zero=True)


def test_money_is_in_dollars():
    assert [parse_money(text) for text in ("300 USD", "300", " 1e3 USD ")] == [300, 300, 1000]
    with pytest.raises(InputError, match=r"'300 EUR'.*EUR.*USD.*USD"):
        parse_money("300 EUR")
    for text in ("0", "-5 USD", "5 USD/h", "much"):
        with pytest.raises(InputError, match="amount"):
            parse_money(text)


def test_a_range_of_batches_is_tried_in_doublings():
    assert batches_between(512, 512) == (512,)
    assert batches_between(1000, 5000) == (1000, 2000, 4000, 5000)
    assert batches_between(1024, 4096) == (1024, 2048, 4096)
    with pytest.raises(InputError, match=r"\b1\b.*1000000.*\b21\b.*\b16\b"):
        batches_between(1, 1_000_000)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "--deadline"),
        ({"samples": 0, "deadline_s": 1}, r"\b0\b.*\b1\b.*1e\+18.*--samples"),
        ({"deadline_s": -1.0}, r"-1.*\b0\b"),
        ({"budget": float("nan")}, r"nan USD.*\b0\b.*1e\+15"),
        ({"deadline_s": 1, "most_machines": 0}, r"\b0\b.*\b1\b.*256"),
        ({"deadline_s": 1, "batches": ()}, r"\[\]"),
    ],
)
def test_a_goal_that_makes_no_sense_is_refused(asked, told):
    with pytest.raises(InputError, match=told):
        Goal(**{"samples": 1e6, "batches": (64,)} | asked)


def test_times_are_printed_as_people_wait_for_them():
    assert [format_duration(s) for s in (5.25, 60, 5400, 48 * 3600, 30 * 86400)] == [
        "5.25 s",
        "1 min",
        "1.5 h",
        "2 d",
        "30 d",
    ]


def test_a_lifetime_is_a_mean_or_a_weibull():
    assert parse_lifetime("20h") == exponential(20.0)
    assert parse_lifetime("1d, 0.6") == Weibull(0.6, 24.0)
    for text in ("20", "20h,", "20h,much", ",0.5", "20h,0", "20h,-1"):
        with pytest.raises(InputError):
            parse_lifetime(text)
    with pytest.raises(InputError, match="-1"):
        Transience(start_up_s=-1.0)


def test_lifetimes_are_of_machines_that_may_be_lost_and_a_start_up_is_of_all():
    for name in ("lifetime", "lifetimes"):
        with pytest.raises(OptionError, match=rf"--{name}.*--spot.*--resume CHECKPOINT"):
            MACHINES.refuse({name: "20h"}, [name], ONNX)
        MACHINES.refuse({name: "20h", "spot": True}, [name, "spot"], ONNX)
        MACHINES.refuse({name: "20h", "resume": "ck", "plan": "out"}, [name, "resume", "plan"], ONNX)
    MACHINES.refuse({"start_up": "5min"}, ["start_up"], ONNX)
    assert Goal(1e6, (64,), deadline_s=1.0).first_start_s == 0
    assert Goal(1e6, (64,), deadline_s=1.0, spot=True).first_start_s == 180
    assert Goal(1e6, (64,), deadline_s=1.0, counts_start=True).first_start_s == 180


def test_a_small_budget_is_told_as_it_is():
    assert described(Goal(1e6, (64,), budget=0.0001)).startswith("1e+06 samples for 0.0001 USD")
