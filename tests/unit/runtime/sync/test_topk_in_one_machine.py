"""``topk`` where a plan counts with one machine: a run sums whole gradients there too, and says so."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from plans import PLAN
from torch import Tensor, nn

from heterps_compile.runtime.launch.machines_of_ranks import machine_notes
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.planned_machines import planned_sizes
from heterps_compile.runtime.sync.contract import RESIDUAL, Flat, Shared
from heterps_compile.runtime.sync.top_k import TopK
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup
from heterps_compile.sync_rules.topk import TopK as Rule

ASKED = Rule(0.25)


class Counting:
    """The group of one of two ranks whose other one has the same; counts what a ring sends."""

    ranks = (0, 1)

    def __init__(self) -> None:
        self.sent_bytes = 0

    def sum(self, tensor: Tensor) -> Any:
        self.sent_bytes += 2 * tensor.numel() * tensor.element_size()  # 2 (k - 1) S of both
        tensor.mul_(2)
        return SimpleNamespace(wait=lambda: None)


def test_whole_gradients_are_summed_with_what_was_kept_and_bytes_are_those_of_the_plan():
    group, parameter = Counting(), nn.Parameter(torch.zeros(8))
    shared = Shared(group, 0, {"w": parameter}, 0.5, is_one_machine=True)  # type: ignore[arg-type]
    rule = TopK(shared, ASKED)
    rule.load_state({f"{RESIDUAL}:w": torch.ones(8)})
    flat = Flat(torch.arange(8.0), ("w",), (torch.Size([8]),))
    rule.prepare([flat])
    rule.after_backward([flat], 1.0)
    rule.finish()
    rule.after_step(0, is_skipped=False)
    assert flat.tensor.tolist() == [2 * (one + 1.0) for one in range(8)]
    assert rule.state() == {}
    buffers, inside = (FlatBuffer(8),), Network(1e-9, units_per_machine=2)
    assert group.sent_bytes == ASKED.exchange(SyncGroup(2, buffers, buffers, network=inside)).sent_bytes


def plan_of(units_per_machine: int) -> Any:
    devices = tuple(replace(device, units_per_machine=units_per_machine) for device in PLAN.devices)
    stages = tuple(replace(stage, backend="torch") for stage in PLAN.stages)
    return replace(PLAN, devices=devices, stages=stages)


def test_what_is_told_is_that_of_the_machines_that_a_plan_counts_with():
    shape = StepShape(schedule="1f1b", micro_batches=4, batch=64)
    for units, told in ((8, ["2", "2"]), (1, [])):
        plan = plan_of(units)
        layout = make_layout(plan, training=True, replicas=(2, 2), step=shape)
        prepared: Any = SimpleNamespace(layout=layout, plan=plan, sync=(ASKED, ASKED))
        notes = list(machine_notes(prepared, ()))
        assert [note.split()[1] for note in notes] == told
        for note in notes:
            assert "stand on one machine, as the plan counts: topk(density=0.25) sums whole gradients inside it" in note
        assert len(planned_sizes(plan, 0, 2)) == (1 if units == 8 else 2)
