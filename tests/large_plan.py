"""A plan of many layers, with all that a report tells of it; nothing of it is compiled."""

from dataclasses import replace

import numpy as np
from plans import PLAN

from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.cost.memory import MemoryParts
from heterps_compile.plan.planned_schedule import Schedule
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.request import STEADY
from heterps_compile.report.findings import Findings
from heterps_compile.report.rows import LayerRow

HOSTILE = (
    "</script><script>document.title='broken'</script>",
    '"><img src=x onerror="document.title=\'broken\'">',
    "<!--<script>",
    "two\nlines\r\x00\x1b[31m",
    "\u202eright to left",
    "{{ 7 * 7 }}{% raw %}",
    "' onfocus='document.title=1' x='",
    "x" * 10_000,
)


def large_findings(layers: int, stages: int, *, training: bool = False) -> Findings:
    """Return a plan that could be read from a file; its stages hold about as many layers each, on three devices."""
    cuts = np.linspace(0, layers, stages + 1).astype(int)
    names = [f"encoder.{i // 12}.block.{i % 12}.linear" for i in range(layers)]
    devices = (("v100", "gpu"), ("cpu-core", "cpu"), ("a100", "gpu"))
    planned = tuple(
        PlannedStage(
            index=s,
            device=devices[s % 3][0],
            kind=devices[s % 3][1],
            layers=tuple(names[cuts[s] : cuts[s + 1]]),
            inputs=(f"x{s}",),
            outputs=(f"x{s + 1}",),
            backend="torch",
            replicas=1 + s % 2,
            compute_s=0.002 + 0.0001 * (s % 5),
            data_s=0.001,
            received_bytes=4096 if s else 0,
            sent_bytes=4096 if s < stages - 1 else 0,
            memory=MemoryParts(10_000_000, 10_000_000, 20_000_000, 8_000_000 * (1 + s % 4)),
            price_per_hour=2.42 * (1 + s % 2),
        )
        for s in range(stages)
    )
    cost = LayerCost(2_000_000, 400_000, 400_000, 4096, 4096, 410_000, 3, "compute", "4.9 FLOP/B >= 3 (ridge)")
    rows = [
        LayerRow(name, "gemm", stage.index, stage.device, 100_000, replace(cost, label="data") if i % 7 == 0 else cost)
        for stage in planned
        for i, name in enumerate(stage.layers)
    ]
    throughput = PLAN.batch / max(stage.time_s for stage in planned)
    value = sum(stage.price_per_hour for stage in planned) / 3600 / throughput * 1e6
    plan = replace(
        PLAN,
        model="large",
        graph_inputs=("x0",),
        graph_outputs=(f"x{stages}",),
        backend="torch",
        throughput_samples_per_s=throughput,
        value=value,
        bound=value * 0.95,
        bound_of_all_orders=value * 0.95,
        devices=(),
        fingerprints={},
        unused_devices=(),
        replicated=(),
        request=replace(PLAN.request, mode="training", reading=STEADY) if training else PLAN.request,
        stages=planned,
        schedule=Schedule("1f1b" if training else "gpipe", 16, "the shortest step", 0.05),
    )
    return Findings(plan, rows)


def hostile_findings() -> Findings:
    """Return a plan in which every name there is comes from an enemy."""
    names = HOSTILE
    stages = tuple(
        replace(stage, layers=layers, device=device)
        for stage, layers, device in zip(PLAN.stages, (names[:4], names[4:]), names[:2], strict=True)
    )
    plan = replace(PLAN, model=names[0], stages=stages, notes=names, unused_devices=names[2:3], replicated=names)
    cost = LayerCost(1, 1, 1, 1, 1, 1, 1, "data", names[0])
    rows = [LayerRow(n, names[1], s.index, s.device, 1, cost) for s in stages for n in s.layers]
    return Findings(plan, rows)
