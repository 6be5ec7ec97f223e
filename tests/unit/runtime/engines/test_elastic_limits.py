"""How many machines, how often, and who rests: values that are asked, without a clock."""

from dataclasses import replace

import pytest
from engine_jobs import make_job
from plans import with_stage

from heterps_compile.errors import InputError, OptionError, RunError
from heterps_compile.options import CountRange
from heterps_compile.plan.planned_stage import TypeReplicas
from heterps_compile.runtime.engines.deal import Host
from heterps_compile.runtime.engines.elastic_limits import Absences, Limits
from heterps_compile.runtime.engines.launch_options import LAUNCH, RAY, subject
from heterps_compile.runtime.engines.machines import Left

HOSTS = [Host("a", 2), Host("b", 1), Host("c", 1)]
ELASTIC = Limits((1, 2), max_restarts=3)
KEEPS = {"train": "t.py", "every": 5}


def names(hosts) -> str:
    return " ".join(host.address for host in hosts)


def test_a_host_that_flaps_rests_twice_as_long_each_time_up_to_ten_minutes():
    absences, rests = Absences(ELASTIC), []
    for _ in range(8):
        absences = absences.lose(["b"], 100.0)
        rests.append(absences.until_s["b"] - 100.0)
    assert rests == [10, 20, 40, 80, 160, 320, 600, 600]
    assert names(absences.awake(HOSTS, 699.0)) == "a c"
    assert names(absences.awake(HOSTS, 700.0)) == "a b c"


def test_no_more_hosts_take_part_than_the_most_and_fewer_than_the_least_are_counted():
    deals = [None, (("a", 9),), (("a", 1), ("b", 1)), (("a", 1), ("b", 1), ("c", 1))]
    assert [ELASTIC.takes(deal) for deal in deals] == [False, True, True, False]
    assert [Limits().takes(deal) for deal in deals] == [False, True, True, True]
    assert ELASTIC.short_of(1) == Limits().short_of(0) == ""
    assert ELASTIC.short_of(0) == "--elastic 1:2 needs 1 host at least: there are 0"


@pytest.mark.parametrize(
    ("codes", "error", "expected"),
    [
        ((138, 138), None, True),
        ((138, 0), None, True),
        ((0, 0), None, False),
        ((138, 1), None, False),
        ((138, 138), RunError("lost"), False),
    ],
)
def test_ranks_have_stopped_for_other_widths_where_all_that_were_left_say_so(codes, error, expected):
    assert Left(codes, error=error).is_for_other_widths is expected


def test_what_could_not_go_on_is_refused_before_anything_starts(tmp_path):
    keeps = {**KEEPS, "checkpoint": str(tmp_path)}
    ELASTIC.check(make_job(**keeps))
    with pytest.raises(RunError, match=r"--max-restarts.*--checkpoint DIR"):
        Limits(max_restarts=1).check(make_job(train="t.py"))
    with pytest.raises(RunError, match=r"--elastic 1:2.*--every"):
        ELASTIC.check(make_job(**{**keeps, "every": None}))
    with pytest.raises(RunError, match=r"--elastic 1:2.*--speeds"):
        ELASTIC.check(make_job(**keeps, speeds=((1.0, 2.0), (1.0,))))
    job = make_job(**keeps)
    both = (TypeReplicas("cpu", "cpu", 1, 0.5, 1.0, 0.0, 1.0), TypeReplicas("v100", "gpu", 1, 0.5, 1.0, 0.0, 1.0))
    mixed = with_stage(job.prepared.plan, 0, mixed=both)
    with pytest.raises(RunError, match=r"--elastic 1:2.*--mixed-stages"):
        ELASTIC.check(replace(job, prepared=replace(job.prepared, plan=mixed)))
    with pytest.raises(OptionError, match=r"--elastic.*--max-restarts"):
        LAUNCH.refuse({"elastic": (1, 2), "max_restarts": 0}, ["elastic"], subject(RAY))


def test_hosts_are_counted_as_torchrun_counts_nodes():
    assert [CountRange().read(text) for text in ("1:4", "3")] == [(1, 4), (3, 3)]
    for text in ("", ":", "0:2", "4:1", "1:x", "1:2:3", "-1:2", "1:" + "9" * 50):
        with pytest.raises(InputError, match="MIN:MAX"):
            CountRange().read(text)
