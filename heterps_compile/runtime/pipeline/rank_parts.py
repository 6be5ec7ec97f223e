"""What a rank of a pipeline is given by whoever runs it: its data, its loss, and what takes part in its steps.

Left out: the stages (``read_stage.py``), and who listens (``recorder.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

ReadMicroBatch = Callable[[int, Sequence[str]], Mapping[str, Tensor]]
"""Reads one micro-batch of the step: (micro-batch, names wanted) gives tensors by name.

Names are graph inputs, or ``("*",)`` for every column there is: graph inputs, targets, and what else the loss reads.
Called once a step for every micro-batch of this rank, as it is first needed; never where nothing is wanted.
"""

Loss = Callable[[Any, Mapping[str, Tensor]], Tensor]
"""Gives a scalar from what the model returns and the columns of a micro-batch."""

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
