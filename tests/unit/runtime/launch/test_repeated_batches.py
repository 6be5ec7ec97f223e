"""Batches that come again: which one comes when, and the memory of a table of their gradients."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from plans import PLAN
from safetensors.torch import save_file

from heterps_compile.errors import RunError
from heterps_compile.plan.plan import Artifact
from heterps_compile.runtime.data.epochs import Epochs
from heterps_compile.runtime.data.sample_source import TensorSource
from heterps_compile.runtime.launch import repeated_batches
from heterps_compile.runtime.launch.repeated_batches import order_of_batches
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.pipeline.layout import Layout, StepShape, make_layout
from heterps_compile.sync_rules.adsaga import Adsaga
from heterps_compile.sync_rules.assignment import parse_rule

BATCH = 8
RULE, OTHER = Adsaga(5), parse_rule("adasum")


def layout_of(*widths: int) -> Layout:
    shape = StepShape(schedule="1f1b", micro_batches=2, batch=BATCH)
    of_torch = replace(PLAN, stages=tuple(replace(stage, backend="torch") for stage in PLAN.stages))
    return make_layout(of_torch, training=True, replicas=widths, step=shape)


def options_of(**more: Any) -> RunOptions:
    return RunOptions(directory="m", train="t.py", **more)


def test_the_order_is_the_one_in_which_the_data_are_read():
    source = TensorSource({"x": torch.arange(5 * BATCH)})
    options = options_of(shuffle=BATCH, seed=3)
    order = order_of_batches((RULE,), options)
    assert order is not None
    epochs = Epochs(source, seed=3, window_samples=BATCH)
    for step in range(23):
        (samples,) = epochs.read(step * BATCH, BATCH, ["x"]).values()
        assert set(samples.tolist()) == set(range(order(step) * BATCH, (order(step) + 1) * BATCH))
    assert [order(step) for step in range(5)] != [order(step) for step in range(5, 10)]
    assert order_of_batches((RULE,), options_of()) is None
    assert order_of_batches((OTHER,), options) is None


def test_a_table_for_which_there_is_no_memory_is_refused_before_the_run(tmp_path, monkeypatch):
    save_file({"w": torch.zeros(10, 3), "b": torch.zeros(3)}, tmp_path / "stage-0.safetensors")
    stages = tuple(replace(stage, kind="cpu") for stage in PLAN.stages)
    plan = replace(PLAN, stages=stages, artifacts=((Artifact("stage-0.safetensors", "0" * 64),), ()))
    monkeypatch.setattr(repeated_batches, "available_bytes", lambda: 2 * 5 * 33 * 4)
    repeated_batches.refuse_large_tables((RULE, OTHER), layout_of(2, 1), plan, tmp_path)
    monkeypatch.setattr(repeated_batches, "available_bytes", lambda: 2 * 5 * 33 * 4 - 1)
    with pytest.raises(RunError) as refused:
        repeated_batches.refuse_large_tables((RULE, OTHER), layout_of(2, 1), plan, tmp_path)
    assert re.search(r"stage 0\b.*adsaga\(batches=5\).*5 x 33 x 4 bytes \(660 B\).*\b2\b", str(refused.value))
    on_gpus = replace(plan, stages=tuple(replace(stage, kind="gpu") for stage in stages))
    repeated_batches.refuse_large_tables((RULE, OTHER), layout_of(2, 1), on_gpus, tmp_path)
