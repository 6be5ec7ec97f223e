"""Pipelines whose stages are written by hand: what no model of a front end would make."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from plans import PLAN
from torch import Tensor, nn
from torch.nn import functional

from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions

BATCH = 12
MICRO_BATCHES = 6


class HandMade(nn.Module):
    """A stage out of a function of its own parameters and buffers, and the values it takes.

    Attributes:
        inputs: Names of the values it takes.
        outputs: Names of the values it gives.
    """

    def __init__(self, inputs: str, outputs: str, function: Callable[..., tuple[Any, ...]]) -> None:
        super().__init__()
        self.inputs, self.outputs, self.function = tuple(inputs.split()), tuple(outputs.split()), function
        torch.manual_seed(len(outputs))
        self.weight = nn.Parameter(torch.randn(4, 4) / 2)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, *values: Any) -> tuple[Any, ...]:
        return self.function(self, *values)


def plan_of(stages: Sequence[HandMade], graph_outputs: str) -> Plan:
    planned = tuple(
        PlannedStage(
            index, "cpu", (f"layer{index}",), stage.inputs, stage.outputs, backend="torch", replicas=1, compute_s=1.0
        )
        for index, stage in enumerate(stages)
    )
    return replace(
        PLAN,
        graph_inputs=("x", "ids"),
        graph_outputs=tuple(graph_outputs.split()),
        stages=planned,
        batch=BATCH,
        signature='{"kind": "arrays"}',
        replicated=(),
    )


def data_of(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "x": torch.randn(BATCH, 4, generator=generator),
        "ids": torch.randint(0, 4, (BATCH,), generator=generator),
        "label": torch.randn(BATCH, generator=generator),
    }


def reader(step: int, asked: list[tuple[int, tuple[str, ...]]]) -> Callable[[int, Sequence[str]], Mapping[str, Tensor]]:
    """Read the data of a step, and keep what was asked for."""
    columns, size = data_of(step), BATCH // MICRO_BATCHES

    def read(micro_batch: int, names: Sequence[str]) -> Mapping[str, Tensor]:
        asked.append((micro_batch, tuple(names)))
        part = {name: value[micro_batch * size : (micro_batch + 1) * size] for name, value in columns.items()}
        return part if tuple(names) == ("*",) else {name: part[name] for name in names}

    return read


def linear_stage() -> HandMade:
    """Return a stage whose gradients do not depend on its weights, under :func:`linear_loss`."""
    return HandMade("x", "y", lambda stage, x: (x @ stage.weight,))


def linear_loss(outputs: Sequence[Any], columns: dict[str, Tensor]) -> Tensor:
    return (outputs[0].sum(1) * columns["label"]).mean()


def stepped_on_all(steps: int, rate: float) -> Tensor:
    """Return the weights of :func:`linear_stage` after the gradients of all micro-batches of some steps."""
    stage = linear_stage()
    weight = stage.weight.detach().clone()
    for step in range(steps):
        for i in range(MICRO_BATCHES):
            columns = dict(reader(step, [])(i, ("*",)))
            stage.weight.grad = None
            linear_loss(stage(columns["x"]), columns).backward()
            assert stage.weight.grad is not None
            weight -= rate * stage.weight.grad / MICRO_BATCHES
    return weight


def engine_of(  # noqa: PLR0917 - what a test says of a run
    rank: int,
    stages: Sequence[HandMade],
    graph_outputs: str,
    widths: Sequence[int],
    loss: Any,
    schedule: str = "1f1b",
    **options: Any,
) -> Engine:
    """Return the engine of a rank; the stages are made anew on every rank, the same everywhere."""
    plan = plan_of(stages, graph_outputs)
    if options.pop("recompute", False):
        plan = replace(plan, stages=tuple(replace(stage, recompute=True) for stage in plan.stages))
    layout = make_layout(
        plan,
        training=loss is not None,
        replicas=widths,
        step=StepShape(schedule=schedule, micro_batches=MICRO_BATCHES, batch=BATCH),
    )
    own = {index: stages[index] for index in layout.stages_of(rank)}
    of_rank = {name: options.pop(name) for name in ("recorder", "hooks", "device") if name in options}
    return Engine(RankParts(plan, layout, rank, own, tied={}, **of_rank), StepOptions(loss, **options))


def looking_up_stages() -> list[HandMade]:
    """Return two stages, of which the first has sparse gradients."""

    def looks_up(stage: HandMade, ids: Tensor) -> tuple[Any, ...]:
        return (functional.embedding(ids, stage.weight, sparse=True),)

    return [HandMade("ids", "a", looks_up), HandMade("a", "y", lambda stage, a: (a @ stage.weight,))]


def largest_relative_difference(pairs: Iterable[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Return the largest difference of lists of numbers, each over the largest number of the second list."""
    return max(max(abs(a - b) for a, b in zip(*pair, strict=True)) / (max(map(abs, pair[1])) or 1) for pair in pairs)
