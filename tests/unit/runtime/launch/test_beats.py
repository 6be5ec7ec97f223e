"""Heartbeats on a page of one machine and in a store: what one process writes, another reads."""

import subprocess
import sys

import pytest
from torch.distributed import HashStore

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.beats import BeatPage, StoreBeats
from heterps_compile.runtime.launch.faults import WAITING, Progress
from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.schedule.order import Phase


def test_a_page_shows_the_last_micro_batch_of_every_rank_and_for_how_long(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    launcher, page = BeatPage(tmp_path / "page", 3), BeatPage(tmp_path / "page")
    assert [launcher.last(rank) for rank in range(3)] == [None] * 3
    page.beat(1, Progress())
    first = launcher.last(1)
    assert first is not None
    assert (first.count, first.progress) == (1, Progress())
    recorder = ProgressRecorder(lambda now, since_s: page.write(1, now, since_s))
    recorder.begin(12, 1, 3, Phase.FORWARD)
    page.beat(1, Progress())
    clock[0] = 102.5
    seen = launcher.last(1)
    assert seen is not None
    assert (seen.count, seen.progress) == (2, Progress("forward", 12, 1, 3, 2.5))
    recorder.begin_step(13)
    seen = launcher.last(1)
    assert seen is not None
    assert seen.progress == Progress(WAITING, 13, 1, None, 0.0)
    assert (launcher.last(0), launcher.last(2)) == (None, None)


WRITER = """
import itertools, sys
from pathlib import Path
from heterps_compile.runtime.launch.beats import BeatPage
from heterps_compile.runtime.launch.faults import Progress
page = BeatPage(Path(sys.argv[1]))
for step in itertools.count():
    page.write(1, Progress("forward", step, step, step), 1.0)
    if not step:
        page.beat(1, Progress())
"""


def test_what_is_read_while_another_process_writes_is_of_one_time(tmp_path):
    page, reads, seen = BeatPage(tmp_path / "page", 2), 0, set()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "page")]) as writer:
        try:
            while reads < 50_000 or len(seen) < 20:
                reads += 1
                beat = page.last(1)
                assert writer.poll() is None
                if beat is not None:
                    assert beat.progress.step == beat.progress.stage == beat.progress.micro_batch
                    seen.add(beat.progress.step)
        finally:
            writer.kill()


def test_a_store_keeps_the_last_heartbeat_alone():
    store = HashStore()
    beats = StoreBeats(store)
    assert beats.last(2) is None
    for step in range(3):
        beats.beat(2, Progress("forward", step, 0, 1, 0.5))
    seen = StoreBeats(store).last(2)
    assert seen is not None
    assert (seen.count, seen.progress, store.num_keys()) == (3, Progress("forward", 2, 0, 1, 0.5), 1)


@pytest.mark.parametrize("value", ["", "1", "x {}", "-1 {}", "1 []", '1 {"doing": 7}'])
def test_what_is_no_heartbeat_is_refused(value):
    store = HashStore()
    store.set("beat/0", value)
    with pytest.raises(RunError):
        StoreBeats(store).last(0)
