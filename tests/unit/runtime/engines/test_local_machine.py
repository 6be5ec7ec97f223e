"""The ranks of this machine on a clock that a test moves: how they end, and which fault becomes that of the run."""

import os
import signal
from collections.abc import Sequence
from unittest.mock import Mock, call

import pytest
from torch.distributed import HashStore

from heterps_compile.runtime.engines.local_machine import LocalRanks
from heterps_compile.runtime.engines.machines import Left
from heterps_compile.runtime.launch.beats import StoreBeats
from heterps_compile.runtime.launch.faults import WAITING, Fault, Place, Progress
from heterps_compile.runtime.launch.heartbeats import done_key
from heterps_compile.runtime.launch.rank_context import RESULT_KEY, STEPS_KEY, Result
from heterps_compile.runtime.launch.stop_signals import RESIZED_BY
from heterps_compile.runtime.launch.watch import FAULT_MARK, STOP_KEY, post_fault

PLACES = [Place(0, (0,), 0), Place(1, (1,), 0), Place(2, (1,), 1)]


class Process:
    """A process that leaves when a test says so."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.is_killed = False
        reader, writer = os.pipe()
        self.stdout, self.prints = os.fdopen(reader, encoding="utf-8"), os.fdopen(writer, "w", encoding="utf-8")

    def leave(self, code: int) -> None:
        self.code = code
        self.prints.close()

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> None:
        assert self.code is not None

    def kill_group(self) -> None:
        self.is_killed = self.code is None
        if self.is_killed:
            self.leave(-signal.SIGKILL)


class Start:
    """Three ranks that have begun."""

    def __init__(self, begun: int = 3, places: Sequence[Place] = PLACES) -> None:
        self.store, self.report, self.results = HashStore(), Mock(), []
        self.beats = StoreBeats(self.store)
        self.ranks = LocalRanks(places, self.store, self.beats, self.report, self.results, 10.0)
        self.ranks.cleanup.callback(self.ranks.end)
        self.processes = [Process() for _ in PLACES]
        for rank, process in enumerate(self.processes):
            self.ranks.add(rank, process)
        for rank in range(begun):
            self.beats.beat(rank, Progress("forward", 5, PLACES[rank].stages[0], 2, 0.1))
        self.now_s = 1000.0

    def after(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.ranks.poll(self.now_s)

    def within(self, seconds: float) -> bool:
        return any(self.after(0.5) for _ in range(int(2 * seconds)))

    def error(self) -> str:
        left = self.ranks.close()
        assert (left.codes, left.is_over, self.results) == ((1,), False, [])
        return str(left.error)


@pytest.mark.parametrize(("stopped_by", "code"), [(0, 0), (15, 143), (int(RESIZED_BY), 128 + RESIZED_BY)])
def test_ranks_that_are_done_leave_their_result(stopped_by, code):
    start, result = Start(), Result(0, 7, 8, stopped_by)
    start.store.set(STEPS_KEY, "9")
    assert not start.after(0.1)
    if stopped_by:
        start.ranks.stop(stopped_by)
        assert start.store.get(STOP_KEY) == str(stopped_by).encode()
    start.store.set(RESULT_KEY, result.to_json())
    for rank, process in enumerate(start.processes):
        assert not start.after(0.1)
        start.store.set(done_key(rank), "1")
        process.leave(0)
    assert start.after(0.1)
    assert (start.ranks.close(), start.results) == (Left((code,), is_over=True), [result])
    start.report.know_steps.assert_called_once_with(9)


@pytest.mark.parametrize(
    ("code", "cause"), [(-9, "was killed by SIGKILL"), (3, "left with exit code 3"), (0, "code 0")]
)
def test_a_process_that_dies_is_the_fault_and_the_others_are_killed(code, cause):
    start = Start()
    start.processes[1].leave(code)
    assert start.after(0.1)
    said = start.error()
    assert said.startswith("stage 1, replica 0 (rank 1) ")
    assert cause in said
    assert said.endswith("it was in step 5, last micro-batch 2 (forward)")
    assert [process.is_killed for process in start.processes] == [True, False, True]


def test_a_rank_that_wrote_its_fault_has_time_to_print_its_trace():
    start = Start()
    post_fault(start.store, Fault(PLACES[2], Progress(), "raised ValueError"))
    assert [start.after(0.1), start.after(1.0)] == [False, False]
    start.processes[2].prints.write("Traceback\n")
    start.processes[2].leave(1)
    assert start.after(0.1)
    assert "(rank 2) raised ValueError" in start.error()
    start.report.line.assert_called_once_with("[stage 1, replica 1] Traceback")
    stuck = Start()
    post_fault(stuck.store, Fault(PLACES[2], Progress(), "hangs"))
    assert [stuck.after(0.1), stuck.after(2.1)] == [False, True]
    stuck.ranks.close()


def test_of_ranks_that_cannot_write_into_the_store_one_message_is_printed():
    start = Start()
    for place, process in zip(PLACES, start.processes, strict=True):
        process.prints.write(f"a line{FAULT_MARK}{Fault(place, Progress(), 'stopped: no space left').to_json()}\n")
        process.leave(1)
    assert start.after(0.1)
    assert "stopped: no space left" in start.error()
    start.report.line.assert_has_calls([call(f"[{place}] a line") for place in PLACES], any_order=True)
    assert start.report.line.call_count == len(PLACES)


def test_silence_and_a_rank_that_never_begins_are_found_and_time_in_which_the_machine_slept_does_not_count():
    start = Start()
    assert not start.within(1.0)
    assert not start.after(50.0)  # the machine was suspended
    assert not start.within(7.0)
    assert start.within(4.0)
    assert "gave no sign of life for 8 s" in start.error()
    late = Start(begun=0)
    assert not late.within(299.0)
    assert late.within(5.0)
    assert "stage 0, replica 0 (rank 0) did not start in 300 s" in late.error()


@pytest.mark.parametrize(("places", "last_s", "is_found"), [(3, 301.0, True), (3, 5.0, False), (2, 301.0, True)])
def test_when_all_ranks_with_stages_wait_for_all_the_first_is_named(places, last_s, is_found):
    start = Start(places=[Place(0, (0,), 0), Place(1, (1,), 0), Place(2, (1,) if places == 3 else (), 1)])
    for rank, for_s in enumerate((301.0, 301.0, last_s)):
        start.beats.beat(rank, Progress(WAITING, 5, rank > 0, 2, for_s))
    assert start.within(3.0) == is_found
    assert ("so have all others" in str(start.ranks.close().error)) == is_found
