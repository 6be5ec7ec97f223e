"""What people see of a run: the live table, plain lines, the summary beside the plan, TensorBoard."""

import io
import json
import os
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from plans import PLAN
from rich.console import Console
from told_runs import PACE_S, RANKS, SLOT_S, STEP_S, recorders, told_run

from heterps_compile.console import make_console
from heterps_compile.errors import InputError, MissingPackageError, RunError
from heterps_compile.runtime.telemetry.events import WAITS, RankTables, RankValidation
from heterps_compile.runtime.telemetry.follow import RunFollower
from heterps_compile.runtime.telemetry.live_view import LINE_EVERY_S, LiveView, rank_table, step_line
from heterps_compile.runtime.telemetry.run_summary import SummaryOfSteps, comparison_table, summary_lines, table_lines
from heterps_compile.runtime.telemetry.step_log import StepLog, TensorBoardLog
from heterps_compile.schedule.micro_batch import MicroBatch

DEVICES = {0: "cpu", 1: "v100"}


@pytest.fixture
def followed(tmp_path):
    told_run(tmp_path / "ranks", steps=4)
    follower = RunFollower(tmp_path / "ranks", len(RANKS))
    return follower.starts, follower.poll()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    time_s = 0.0

    def __call__(self) -> float:
        return self.time_s


def drawn(table) -> str:
    console = Console(file=io.StringIO(), width=120, markup=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def summary_of(starts, reports):
    steps = SummaryOfSteps()
    for report in reports:
        steps.add(report)
    summary = steps.summary(starts)
    assert summary is not None
    return summary


VALIDATIONS = (
    RankValidation(0, 2, 50, {"loss": 0.5, "auc": 0.75}, 0.25, 2, 0.75),
    RankValidation(0, 4, 50, {"loss": 0.25, "auc": 0.625}, 0.25, 2, 0.75),
)


def test_validations_are_told_by_rank_0_and_stand_in_the_log(tmp_path):
    made = recorders(tmp_path / "ranks")
    for validation in VALIDATIONS:
        made[0].tell(validation)
    for recorder in made.values():
        recorder.close()
    follower = RunFollower(tmp_path / "ranks", len(RANKS))
    assert follower.poll() == []
    taken = follower.take_others()
    assert taken == list(VALIDATIONS)
    assert follower.take_others() == []
    with closing(StepLog(tmp_path / "log.jsonl")) as log:
        for validation in taken:
            log.add(validation)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[1] == {
        "validation": {"loss": 0.25, "auc": 0.625},
        "after_steps": 4,
        "samples": 50,
        "is_best": False,
        "best_after_steps": 2,
        "best": 0.75,
        "time_s": 0.25,
    }
    assert lines[0]["is_best"]
    screen = io.StringIO()
    with closing(LiveView(screen, follower.starts, DEVICES, total_steps=4)) as live:
        live.add(VALIDATIONS[0])
    assert screen.getvalue().startswith("validation after step 2/4: loss 0.5")


def test_what_tables_hold_is_told_in_the_log_and_at_the_end(tmp_path):
    made = recorders(tmp_path / "ranks")
    numbers = {"rows": 1500, "new": 900, "evicted": 400, "waiting": 30}
    told = RankTables(0, 4, servers=2, size_bytes=2**20, tables={"emb": numbers})
    made[0].tell(told)
    for recorder in made.values():
        recorder.close()
    follower = RunFollower(tmp_path / "ranks", len(RANKS))
    assert follower.poll() == []
    assert (follower.take_others(), follower.take_others()) == ([told], [])
    with closing(StepLog(tmp_path / "log.jsonl")) as log:
        log.add(told)
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {
        "tables": {"emb": numbers}, "after_steps": 4, "servers": 2, "size_bytes": 2**20,
    }  # fmt: skip
    assert table_lines(told) == [
        "tables on 2 parameter servers: 1 MiB of rows and the state of their optimizer",
        "table 'emb': 1,500 rows, of which 30 wait to be admitted; 900 new and 400 evicted since the run began",
    ]
    assert table_lines(replace(told, tables={})) == [
        "tables on 2 parameter servers: 1 MiB of rows and the state of their optimizer"
    ]


def test_a_step_is_one_line(followed):
    _, reports = followed
    assert step_line(reports[1], 4) == (
        "step 2/4, loss 0.5, 100 samples/s, 80 ms a step, bubble 56 %, stage 1 slowest (40 ms)"
    )
    told = step_line(reports[1], 4, planned_per_s=160.0, left_s=200.4)
    assert "100 samples/s (63 % of the plan's), 80 ms" in told
    assert told.endswith("stage 1 slowest (40 ms), 3 min 20 s left")
    assert step_line(reports[1], 4, left_s=7500).endswith(", 2 h 5 min left")
    assert step_line(replace(reports[1], stage_s={0: 0.1}), 4, left_s=0).endswith("bubble 56 %")
    clipped = replace(reports[1], gradient_norm=1.23456)
    assert step_line(clipped, 4).startswith("step 2/4, loss 0.5, gradient norm 1.235, 100 samples/s")
    named = replace(reports[1], losses={"click": 0.4375, "loss": 0.0625})
    assert step_line(named, 4).startswith("step 2/4, loss 0.5 (click 0.4375, loss 0.0625), 100 samples/s")
    assert {tag: number for tag, number in named.scalars.items() if "loss" in tag} == {
        "run/loss": 0.5,
        "loss/click": 0.4375,
        "loss/loss": 0.0625,
    }
    assert named.record["losses"] == {"click": 0.4375, "loss": 0.0625}
    rates = replace(reports[1], learning_rates=(0.001, 0.01, 0.001))
    assert step_line(rates, 4).startswith("step 2/4, loss 0.5, learning rate 0.001, 0.01, 100 samples/s")
    assert step_line(replace(reports[1], loss=None), None) == (
        "step 2, 100 samples/s, 80 ms a step, bubble 56 %, stage 1 slowest (40 ms)"
    )


def test_the_table_tells_what_each_rank_did(followed):
    starts, reports = followed
    ranks = tuple(replace(rank, rss_bytes=300 * 2**20) for rank in reports[0].ranks)
    assert drawn(rank_table(replace(reports[0], ranks=ranks), starts, DEVICES)) == "\n".join(
        [
            "rank  stage  device  busy  receive  reduce    received   memory",
            "0     0      cpu     33 %     50 %    17 %  66.7 KiB/s  300 MiB",
            "1     0      cpu     33 %     67 %     0 %  66.7 KiB/s  300 MiB",
            "2     1      v100    67 %     17 %    17 %   133 KiB/s  300 MiB",
        ]
    )


def test_the_table_fits_a_terminal_of_eighty_columns(followed):
    starts, reports = followed
    waits = dict.fromkeys(WAITS, STEP_S)
    ranks = [replace(rank, wait_s=waits, rss_bytes=1023 * 2**20) for rank in reports[1].ranks]
    report = replace(reports[1], ranks=ranks)
    table = rank_table(report, starts, {0: "ironwood-tpu-v7", 1: "v100"}, width=80)
    console = Console(file=io.StringIO(), width=80, markup=False)
    console.print(table)
    first, *rows = console.file.getvalue().splitlines()
    assert first.split() == ["rank", "stage", "device", "busy", *WAITS, "received", "memory"]
    assert [row.split()[2] for row in rows] == ["iron…pu-v7", "iron…pu-v7", "v100"]
    assert all(row.rstrip().endswith("1,023 MiB") for row in rows)


def test_a_view_that_nobody_reads_any_more_says_so_and_does_not_end_the_process(followed):
    starts, reports = followed
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        view = LiveView(stream, starts, DEVICES)
        with pytest.raises(BrokenPipeError):
            view.add(reports[0])
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # what is left in the buffer goes there


def test_without_a_terminal_lines_come_now_and_then_and_the_last_one_always(followed):
    starts, reports = followed
    stream, clock = io.StringIO(), Clock()
    with closing(LiveView(stream, starts, DEVICES, total_steps=4, clock=clock)) as view:
        view.add(reports[0])
        view.add(reports[1])
        clock.time_s += LINE_EVERY_S
        view.add(reports[2])
        view.print("a rank said something")
        view.add(reports[3])
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == [
        "step 1/4",
        "step 3/4",
        "a rank said something",
        "step 4/4",
    ]


def test_on_a_terminal_the_table_is_drawn_and_left_as_it_was_last(followed, monkeypatch):
    starts, reports = followed
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with closing(LiveView(stream, starts, DEVICES, clock=Clock())) as view:
        for report in reports:
            view.add(report)
    shown = stream.getvalue()
    assert "step 1," in shown
    assert "step 2," not in shown  # a moment later
    assert shown.rindex("step 4,") < shown.rindex("v100")


def test_what_is_left_goes_by_the_pace_of_late(followed, monkeypatch):
    starts, reports = followed
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with closing(LiveView(stream, starts, DEVICES, clock=Clock())) as view:
        view.total_steps = 1004
        for report in reports:
            view.add(report)
    first, last = stream.getvalue().splitlines()
    assert first.startswith("step 1/1,004, ")
    assert first.endswith("stage 1 slowest (40 ms)")  # the first steps are warming up
    assert last.startswith("step 4/1,004, ")
    assert last.endswith(", 1 min 20 s left")


def test_device_names_cannot_move_the_cursor(followed):
    starts, reports = followed
    text = drawn(rank_table(reports[0], starts, {0: "\x1b[2Jcpu", 1: "[red]v100"}))
    assert "\x1b" not in text
    assert "[red]v100" in text


def test_the_summary_takes_medians_without_the_first_steps(followed):
    starts, reports = followed
    assert SummaryOfSteps().summary(starts) is None
    summary = summary_of(starts, [*(replace(report, step_s=5.0) for report in reports[:2]), *reports[2:]])
    assert (summary.steps, summary.samples) == (2, 8)
    assert summary.step_s == pytest.approx(STEP_S)
    assert summary.samples_per_s == pytest.approx(8 / PACE_S)
    assert summary.stage_s == {0: pytest.approx(2 * SLOT_S), 1: pytest.approx(4 * SLOT_S)}
    assert summary.link_bytes == {(0, 1): 8192, (1, 0): 8192}


def test_measured_stands_beside_planned(followed):
    starts, reports = followed
    summary = summary_of(starts, reports)
    request = replace(PLAN.request, mode="training")
    plan = replace(PLAN, batch=8, request=request, schedule=replace(PLAN.schedule, step_s=0.05))
    assert drawn(comparison_table(plan, summary, as_planned=True)) == "\n".join(
        [
            "                                   planned       measured  measured / planned",
            "─" * 77,
            "throughput, one batch alone  160 samples/s  100 samples/s                0.63",
            "step, one batch alone                50 ms          80 ms                1.60",
            "bubble, one batch alone             92.2 %         55.6 %                0.60",
            "stage 0 (cpu)                         4 ms          20 ms                5.00",
            "stage 1 (v100)                        3 ms          40 ms               13.33",
        ]
    )
    shared = drawn(comparison_table(plan, summary, as_planned=True, shared_step_s=0.048)).splitlines()
    assert shared[4].split() == ["ranks", "sharing", "cores", "48", "ms", "80", "ms", "1.67"]
    of_two = replace(PLAN.stages[1], replicas=2, times=(MicroBatch(4, 0.01, 0.02),))
    divided = replace(plan, stages=(PLAN.stages[0], of_two), schedule=replace(plan.schedule, micro_batches=4))
    rows = drawn(comparison_table(divided, summary, as_planned=True)).splitlines()
    assert rows[-1].split() == [
        "stage",
        "1",
        "(v100)",
        "60",
        "ms",
        "40",
        "ms",
        "0.67",
    ]  # two of four micro-batches each
    narrow = io.StringIO()
    make_console(narrow, 60).print(comparison_table(plan, summary, as_planned=True))
    assert max(map(len, narrow.getvalue().splitlines())) <= 60
    assert "stage 1 (v100)" in narrow.getvalue()
    other = drawn(comparison_table(plan, summary, as_planned=False))
    assert "160 samples/s" not in other
    assert "100 samples/s" in other
    served = drawn(comparison_table(replace(plan, request=PLAN.request), summary, as_planned=True))
    assert "throughput, steady state  2,000 samples/s" in served
    assert "step, steady state                   4 ms" in served


def test_the_summary_says_waits_messages_and_memory(followed):
    starts, reports = followed
    summary = summary_of(starts, reports)
    lines = summary_lines(replace(summary, peak_rss_bytes={0: 2**20}, peak_gpu_bytes={0: 2**30, 1: 0}))
    assert lines == [
        "median of 2 steps of 8 samples",
        "stage 0 computed 20 ms wall, 20 ms of CPU a step",
        "stage 1 computed 40 ms wall, 40 ms of CPU a step",
        "between two steps: 20 ms (optimizer, checkpoints)",
        "waiting of a rank in a step: receive 26.7 ms, reduce 6.67 ms",
        "position 0 to position 1: 8 KiB a step",
        "position 1 to position 0: 8 KiB a step",
        "memory at most: rank 0 1 MiB",
        "GPU memory at most: rank 0 1 GiB",
    ]


def test_scalars_have_units_in_their_tags(followed):
    _, reports = followed
    found = reports[0].scalars
    assert found["run/step_s"] == pytest.approx(STEP_S)
    assert found["run/loss"] == 1.0
    assert found["stage_s/1"] == pytest.approx(4 * SLOT_S)
    assert found["wait/receive_s"] == pytest.approx(8 / 3 * SLOT_S)
    assert "run/gradient_norm" not in found
    assert replace(reports[0], gradient_norm=2.0).scalars["run/gradient_norm"] == 2.0
    assert replace(reports[0], learning_rates=(0.1,)).scalars["run/learning_rate"] == 0.1
    assert replace(reports[0], learning_rates=(0.1, 0.2)).scalars["learning_rate/1"] == 0.2
    assert {"rss_bytes/rank_0", "run/sent_bytes", "run/bubble", "run/samples_per_s"} <= set(found)


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingPackageError, match=r"'heterps-compile\[tensorboard\]'"):
        TensorBoardLog(tmp_path)


def test_a_folder_that_tensorboard_cannot_write_is_named(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is an extra")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"TensorBoard's.*'.*file'"):
        TensorBoardLog(tmp_path / "file")


def test_tensorboard_reads_what_was_written(followed, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415 - an extra

    _, reports = followed
    with closing(TensorBoardLog(tmp_path / "board")) as board:
        for report in reports:
            board.add(report)
    read = EventAccumulator(str(tmp_path / "board"))
    read.Reload()
    assert [(event.step, event.value) for event in read.Scalars("run/loss")] == [
        (step, pytest.approx(1 / (step + 1))) for step in range(4)
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_disk_that_fills_up_is_told_whenever_the_log_is_written(followed):
    log = StepLog(Path("/dev/full"))
    for write in (lambda: log.add(followed[1][0]), log.close):
        with pytest.raises(RunError, match=r"'/dev/full'.*No space left on device"):
            write()
