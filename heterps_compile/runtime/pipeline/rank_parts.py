"""What a rank of a pipeline is given by whoever runs it, and how it steps: frozen values that go into the engine.

Left out: the stages (``read_stage.py``), who listens (``recorder.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from heterps_compile.cost.precision import FULL
from heterps_compile.plan.plan import Plan
from heterps_compile.sync_rules.rule import SyncRule

from .layout import Layout
from .read_stage import RunnableStage, Tied
from .recorder import Recorder, Recorders
from .scaling import Scaling

if TYPE_CHECKING:
    from .clip_gradients import ServedGradients

ReadMicroBatch = Callable[[int, Sequence[str]], Mapping[str, Tensor]]
"""Reads one micro-batch of the step: (micro-batch, names wanted) gives tensors by name.

Names are graph inputs, or ``("*",)`` for every column there is: graph inputs, targets, and what else the loss reads.
Called once a step for every micro-batch of this rank, as it is first needed; never where nothing is wanted.
"""

Loss = Callable[[Any, Mapping[str, Tensor]], "Tensor | Mapping[str, Tensor]"]
"""Returns the mean over a micro-batch from what the model returns and its columns, or several by name.

Where samples have weights, it returns a value for each sample instead.
"""

SampleWeight = Callable[[Mapping[str, Tensor]], Tensor]
"""Returns a number of 0 or more for each sample of a micro-batch, from its columns."""

EVERYTHING = ("*",)
"""The names wanted where the loss is."""


class StepHook(Protocol):
    """What takes part in every training step of a rank."""

    def before_step(self, step: int) -> None:
        """Be called before the first action of a step."""
        ...

    def after_backward(self, step: int) -> None:
        """Be called after the last action of a step, before gradients are summed over ranks."""
        ...


@dataclass(frozen=True, slots=True)
class RankParts:
    """What one rank runs, where, and with whom.

    Attributes:
        plan: The plan.
        layout: What every rank does.
        rank: This one.
        stages: Those of ``layout.stages_of(rank)``, by index.
        tied: Parameters that several stages hold: ``read_tied(folder, plan)``.
        device: Where this rank computes.
        recorder: Is told what happens.
        hooks: Take part in every training step.
        served: Gradients on parameter servers that are clipped with the others, on the one rank that counts them.
        machine_of: The machine of every rank of the run; empty where all are on one.
    """

    plan: Plan
    layout: Layout
    rank: int
    stages: Mapping[int, RunnableStage]
    tied: Tied
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    recorder: Recorder = field(default_factory=Recorders)
    hooks: Sequence[StepHook] = ()
    served: "ServedGradients | None" = None
    machine_of: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a rank steps; the same on every rank.

    Attributes:
        loss: Of a micro-batch; needed to train.
        wire: What float32 values are sent as: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        seed: Of dropout and other random ops.
        clip_norm: Of the gradients of the whole model, at most; None for any.
        precision: In which forwards compute: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        scaling: Of losses in float16, at the beginning.
        gathers: In inference, give the graph outputs of all micro-batches on the first replica of the last stage.
        sample_weight: Of the samples, whose weighted mean is trained; None for the mean.
        sync: By which rule the replicas of every stage agree; empty for all-reduce in all of them.
        order: Which batch of data that come again a step has, by its number; None for one after the other.
    """

    loss: Loss | None = None
    wire: str = "float32"
    seed: int = 0
    clip_norm: float | None = None
    precision: str = FULL
    scaling: Scaling = field(default_factory=Scaling)
    gathers: bool = False
    sample_weight: SampleWeight | None = None
    sync: tuple[SyncRule, ...] = ()
    order: Callable[[int], int] | None = None
