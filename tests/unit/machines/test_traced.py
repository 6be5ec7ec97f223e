"""Policies under the deadline on a trace, with the set that was chosen."""

import datetime as dt
import json
from dataclasses import replace

import pytest
from rich.console import Console

from heterps_compile.errors import InputError
from heterps_compile.machines.goal import Goal, Transience
from heterps_compile.machines.learned import NOTHING
from heterps_compile.machines.machine_set import MachineSet
from heterps_compile.machines.machines_words import print_policies
from heterps_compile.machines.option import Option, steady_outlook
from heterps_compile.machines.step_times import StepFound
from heterps_compile.machines.traced import STEPS, compare_policies, document, read_trace_for, told
from heterps_compile.offers import Offer, Rental

GIB = 2**30
T4 = Offer(
    "aws", "us-east-1", "g4dn.xlarge", "t4", 1, 4, 16 * GIB, 16 * GIB, 1.25e9, 0.0, 1.0, 0.25,
    dt.date(2026, 11, 1), "here",
)  # fmt: skip
HOUR = 3600.0
MS = 3_600_000
GOAL = Goal(3600.0 * 1000, (1000,), deadline_s=2 * HOUR, spot=True, transience=Transience(start_up_s=60.0))


def option_of(*parts, step_s=1.0):
    machines = MachineSet(parts, NOTHING)
    outlook = steady_outlook(machines.price_per_hour, step_s, 1000, GOAL)
    return Option(machines, 1000, StepFound(step_s, ((machines.count, 0),), 1, "gpipe"), outlook, ())


def trace_of(tmp_path, *events, hours=4):
    """Write a trace of (hour, machine), one that is there goes, and of a last event at its end."""
    there, rows = set(), []
    for at_h, name in sorted([*events, (hours, "last")]):
        rows.append(f"{round(at_h * MS)},{'remove' if name in there else 'add'},{name}\n")
        there ^= {name}
    path = tmp_path / "trace.csv"
    path.write_text("".join(rows), "utf-8")
    return path


def test_where_machines_are_always_there_spot_costs_what_they_cost(tmp_path):
    trace = read_trace_for(trace_of(tmp_path, (0, "a"), (0, "b")), GOAL)
    assert trace.step_s == 2 * HOUR / STEPS
    found = compare_policies(trace, "trace.csv", option_of((Rental(T4), 2)), GOAL)
    assert (found.windows, found.machines, found.most_there) == (12, 2, 3)
    costs = {each.name: each for each in found.policies}
    assert "spot and floor" not in costs  # a quarter of two machines is none
    # an hour of steps and a minute of start-up, on two machines
    assert costs["on demand"].money == pytest.approx(2 * 1.0 * 61 / 60, rel=0.02)
    assert costs["all spot"].money == pytest.approx(2 * 0.25 * 61 / 60, rel=0.02)
    assert costs["all spot"].money == pytest.approx(found.optimum)
    assert {each.missed for each in found.policies} == {0}
    assert [each.money for each in found.policies] == sorted(each.money for each in found.policies)


@pytest.mark.slow  # more of the same kind on larger problems
def test_where_they_come_and_go_no_policy_is_below_the_optimum_or_late(tmp_path):
    events = [(0, name) for name in "abcd"] + [(0.3 * n, name) for n in range(1, 20) for name in "ad"]
    trace = read_trace_for(trace_of(tmp_path, *events, hours=6), GOAL)
    found = compare_policies(trace, "trace.csv", option_of((Rental(T4, spot=True), 4)), GOAL)
    assert {each.name for each in found.policies} >= {"expected cost", "spot and floor"}
    assert all(each.over >= -1e-12 and each.missed == 0 for each in found.policies)
    assert next(each for each in found.policies if each.name == "on demand").over > 0.1
    lines = list(told(found))
    assert lines[0].startswith(
        "policies on trace.csv: 12 windows as long as the deadline, in steps of 30 s; 4 machines"
    )
    assert lines[1].startswith(f"{found.policies[0].name} is the cheapest: ")
    assert json.loads(json.dumps(document(found)))["policies"][0]["usd"] == found.policies[0].money
    console = Console(width=120, record=True, file=None, force_terminal=False)
    with console.capture() as shown:
        print_policies(console, found)
    assert "over the optimum" in shown.get()
    assert "expected cost" in shown.get()


def test_what_cannot_be_compared_is_said(tmp_path):
    trace = read_trace_for(trace_of(tmp_path, (0, "a")), GOAL)
    for option, goal, said in (
        (option_of((Rental(replace(T4, spot_per_hour=None)), 1)), GOAL, "is not sold as a transient machine"),
        (option_of((Rental(T4), 1), (Rental(replace(T4, gpu="v100")), 1)), GOAL, "has two kinds"),
        (option_of((Rental(T4), 1), step_s=2.0), GOAL, "no policy keeps the deadline"),
    ):
        found = compare_policies(trace, "t.csv", option, goal)
        assert found.policies == ()
        assert said in next(told(found))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0,add,a\n3600000,remove,a\n", r"\b1\b.*deadline.*\b2\b"),
        ("0,add,a\n0,remove,b\n", "'b'"),
        ("0,add,a\n60000,add,a\n", "'a'"),
        ("60000,add,a\n0,add,b\n", "lies"),
        ("-1,add,a\n", "'-1,add,a'"),
        ("nan,add,a\n", "'nan,add,a'"),
        ("", "events"),
        ("gpu,hours,ended\n", "'gpu,hours,ended'"),
    ],
)
def test_what_is_no_trace_for_a_deadline_is_refused(tmp_path, rows, said):
    path = tmp_path / "trace.csv"
    path.write_text(rows, "utf-8")
    with pytest.raises(InputError, match=said):
        read_trace_for(path, GOAL)


def test_traces_beyond_all_measure_are_refused(tmp_path):
    path = tmp_path / "trace.csv"
    with path.open("wb") as file:
        file.truncate(9_000_000_000)  # sparse
    with pytest.raises(InputError, match=r"8,583 MiB.*\b64\b"):
        read_trace_for(path, GOAL)
    path.write_text("".join(f"{number * 30_000},add,n{number}\n" for number in range(10_000)))
    with pytest.raises(InputError, match="machines"):
        read_trace_for(path, GOAL)
    with pytest.raises(InputError, match=r"none.csv"):
        read_trace_for(tmp_path / "none.csv", GOAL)
