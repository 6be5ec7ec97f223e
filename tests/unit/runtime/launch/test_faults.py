"""What ended a run, in one sentence."""

import signal

import pytest
import torch

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.launch.faults import (
    Fault,
    Place,
    Progress,
    exception_cause,
    exit_cause,
    fault_from_json,
    is_from_a_peer,
)

KILLED = Fault(Place(2, (1,), 0), Progress("backward", 7, 1, 3, 0.5), "was killed by SIGSEGV")


def test_a_fault_names_stage_replica_step_micro_batch_and_cause():
    said = "stage 1, replica 0 (rank 2) was killed by SIGSEGV; it was in step 7, last micro-batch 3 (backward)"
    assert str(KILLED) == said


@pytest.mark.parametrize(
    ("place", "progress", "said"),
    [
        (Place(0, (0, 2), 1), Progress("forward", 1, 2, 0), "stage 2, replica 1 (rank 0)"),
        (Place(0, (0, 2), 1), Progress(), "stages 0 and 2, replica 1 (rank 0)"),
        (Place(4, (), 1), Progress(), "parameter server 1 (rank 4)"),
        (Place(4), Progress(), "a process (rank 4)"),
        (Place(4, (), 1), Progress("serving tables", 3), "it was in step 3 (serving tables)"),
        (Place(0, (0,), 0), Progress(), "before the first step (starting)"),
        (Place(0, (0,), 0), Progress("reading data", 3), "in step 3 (reading data), before its first micro-batch"),
    ],
)
def test_who_and_where_is_told_as_far_as_it_is_known(place, progress, said):
    assert said in str(Fault(place, progress, "hangs"))


def test_a_fault_survives_the_journey_to_other_ranks():
    assert fault_from_json(KILLED.to_json()) == KILLED


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"place": 1}', '{"place": {"rank": "x"}}', "\x80"])
def test_a_message_that_is_none_is_refused(text):
    with pytest.raises(RunError):
        fault_from_json(text)


@pytest.mark.parametrize(
    ("code", "out_of_memory", "said"),
    [
        (0, False, "left with exit code 0 before the run was over"),
        (3, False, "left with exit code 3 before the run was over"),
        (-signal.SIGSEGV, False, "was killed by SIGSEGV"),
        (-signal.SIGKILL, False, "was killed by SIGKILL (by somebody, or by the system for its memory)"),
        (-signal.SIGKILL, True, "was killed by SIGKILL (the system ran out of memory)"),
        (-99, False, "was killed by signal 99"),
    ],
)
def test_how_a_process_ended(code, out_of_memory, said):
    assert exit_cause(code, out_of_memory=out_of_memory) == said


def raised_inside(error: Exception) -> RunError:
    """Return an error as the pipeline tells it."""
    try:
        raise RunError("stage 1, replica 0 (rank 2), forward of micro-batch 3 in step 7: it failed") from error
    except RunError as told:
        return told


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no\ngood"), "raised ValueError: no good"),
        (KeyError(), "raised KeyError"),
        (MemoryError(), "ran out of memory (MemoryError)"),
        (torch.OutOfMemoryError("CUDA out of memory"), "ran out of memory (CUDA out of memory)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "ran out of memory"),
        (InputError("the file is gone"), "stopped: the file is gone"),
        (IndexError("index out of range in self"), "raised IndexError: index out of range in self (an id lies outside"),
        (raised_inside(ValueError("bad")), "raised ValueError: bad"),
        (raised_inside(RunError("the loss is nan")), "stopped: the loss is nan"),
    ],
)
def test_an_exception_in_one_line(error, said):
    assert exception_cause(error).startswith(said)


def test_where_a_message_of_ours_comes_from_the_training_file_it_says_so_first():
    error = InputError("the batch has no column 'lable'")
    error.add_note("in loss() of the training file, line 2")
    assert exception_cause(error) == ("stopped in loss() of the training file, line 2: the batch has no column 'lable'")


def test_the_end_of_a_peer_is_not_taken_for_a_fault_of_ones_own():
    assert is_from_a_peer(RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]"))
    assert is_from_a_peer(raised_inside(RuntimeError("Connection reset by peer")))
    assert not is_from_a_peer(ValueError("bad label"))
