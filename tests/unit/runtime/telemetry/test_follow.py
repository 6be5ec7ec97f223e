"""Steps come together out of files that are still being written."""

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from told_runs import BYTES, PACE_S, RANKS, SLOT_S, STEP_S, recorders, tell_step, told_run

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.telemetry.events import RankTables, RankValidation
from heterps_compile.runtime.telemetry.follow import RunFollower
from heterps_compile.runtime.telemetry.step_log import StepLog, decision_record
from heterps_compile.runtime.telemetry.step_report import stage_link_bytes, step_report


def test_a_step_is_put_together(tmp_path):
    told_run(tmp_path)
    follower = RunFollower(tmp_path, len(RANKS))
    (report,) = follower.poll()
    assert (report.step, report.samples, report.loss) == (0, 8, 1.0)
    assert report.step_s == pytest.approx(STEP_S)
    assert report.pace_s == report.step_s
    assert report.bubble == pytest.approx(1 - 8 / 18)  # 8 of 3 x 6 slots
    assert report.stage_s == {0: pytest.approx(2 * SLOT_S), 1: pytest.approx(4 * SLOT_S)}
    assert report.wait_s == {"receive": pytest.approx(8 / 3 * SLOT_S), "reduce": pytest.approx(2 / 3 * SLOT_S)}
    assert report.link_bytes == {(2, 0): BYTES, (2, 1): BYTES, (0, 2): BYTES, (1, 2): BYTES}
    assert stage_link_bytes(follower.starts, report.link_bytes) == {(0, 1): 2 * BYTES, (1, 0): 2 * BYTES}


def test_throughput_counts_what_lies_between_steps(tmp_path):
    told_run(tmp_path, steps=3)
    reports = RunFollower(tmp_path, len(RANKS)).poll()
    assert [report.pace_s for report in reports] == pytest.approx([STEP_S, PACE_S, PACE_S])
    assert reports[1].samples_per_s == pytest.approx(8 / PACE_S)


def test_a_step_waits_for_its_last_rank(tmp_path):
    writers = recorders(tmp_path)
    follower = RunFollower(tmp_path, len(writers))
    assert follower.poll() == []
    tell_step(writers[0], 0, 0)
    tell_step(writers[1], 1, 0)
    assert follower.poll() == []
    tell_step(writers[0], 0, 1)
    tell_step(writers[2], 2, 0, loss=0.5)
    assert [report.step for report in follower.poll()] == [0]
    tell_step(writers[1], 1, 1)
    tell_step(writers[2], 2, 1, loss=0.25)
    assert [(report.step, report.loss) for report in follower.poll()] == [(1, 0.25)]
    assert follower.poll() == []
    for writer in writers.values():
        writer.close()


def test_half_a_line_counts_once_its_end_is_there(tmp_path):
    told_run(tmp_path)
    path = tmp_path / "rank-0002.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    follower = RunFollower(tmp_path, len(RANKS))
    assert follower.poll() == []
    path.write_bytes(content)
    assert len(follower.poll()) == 1


def test_files_of_an_earlier_run_are_left_behind(tmp_path):
    told_run(tmp_path, steps=3, trace_steps=range(3))
    (tmp_path / "rank-0002.jsonl").unlink()  # the earlier run did not finish its steps
    follower = RunFollower(tmp_path, len(RANKS))
    assert follower.poll() == []
    told_run(tmp_path, steps=1, trace_steps=range(1))
    assert [report.step for report in follower.poll()] == [0]
    assert [spans.step for spans in follower.spans] == [0, 0, 0]
    assert follower.poll() == []


def test_ranks_that_have_not_begun_are_waited_for(tmp_path):
    assert RunFollower(tmp_path / "later", 4).poll() == []


def test_a_strange_line_is_named(tmp_path):
    (tmp_path / "rank-0000.jsonl").write_text("not json\n")
    with pytest.raises(InputError, match="'not json'"):
        RunFollower(tmp_path, 1).poll()


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "rank-0000.jsonl").mkdir()
    with pytest.raises(RunError, match=r"'.*rank-0000.jsonl'"):
        RunFollower(tmp_path, 1).poll()


def test_steps_that_overlap_count_nobodys_time_twice(tmp_path):
    """The last stage begins the next step while the first is still at work on this one."""
    told_run(tmp_path)
    follower = RunFollower(tmp_path, len(RANKS))
    (report,) = follower.poll()
    early = replace(report.ranks[2], began_s=report.ranks[2].began_s - STEP_S, ended_s=report.ranks[2].ended_s - STEP_S)
    overlapping = step_report(follower.starts, [early, *report.ranks[:2]])
    assert overlapping.step_s == pytest.approx(STEP_S)
    assert overlapping.bubble == pytest.approx(report.bubble)


def test_the_log_has_a_line_a_step(tmp_path):
    told_run(tmp_path, steps=2)
    reports = RunFollower(tmp_path, len(RANKS)).poll()
    path = tmp_path / "log.jsonl"
    with closing(StepLog(path)) as log:
        log.add(reports[0])
        assert len(path.read_text().splitlines()) == 1  # to be followed while the run goes on
    with closing(StepLog(path, append=True)) as log:
        log.add(reports[1])
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first == reports[0].record
    assert (first["step"], first["samples"], first["loss"]) == (0, 8, 1.0)
    assert first["link_bytes"] == {"2->0": BYTES, "2->1": BYTES, "0->2": BYTES, "1->2": BYTES}
    assert [rank["rank"] for rank in first["ranks"]] == [0, 1, 2]
    assert second["loss"] == 0.5


def test_every_key_of_the_log_is_documented(tmp_path):
    told_run(tmp_path)
    (report,) = RunFollower(tmp_path, len(RANKS)).poll()
    page = (Path(__file__).parents[4] / "docs" / "telemetry.md").read_text("utf-8")
    lines = page.split("## The log")[1].split("##")[0].splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    documented = [name for cell in cells for name in re.findall("`([a-z_]+)`", cell)]
    validated = RankValidation(0, 2, 50, {"loss": 0.5}, 0.25).record
    counted = RankTables(0, 2, 1, 64, {}).record
    assert documented == [*report.record, *validated, *counted, *decision_record(0.0, "goes on")]


def test_a_rate_is_a_number_and_several_are_a_list(tmp_path):
    told_run(tmp_path)
    (report, *_) = RunFollower(tmp_path, len(RANKS)).poll()
    rates = [(), (0.1,), (0.1, float("inf"))]
    assert [replace(report, learning_rates=of).record["learning_rate"] for of in rates] == [
        None,
        0.1,
        [0.1, "inf"],
    ]


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(InputError, match=r"'.*none/log.jsonl'.*No such file"):
        StepLog(tmp_path / "none" / "log.jsonl")
