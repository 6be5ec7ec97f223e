import pytest

from heterps_compile.errors import HeterpsError
from heterps_compile.schedule.shared_cores import Job, run_jobs

DRAWN = [[Job(1.0), Job(1.0), Job(1.0)], [Job(1.0, ((0, 0, 0.0),)), Job(1.0), Job(1.0)]]


def test_the_drawing_on_two_cores():
    assert run_jobs(DRAWN, 2) == [[(0, 1), (1, 2), (2, 3)], [(1, 2), (2, 3), (3, 4)]]


def test_the_drawing_on_one_core():
    assert run_jobs(DRAWN, 1) == [[(0, 1), (1, 3), (3, 5)], [(1, 3), (3, 5), (5, 6)]]


def test_a_message_in_flight_occupies_no_core():
    assert run_jobs([[Job(1.0), Job(1.0)], [Job(1.0, ((0, 0, 2.0),))]], 1) == [[(0, 1), (1, 2)], [(3, 4)]]


def test_three_workers_on_two_cores_take_half_as_long_again():
    spans = run_jobs([[Job(2.0)] for _ in range(3)], 2)
    assert [end for ((_, end),) in spans] == [pytest.approx(3.0)] * 3


def test_busy_neighbours_slow_each_other_down():
    spans = run_jobs([[Job(2.0)], [Job(1.0)]], 2, together=1.5)
    # both run at 2/3 until 1.5, then the first does its last second alone
    assert [end for ((_, end),) in spans] == [pytest.approx(2.5), pytest.approx(1.5)]


def test_no_work_takes_no_time():
    assert run_jobs([[Job(0.0), Job(0.0)], []], 2) == [[(0, 0), (0, 0)], []]


def test_jobs_that_wait_in_a_circle_are_told():
    circle = [[Job(1.0, ((1, 0, 0.0),))], [Job(1.0, ((0, 0, 0.0),))]]
    with pytest.raises(HeterpsError, match=r"\b0\b.*job 0\b.*\b1\b"):
        run_jobs(circle, 2)
