"""What a real pipeline tells: every action, every message, waits that fit into the step, and the loss."""

import functools
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from hand_made import BATCH, MICRO_BATCHES, HandMade, engine_of, plan_of
from ranks import run_ranks
from torch import Tensor
from trace_format import read_trace

from heterps_compile.runtime.data.prefetch import Prefetcher, Request
from heterps_compile.runtime.data.random_source import RandomColumn, RandomSource
from heterps_compile.runtime.telemetry.follow import RunFollower
from heterps_compile.runtime.telemetry.measured_trace import measured_trace
from heterps_compile.runtime.telemetry.rank_recorder import TelemetryRecorder, rank_starts

STEPS = 3
WIDTHS = (2, 1)
SIZE = BATCH // MICRO_BATCHES
COLUMNS = ("x", "label")


def stages() -> list[HandMade]:
    def layer(stage: HandMade, x: Tensor) -> tuple[Any, ...]:
        return (torch.tanh(x @ stage.weight),)

    return [HandMade("x", "hidden", layer), HandMade("hidden", "y", layer)]


def loss(outputs: list[Any], columns: Mapping[str, Tensor]) -> Tensor:
    return (outputs[0].sum(1) - columns["label"]).square().mean()


def train(rank: int, folder: Path) -> list[float]:
    position, replica = ((0, 0), (0, 1), (1, 0))[rank]
    source = RandomSource([RandomColumn("x", "float32", (4,)), RandomColumn("label", "float32")])
    mine = range(replica, MICRO_BATCHES, WIDTHS[position])
    requests = [Request(step * BATCH + m * SIZE, SIZE, COLUMNS) for step in range(STEPS) for m in mine]
    with (
        closing(
            TelemetryRecorder(
                folder,
                rank_starts(rank, position=position, replica=replica, stages=(position,)),
                trace_steps=range(1, 2),
            )
        ) as recorder,
        closing(Prefetcher(source, requests)) as ahead,
    ):
        engine = engine_of(rank, stages(), "y", WIDTHS, loss, recorder=recorder)

        def read(step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Tensor]:
            return ahead.read(step * BATCH + micro_batch * SIZE, SIZE, COLUMNS)

        losses = [engine.train_step(step, functools.partial(read, step)).loss for step in range(STEPS)]
        engine.finish()
    return [value for value in losses if value is not None]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("told")
    losses = run_ranks(train, sum(WIDTHS), folder)
    follower = RunFollower(folder, sum(WIDTHS))
    return follower, follower.poll(), losses[2]


def test_every_step_is_told_by_every_rank(told):
    _, reports, losses = told
    assert [report.step for report in reports] == list(range(STEPS))
    assert [report.loss for report in reports] == pytest.approx(losses)
    assert [report.samples for report in reports] == [BATCH] * STEPS
    assert [[rank.micro_batches for rank in report.ranks] for report in reports] == [[3, 3, 6]] * STEPS


def test_every_byte_between_the_stages_is_counted(told):
    _, reports, _ = told
    half = BATCH * 4 * 4 // 2  # of the batch, four floats of four bytes a sample
    assert all(report.link_bytes == {(0, 2): half, (1, 2): half, (2, 0): half, (2, 1): half} for report in reports[1:])


def test_the_trace_has_an_arrow_for_every_message(told):
    follower, _, _ = told
    plan = plan_of(stages(), "y")
    events = read_trace(measured_trace(plan, follower.starts, follower.spans))
    actions = [event for event in events if event["ph"] == "X" and event["cat"] != "wait"]
    assert len(actions) == 2 * 2 * MICRO_BATCHES
    arrows = [event["name"] for event in events if event["ph"] == "s"]
    assert sorted(arrows) == ["activations"] * MICRO_BATCHES + ["gradients"] * MICRO_BATCHES
