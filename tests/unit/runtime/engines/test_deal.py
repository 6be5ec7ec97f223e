"""Hosts before and after, and the deal that a run gets."""

from itertools import product

import pytest
from engine_jobs import make_job
from plans import PLAN

from heterps_compile.runtime.engines.deal import deal_widths, fill_in_order, lacking, step_time_s, widest
from heterps_compile.runtime.launch.hosts_file import Host


def hosts(text: str) -> list[Host]:
    """Return hosts written as ``a:2 b:1:v100``."""
    found = []
    for word in text.split():
        address, slots, *device = word.split(":")
        found.append(Host(address, int(slots), device=device[0] if device else None))
    return found


def shown(deal) -> str:
    return "none" if deal is None else " ".join(f"{address}={count}" for address, count in deal)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ("a:2 b:1", "a=2 b=1"),
        ("a:1 b:3 c:1", "a=1 b=2"),
        ("a:2", "none"),
        ("a:9", "a=3"),
        ("a:2:cpu b:1:v100", "a=2 b=1"),
        ("b:1:v100 a:2:cpu", "a=2 b=1"),  # those of the first stage come first
        ("a:2:v100 b:2:cpu c:1:v100", "b=2 c=1"),
        ("a:2:cpu b:2:cpu", "none"),
        ("a:1 b:1:cpu c:2:v100", "a=1 b=1 c=1"),
    ],
)
def test_ranks_fill_hosts_in_order_each_on_its_device_type(there, expected):
    """Ranks 0 and 1 are for cpu, rank 2 is for v100."""
    assert shown(fill_in_order(make_job().prepared, hosts(there))) == expected


def test_a_server_is_dealt_to_any_host():
    assert shown(fill_in_order(make_job(servers=1).prepared, hosts("a:2:cpu b:1:v100 c:1:cpu"))) == "a=2 b=1 c=1"


@pytest.mark.parametrize(
    ("times", "room", "expected"),
    [
        ((4, 2, 1), 9, (4, 2, 1)),
        ((4, 2, 1), 6, (3, 2, 1)),
        ((4, 2, 1), 5, (2, 1, 1)),  # stage 0 with three would leave stage 1 as slow, so it has two
        ((4, 2, 1), 3, (1, 1, 1)),
        ((4, 2, 1), 2, None),
    ],
)
def test_the_slowest_stage_is_widened_while_there_is_room(times, room, expected):
    found = widest((4, 2, 1), lambda at, width: times[at] / width, lambda widths: sum(widths) <= room)
    assert found == expected


def test_no_widths_that_fit_are_faster_and_none_as_fast_take_fewer_processes():
    wanted, times = (4, 3, 3), (5.0, 3.0, 4.0)
    for room in range(3, 11):
        found = widest(wanted, lambda at, width: times[at] / width, lambda widths, most=room: sum(widths) <= most)
        every = [one for one in product(*(range(1, most + 1) for most in wanted)) if sum(one) <= room]
        best = min((max(t / w for t, w in zip(times, one, strict=True)), sum(one)) for one in every)
        assert found is not None
        assert room == 10 or (max(t / w for t, w in zip(times, found, strict=True)), sum(found)) == best


def test_times_are_of_the_micro_batches_that_the_busiest_replica_has():
    layout = make_job().prepared.layout
    time_s = step_time_s(PLAN, layout)
    assert [time_s(0, width) for width in (1, 2)] == [time_s(0, 1), time_s(0, 1) * -(-layout.micro_batches // 2) / (
        layout.micro_batches
    )]  # fmt: skip


def test_a_run_that_fits_as_it_is_stays_so_and_what_is_missing_is_said_with_numbers():
    job = make_job()
    dealt = deal_widths(job.prepared, job.options, hosts("a:2 b:1"), fill_in_order)
    assert dealt is not None
    assert (dealt.widths, shown(dealt.deal)) == ((2, 1), "a=2 b=1")
    assert lacking(job.prepared, hosts("a:1")) == "1 host with 1 slot cannot run 3 processes: 2 more are missing"
    assert lacking(job.prepared, hosts("a:4:cpu")) == "1 host with 4 slots, none of which has 'v100' for stage 1"
    twisted = hosts("a:1:v100 b:1:cpu c:1")
    assert fill_in_order(job.prepared, twisted) is None
    assert lacking(job.prepared, twisted) == "3 hosts with 3 slots do not take 3 processes in the order of the stages"
