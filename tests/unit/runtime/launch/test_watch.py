"""The watcher of a rank: the end of a launcher or a store, faults of others, and a stop that all agree on."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from torch.distributed import DistNetworkError, HashStore

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.folder import STATE_NAME, step_name
from heterps_compile.runtime.launch.beats import StoreBeats
from heterps_compile.runtime.launch.faults import WAITING, Fault, Place, Progress, fault_from_json
from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.runtime.launch.watch import FAULT_KEY, FAULT_MARK, Supervision, Watch

PLACES = [Place(0, (0,), 0), Place(1, (1,), 0), Place(2, (1,), 1)]


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


def one_of_two(store, **given: float) -> Watch:
    return Watch(store, PLACES[:2], 0, ProgressRecorder(), Supervision(hang_after_s=10.0, late_s=3600.0, **given))


def test_a_rank_that_never_hears_is_not_waited_for_long():
    store = HashStore()
    StoreBeats(store).beat(1, Progress())
    one_of_two(store, hear_s=0.0).stay_until_heard(3600.0)
    assert not store.check(["heard/1"])
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
    alone = Supervision(hang_after_s=9.0, host=host, late_s=0.0)
    watch = Watch(GoneStore(), [Place(0), Place(1)], 1, ProgressRecorder(), alone)
    with pytest.raises(Ended):
        watch._run()
    assert capsys.readouterr().err.startswith(f"Error: {told}")


class Ended(BaseException):
    """What ends a process here."""


def end(_code: int) -> None:
    raise Ended


def test_a_rank_that_cannot_write_its_fault_prints_it_for_its_launcher(monkeypatch, capsys):
    monkeypatch.setattr(os, "_exit", end)
    full = Mock(compare_set=Mock(side_effect=RunError("no space left")), check=lambda _: False)
    with pytest.raises(Ended):
        Watch(full, PLACES, 1, ProgressRecorder(), Supervision(hang_after_s=9.0)).fail(RunError("no space left"))
    mark, _, fault = capsys.readouterr().err.partition("{")
    assert (mark, fault_from_json("{" + fault).cause) == (FAULT_MARK, "stopped: no space left")


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


def test_the_trace_of_what_a_rank_raised_is_out_before_its_watcher_ends_it(monkeypatch, capsys):
    said: list[str] = []

    def leave(_code: int) -> None:
        said.append("".join(capsys.readouterr()))
        raise Ended

    def look() -> None:
        with suppress(Ended):
            watch.look(time.monotonic())

    class Quick(HashStore):
        """A store whose watcher looks as soon as the fault stands in it, and before the rank goes on."""

        def compare_set(self, key, before, after):
            value = super().compare_set(key, before, after)
            looking.start()
            looking.join(0.5)
            return value

    monkeypatch.setattr(os, "_exit", leave)
    looking = threading.Thread(target=look)
    watch = Watch(Quick(), PLACES, 1, ProgressRecorder(), Supervision(hang_after_s=60.0))
    with pytest.raises(Ended):
        watch.fail(ValueError("no good"))
    looking.join()
    assert "ValueError: no good\n" in said[0]
