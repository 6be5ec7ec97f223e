"""Widths that fit, and times of them."""

from itertools import product

import pytest
from engine_jobs import make_job
from plans import PLAN

from heterps_compile.errors import RunError
from heterps_compile.runtime.engines.deal import Host, deal_widths, step_time_s, widest


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


def test_a_run_that_fits_as_it_is_stays_so():
    job = make_job()

    def fill(prepared, hosts):
        if prepared.world_size > hosts[0].slots:
            raise RunError("too few slots")
        return (("a", prepared.world_size),)

    dealt = deal_widths(job.prepared, job.options, [Host("a", 3)], fill)
    assert dealt is not None
    assert (dealt.widths, dealt.deal) == ((2, 1), (("a", 3),))
