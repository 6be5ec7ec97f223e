"""What a rank does, and how long it may take."""

import pytest

from heterps_compile.runtime.launch.faults import STARTING, WAITING
from heterps_compile.runtime.launch.progress import READING, SERVING, UPDATING, ProgressRecorder
from heterps_compile.schedule.order import Phase


def test_an_action_is_what_a_rank_does_until_it_ends():
    progress = ProgressRecorder()
    assert progress.now().doing == STARTING
    progress.begin(4, 1, 2, Phase.BACKWARD)
    now = progress.now()
    assert (now.doing, now.step, now.stage, now.micro_batch) == ("backward", 4, 1, 2)
    progress.end(4, 1, 2, Phase.BACKWARD, 0.0, 1.0)
    assert (progress.now().doing, progress.now().micro_batch) == (WAITING, 2)


def test_reading_data_inside_an_action_goes_back_to_it():
    progress = ProgressRecorder()
    progress.begin(0, 0, 0, Phase.FORWARD)
    with progress.during(READING):
        assert progress.now().doing == READING
    assert progress.now().doing == "forward"


def test_what_raised_is_what_was_being_done():
    progress = ProgressRecorder()
    progress.begin_step(3)
    with pytest.raises(ValueError, match="no"), progress.during(UPDATING):
        raise ValueError("no")
    assert progress.now().doing == UPDATING


def test_the_first_of_a_kind_may_take_longer_and_later_ones_five_times_the_longest():
    progress = ProgressRecorder()
    assert progress.limit_s("forward", 10.0) == 60.0
    for took_s, limit_s in [(0.1, 10.0), (4.0, 20.0), (1.0, 20.0)]:
        progress.begin(0, 0, 0, Phase.FORWARD)
        progress.end(0, 0, 0, Phase.FORWARD, 0.0, took_s)
        assert progress.limit_s("forward", 10.0) == limit_s


@pytest.mark.parametrize("doing", [STARTING, WAITING, SERVING])
def test_who_depends_on_others_never_hangs(doing):
    assert ProgressRecorder().limit_s(doing, 10.0) is None


def test_time_in_which_the_machine_slept_does_not_count(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    progress = ProgressRecorder()
    progress.begin(0, 0, 0, Phase.FORWARD)
    clock[0] = 160.0
    assert progress.now().for_s == 60.0
    assert progress.now(not_before_s=158.0).for_s == 2.0
