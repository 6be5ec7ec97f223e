"""A recorder writes what it was told, added up, one line a step."""

import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch
from told_runs import PACE_S, SLOT_S, STEP_S, told_run

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.learning_rates import measure_rates
from heterps_compile.runtime.pipeline.recorder import Recorders, StepResult
from heterps_compile.runtime.telemetry.events import Ran, RankSpans, RankStart, RankStep, Received, Waited, from_line
from heterps_compile.runtime.telemetry.process_memory import machine_name, memory_use
from heterps_compile.runtime.telemetry.rank_recorder import TelemetryRecorder, rank_starts
from heterps_compile.schedule.order import Phase


def events(folder: Path, rank: int):
    return [from_line(line) for line in (folder / f"rank-{rank:04d}.jsonl").read_text().splitlines()]


def test_a_step_is_added_up(tmp_path):
    told_run(tmp_path, steps=2)
    start, first, second = events(tmp_path, 2)
    assert isinstance(start, RankStart)
    assert (start.rank, start.position, start.replica, start.stages, start.machine) == (2, 1, 0, (1,), machine_name())
    assert isinstance(first, RankStep)
    assert first.forward_s == {1: pytest.approx(2 * SLOT_S)}
    assert first.backward_s == {1: pytest.approx(2 * SLOT_S)}
    assert first.micro_batches == 2
    assert first.wait_s == {"receive": pytest.approx(SLOT_S), "reduce": pytest.approx(SLOT_S)}
    assert first.received_bytes == {0: 4096, 1: 4096}
    assert (first.messages, first.samples, first.loss) == (2, 8, 1.0)
    assert first.step_s == pytest.approx(STEP_S)
    assert isinstance(second, RankStep)
    assert second.micro_batches == 2  # counted anew
    assert 0 < first.rss_bytes <= first.peak_rss_bytes


def test_a_step_has_the_learning_rates_that_it_is_stepped_with(tmp_path):
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:], "lr": torch.tensor(0.5)}], lr=0.25)
    with closing(TelemetryRecorder(tmp_path, rank_starts(0, position=0, replica=0, stages=(0,)))) as recorder:
        recorder.step_done(0, 1, StepResult(), 0.0, 1.0)
        recorder.measures.append(partial(measure_rates, optimizer))
        recorder.step_done(1, 1, StepResult(), 1.0, 2.0)
        optimizer.param_groups[0]["lr"] = float("nan")
        recorder.step_done(2, 1, StepResult(), 2.0, 3.0)
    rates = [step.learning_rates for step in events(tmp_path, 0)[1:]]
    assert rates == [(), (0.25, 0.5), (pytest.approx(float("nan"), nan_ok=True), 0.5)]


def test_waiting_inside_an_action_is_no_computation(tmp_path):
    with closing(TelemetryRecorder(tmp_path, rank_starts(0, position=0, replica=0, stages=(0,)))) as recorder:
        told = Recorders([recorder])
        told.waited(0, "receive", 0.0, 1.0)
        told.begin(0, 0, 0, Phase.FORWARD)
        told.waited(0, "pull", 1.1, 1.4)
        told.message(0, 2, 0, 8, 0.2, 1.4)  # rows that were asked for ahead: under way for longer than waited for
        told.end(0, 0, 0, Phase.FORWARD, 1.0, 2.0)
        recorder.step_done(0, 1, StepResult(), 0.0, 2.0)
    step = events(tmp_path, 0)[1]
    assert isinstance(step, RankStep)
    assert step.forward_s == {0: pytest.approx(0.7)}
    assert step.wait_s == {"receive": 1.0, "pull": pytest.approx(0.3)}


def test_traced_steps_are_told_one_by_one(tmp_path):
    told_run(tmp_path, steps=3, trace_steps=range(1, 2))
    spans = [event for event in events(tmp_path, 0) if isinstance(event, RankSpans)]
    assert [step.step for step in spans] == [1]
    began_s = 100 + PACE_S
    assert spans[0].actions == (
        Ran(0, 0, "forward", began_s, began_s + SLOT_S),
        Ran(0, 0, "backward", began_s + 4 * SLOT_S, began_s + 5 * SLOT_S),
    )
    assert spans[0].messages == (Received(2, 4096, began_s + SLOT_S, began_s + 4 * SLOT_S, before=1),)
    assert [wait.what for wait in spans[0].waits] == ["receive", "reduce"]
    assert spans[0].waits[0] == Waited("receive", began_s + SLOT_S, began_s + 4 * SLOT_S)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"'.*file/rank-0000.jsonl'"):
        TelemetryRecorder(tmp_path / "file", rank_starts(0, position=0, replica=0, stages=(0,)))


def test_memory_of_a_gpu_is_that_of_its_tensors(monkeypatch):
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda index: 100 + index)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda index: 200 + index)
    use = memory_use(gpu_index=1)
    assert (use.gpu_bytes, use.peak_gpu_bytes) == (101, 201)


def test_the_machine_has_one_name_in_all_its_processes():
    script = "from heterps_compile.runtime.telemetry.process_memory import machine_name; print(machine_name())"
    other = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert other.strip() == machine_name() != ""


def test_clones_of_a_machine_are_told_apart_by_their_names(monkeypatch):
    names = []
    for node in ("worker-1", "worker-2"):
        monkeypatch.setattr("platform.node", lambda node=node: node)
        names.append(machine_name())
    assert names[0] != names[1]


class Late:
    """Losses of a step that come when they are let."""

    def __init__(self, loss: float) -> None:
        self.loss, self.are_known = loss, False

    def means(self) -> tuple[float, dict[str, float]]:
        assert self.are_known, "waited for"
        return self.loss, {"click": self.loss}


def test_a_step_is_told_once_its_losses_are_there_and_in_its_turn(tmp_path):
    first, second = Late(0.5), Late(0.25)
    with closing(TelemetryRecorder(tmp_path, rank_starts(0, position=0, replica=0, stages=(0,)))) as recorder:
        recorder.step_done(0, 1, StepResult(late=first), 0.0, 1.0)
        recorder.step_done(1, 1, StepResult(late=second), 1.0, 2.0)
        second.are_known = True
        recorder.step_done(2, 1, StepResult(loss=0.125), 2.0, 3.0)
        assert len(events(tmp_path, 0)) == 1  # the start
        first.are_known = True
        recorder.step_done(3, 1, StepResult(late=Late(0.0)), 3.0, 4.0)
        told = [(step.step, step.loss, dict(step.losses)) for step in events(tmp_path, 0)[1:]]
        assert told == [(0, 0.5, {"click": 0.5}), (1, 0.25, {"click": 0.25}), (2, 0.125, {})]
    *_, last = events(tmp_path, 0)
    assert (last.step, last.loss) == (3, None), "a run that ended before its losses came tells the step all the same"
