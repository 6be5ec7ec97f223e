"""Loads of a split, the rules it must keep, and the form others read it in."""

import pytest
from small_workloads import drawn

from heterps_compile.errors import InputError
from heterps_compile.passes.max_load.split import MaxLoadResult, evaluate_split, faults, to_split_json

FAN = """
    1 5/50 out=2 -> 2 3
    2 3/30 out=1 -> 4
    3 1/10 out=1 -> 4
    4 4/40
"""


def test_an_output_is_paid_once_where_it_leaves_and_once_wherever_it_enters():
    workload = drawn(FAN, accelerators=3)
    # device 0: 1, and its output leaves; 1: 2 and 3, one output enters, two leave; 2: 4, two enter
    assert evaluate_split(workload, [0, 1, 1, 2]) == (5 + 2, 3 + 1 + 2 + 1 + 1, 4 + 1 + 1)


def test_cpus_do_not_pay_for_transfers():
    workload = drawn(FAN, accelerators=1, cpus=1)
    assert evaluate_split(workload, [0, 1, 1, 0]) == (5 + 4 + 2 + 1 + 1, 30 + 10)


def test_one_device_pays_for_no_transfer():
    assert evaluate_split(drawn(FAN), [0, 0, 0, 0]) == (13, 0)


@pytest.mark.parametrize(("devices", "message"), [([0, 0, 0], r"\b3\b"), ([0, 0, 0, 9], r"\b4\b.*\b9\b")])
def test_a_split_must_fit_its_workload(devices, message):
    with pytest.raises(InputError, match=message):
        evaluate_split(drawn(FAN), devices)


@pytest.mark.parametrize(
    ("devices", "fault"),
    [
        ([0, 0, 0, 0], []),
        ([0, 0, 1, 1], []),
        ([0, 1, 1, 0], ["the devices cannot stand in one line: the split is not contiguous"]),
    ],
)
def test_a_contiguous_split_stands_in_one_line(devices, fault):
    assert list(faults(drawn(FAN), devices)) == fault


def test_the_backward_pass_runs_only_one_way():
    both = """
        1 1/1 -> 2
        2 1/1
        3 1/1 back -> 4
        4 1/1 back
        5 1/1 back -> 6
        6 1/1 back
    """
    assert list(faults(drawn(both), [0, 1, 0, 1, 0, 1])) == []
    assert list(faults(drawn(both), [0, 1, 1, 0, 1, 0])) == []
    assert list(faults(drawn(both), [0, 1, 0, 1, 1, 0])) != []


def test_every_broken_rule_is_named():
    workload = drawn(
        """
        1 -/1 size=60 colour=3
        2 1/- size=60 colour=3
        """,
        accelerators=1,
        cpus=1,
    )
    assert list(faults(workload, [0, 1])) == [
        "node 1 cannot run on an accelerator",
        "node 2 cannot run on a CPU",
        "colour class 3 is on devices 0 and 1",
    ]
    crowded = drawn("1 1/1 size=60\n2 1/1 size=60", accelerators=1)
    assert list(faults(crowded, [0, 0])) == ["accelerator 0 needs 120 B and has 100 B"]


def test_the_authors_form_names_every_id_once():
    assert to_split_json(drawn(FAN, accelerators=2, cpus=1), [0, 1, 1, 1]) == {
        "maxLoad": 10.0,
        "fpgas": [{"load": 7.0, "nodes": [1]}, {"load": 10.0, "nodes": [2, 3, 4]}],
        "cpus": [{"load": 0.0, "nodes": []}],
    }


def test_the_gap_is_relative_to_the_value():
    result = MaxLoadResult((0,), (8.0, 2.0), 6.0, 0, 1, 0.1)
    assert (result.value_ms, result.gap) == (8.0, 0.25)
    assert MaxLoadResult((0,), (0.0,), 0.0, 0, 1, 0.1).gap == 0.0
