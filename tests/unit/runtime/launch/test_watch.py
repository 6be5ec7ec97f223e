"""Watching ranks: heartbeats that stop, everybody waiting, and a stop that all agree on."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from torch.distributed import DistNetworkError, HashStore

from heterps_compile.runtime.checkpoint.folder import STATE_NAME, step_name
from heterps_compile.runtime.launch.beats import StoreBeats
from heterps_compile.runtime.launch.faults import WAITING, Fault, Place, Progress, fault_from_json
from heterps_compile.runtime.launch.heartbeats import Monitor, done_key
from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.runtime.launch.watch import FAULT_KEY, Supervision, Watch, post_fault

PLACES = [Place(0, (0,), 0), Place(1, (1,), 0), Place(2, (1,), 1)]


class Beats:
    """A store in which ranks beat, under a clock that a test moves."""

    def __init__(self, places=PLACES):
        self.store, self.now_s = HashStore(), 0.0
        self.beats = StoreBeats(self.store)
        self.beat = self.beats.beat
        self.monitor = Monitor(self.store, self.beats, places, 10.0, lambda: self.now_s)

    def at(self, now_s: float) -> Fault | None:
        """Move the clock in steps that a monitor would take; give what it finds."""
        while self.now_s < now_s:
            self.now_s = min(self.now_s + 0.5, now_s)
            fault = self.monitor.find_fault()
            if fault is not None:
                return fault
        return None


def test_a_rank_that_beats_no_longer_is_found_with_what_it_did_last():
    beats = Beats()
    for rank in range(3):
        beats.beat(rank, Progress("forward", 5, rank > 0, 2, 0.1))
    assert beats.at(5.0) is None
    for rank in (0, 2):
        beats.beat(rank, Progress("forward", 5, rank > 0, 3, 0.1))
    fault = beats.at(9.0)
    assert fault is not None
    assert fault.place == PLACES[1]
    assert (fault.progress.step, fault.progress.micro_batch) == (5, 2)
    assert "gave no sign of life for 8 s" in fault.cause


def test_a_rank_that_has_not_begun_or_is_done_is_not_missed():
    beats = Beats()
    beats.beat(1, Progress("forward", 5, 1, 2, 0.1))
    beats.store.set(done_key(1), "1")
    assert beats.at(100.0) is None


def test_a_monitor_that_was_asleep_blames_nobody_for_it():
    beats = Beats()
    beats.beat(0, Progress())
    assert beats.at(1.0) is None
    beats.now_s = 50.0  # the machine was suspended
    assert beats.monitor.find_fault() is None
    assert beats.at(56.0) is None
    assert beats.at(60.0) is not None


def test_when_all_wait_for_all_the_first_is_named():
    beats = Beats()
    for rank in range(3):
        beats.beat(rank, Progress(WAITING, 5, rank > 0, 2, 301.0))
    fault = beats.at(0.5)
    assert fault is not None
    assert (fault.place.rank, "so have all others" in fault.cause) == (0, True)
    beats = Beats()
    for rank, for_s in enumerate((301.0, 301.0, 5.0)):
        beats.beat(rank, Progress(WAITING, 5, rank > 0, 2, for_s))
    assert beats.at(0.5) is None


def test_a_parameter_server_that_waits_for_requests_is_no_deadlock():
    beats = Beats([Place(0, (0,), 0), Place(1, (), 0)])
    beats.beat(0, Progress("forward", 5, 0, 2, 1.0))
    beats.beat(1, Progress(WAITING, None, None, None, 1000.0))
    assert beats.at(0.5) is None


def test_the_first_fault_is_the_one_all_tell():
    store = HashStore()
    first, second = (Fault(place, Progress(), "hangs") for place in PLACES[:2])
    assert post_fault(store, first) == first
    assert post_fault(store, second) == first


def test_a_rank_whose_launcher_is_gone_names_the_checkpoint_to_go_on_from(tmp_path):
    def said(folder: Path | None) -> str:
        store = HashStore()
        supervision = Supervision(hang_after_s=60.0, parent=os.getppid() + 1, checkpoints=folder)
        watch = Watch(store, PLACES, 1, ProgressRecorder(), supervision)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "_exit", sys.exit)
            with pytest.raises(SystemExit):
                watch.look(time.monotonic())
        return fault_from_json(store.get(FAULT_KEY)).cause

    assert said(None) == "lost its launcher, which is gone"
    assert said(tmp_path) == f"lost its launcher, which is gone ({str(tmp_path)!r} has no checkpoint yet to go on from)"
    for step in (20, 40, 60):
        (tmp_path / step_name(step)).mkdir()
    for step in (20, 40):  # the last was not finished
        (tmp_path / step_name(step) / STATE_NAME).touch()
    last = str(tmp_path / "step-000040")
    assert said(tmp_path) == f"lost its launcher, which is gone (--resume goes on from {last!r})"


def watches_in(*steps: int) -> list[Watch]:
    """Return the watchers of ranks that have begun these steps; -1 for none."""
    store = HashStore()
    made = [Watch(store, PLACES, rank, ProgressRecorder(), Supervision(hang_after_s=60.0)) for rank in range(3)]
    for watch, step in zip(made, steps, strict=True):
        assert step < 0 or watch.may_begin(step)
    return made


def all_look(watches: list[Watch]) -> None:
    for watch in watches:
        watch.look(time.monotonic())


def test_all_ranks_stop_after_the_latest_step_that_one_has_begun():
    watches = watches_in(7, 8, 5)
    watches[1].ask_to_stop(signal.SIGINT)
    all_look(watches)  # each answers with its step and holds its rank back
    all_look(watches)  # each finds all answers
    ran = [
        [step for step in range(begun + 1, 12) if w.may_begin(step)]
        for w, begun in zip(watches, (7, 8, 5), strict=True)
    ]
    assert ran == [[8], [], [6, 7, 8]]
    assert [watch.stopped_by for watch in watches] == [signal.SIGINT] * 3


def test_a_terminal_that_goes_away_twice_ends_no_rank_at_once():
    watches = watches_in(7, 7, 7)
    watches[1].ask_to_stop(signal.SIGHUP)
    watches[1].ask_to_stop(signal.SIGHUP)
    all_look(watches)
    assert [watch.stopped_by for watch in watches] == [signal.SIGHUP] * 3


def test_a_stop_that_comes_before_the_plan_has_been_read_waits_for_it():
    store = HashStore()
    unread = [Place(rank) for rank in range(3)]
    watches = [Watch(store, unread, rank, ProgressRecorder(), Supervision(hang_after_s=60.0)) for rank in range(3)]
    watches[0].ask_to_stop(signal.SIGINT)
    all_look(watches)
    for watch in watches:
        watch.know(PLACES)
    all_look(watches)
    all_look(watches)
    assert [watch.may_begin(0) for watch in watches] == [False] * 3


class Visited:
    """A store in which something happens when it has been looked into so many times."""

    def __init__(self, after: int, happens):
        self.store, self.left, self.happens = HashStore(), after, happens

    def set(self, key, value):
        self.store.set(key, value)

    def get(self, key):
        return self.store.get(key)

    def check(self, keys):
        self.left -= 1
        if self.left == 0:
            self.happens(self.store)
        return self.store.check(keys)


def beat_of_rank_1(store) -> None:
    StoreBeats(store).beat(1, Progress())


def one_of_two(store, **given: float) -> Watch:
    return Watch(store, PLACES[:2], 0, ProgressRecorder(), Supervision(hang_after_s=10.0, late_s=3600.0, **given))


def test_a_rank_that_never_hears_is_not_waited_for_long():
    store = Visited(1, beat_of_rank_1)
    one_of_two(store, hear_s=0.0).stay_until_heard(3600.0)
    assert not store.store.check(["heard/1"])
    one_of_two(HashStore(), hear_s=0.0).stay_until_heard(0.0)


def test_who_stays_leaves_when_told_to():
    reader, writer = os.pipe()
    os.write(writer, bytes([signal.SIGTERM]))
    staying = one_of_two(HashStore())
    staying.listen(reader)
    staying.stay_until_heard(3600.0)
    os.close(reader)
    os.close(writer)


class GoneStore:
    """A store that has no answer any more."""

    def __getattr__(self, name):
        raise DistNetworkError("connection reset")


@pytest.mark.parametrize(
    ("host", "told"),
    [
        (None, "a process (rank 1) lost the store of the run: its launcher is gone (DistNetworkError)"),
        (0, "a process (rank 0) is gone, and with it the store of the run"),
    ],
)
def test_a_rank_without_a_store_ends_and_names_who_hosted_it(monkeypatch, capsys, host, told):
    monkeypatch.setattr(os, "_exit", end)
    watch = Watch(GoneStore(), [Place(0), Place(1)], 1, ProgressRecorder(), Supervision(hang_after_s=9.0, host=host))
    with pytest.raises(Ended):
        watch._run()
    assert capsys.readouterr().err.startswith(f"Error: {told}")


class Ended(BaseException):
    """What ends a process here."""


def end(_code: int) -> None:
    raise Ended


def a_broken_tidy() -> None:
    raise RuntimeError("cannot be tidied")


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_rank_ends_though_nobody_reads_what_it_says(monkeypatch, is_alone):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(os, "_exit", end)
    watch = Watch(HashStore(), PLACES[:2], 0, ProgressRecorder(), Supervision(hang_after_s=10.0, late_s=0.0))
    watch.before_end(a_broken_tidy)
    with os.fdopen(writer, "w", buffering=1) as gone, monkeypatch.context() as streams:
        streams.setattr(sys, "stderr", gone)
        fault = Fault(PLACES[0], Progress(WAITING), "is gone")
        end_it = watch._end_alone if is_alone else lambda: watch._end(fault)
        with pytest.raises(Ended):
            end_it()
        with suppress(OSError):
            gone.close()


def test_what_ranks_that_come_late_have_to_find_is_tidied_away_when_all_have_heard(monkeypatch):
    monkeypatch.setattr(os, "_exit", end)
    order: list[str] = []
    store = Visited(4, lambda store: [order.append("heard"), beat_of_rank_1(store), store.set("heard/1", "1")])
    store.compare_set = store.store.compare_set
    watch = one_of_two(store)
    watch.before_end(lambda: order.append("tidied"))
    with pytest.raises(Ended):
        watch._end(Fault(PLACES[0], Progress(WAITING), "is gone"))
    assert order == ["heard", "tidied"]


def test_the_trace_of_what_a_rank_raised_is_out_before_its_watcher_ends_it(monkeypatch, capsys):
    said: list[str] = []

    def leave(_code: int) -> None:
        said.append("".join(capsys.readouterr()))
        raise Ended

    def look() -> None:
        with suppress(Ended):
            watch.look(time.monotonic())

    class Quick(Visited):
        """A store whose watcher looks as soon as the fault stands in it, and before the rank goes on."""

        def compare_set(self, key, before, after):
            value = self.store.compare_set(key, before, after)
            looking.start()
            looking.join(0.5)
            return value

    monkeypatch.setattr(os, "_exit", leave)
    looking = threading.Thread(target=look)
    watch = Watch(Quick(0, None), PLACES, 1, ProgressRecorder(), Supervision(hang_after_s=60.0))
    with pytest.raises(Ended):
        watch.fail(ValueError("no good"))
    looking.join()
    assert "ValueError: no good\n" in said[0]
