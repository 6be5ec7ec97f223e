"""The precision of a run, as checkpoints and summaries have it."""

from dataclasses import replace
from pathlib import Path

import pytest

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.format import open_checkpoint, write_state
from heterps_compile.runtime.checkpoint.state import RunState
from heterps_compile.runtime.launch.rank_context import Result, result_from_json
from heterps_compile.runtime.launch.run_report import result_lines
from heterps_compile.runtime.pipeline.scaling import Scaling


def test_a_checkpoint_keeps_the_scale_and_an_earlier_one_had_none(tmp_path: Path):
    scaling = Scaling(scale=1024.0, growth_tracker=7, skipped=3)
    state = RunState(2, 8, 4, 0, "m", "p", (), precision="fp16", scaling=scaling)
    write_state(tmp_path, state)
    assert replace(open_checkpoint(tmp_path).state, files=None) == state
    write_state(tmp_path, replace(state, precision="int3"))
    with pytest.raises(RunError, match="'int3'"):
        open_checkpoint(tmp_path)


def test_skipped_steps_are_counted_in_the_summary():
    result = Result(0, 10, 8, skipped=2)
    assert result_from_json(result.to_json().encode()) == result
    assert "2 steps skipped: gradients were not finite in float16, and the loss scale was halved" in result_lines(
        result, None
    )
