"""Read the stages of a written folder for a rank: tensors in, a tuple of tensors out, whatever runs them.

Stages of torch and of jax are ``nn.Module`` and train. Those of ONNX Runtime are wrapped: they take and give tensors,
and only infer.

Left out: the check of the files' hashes (``plan/folder.py``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from heterps_compile.backends.borders import as_tensor
from heterps_compile.backends.contract import Stage
from heterps_compile.backends.find import find_backend
from heterps_compile.backends.tied import tied_in_folder
from heterps_compile.plan.plan import Plan

Tied = Mapping[str, tuple[tuple[int, str], ...]]
"""For every tensor that several stages hold, by its name in the plan: those stages, and the name each has for it."""


class RunnableStage(Protocol):
    """One stage as a rank runs it.

    Attributes:
        inputs: Names of the values it takes, in order.
        outputs: Names of the values it gives, in order.
    """

    @property
    def inputs(self) -> tuple[str, ...]: ...  # noqa: D102 - above

    @property
    def outputs(self) -> tuple[str, ...]: ...  # noqa: D102

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run it on tensors in the order of ``inputs``; a value may be a number or None as well."""
        ...


class WrappedStage:
    """A stage of another runtime, between tensors.

    Attributes:
        stage: What runs.
        inputs: Names of the values it takes, in order.
        outputs: Names of the values it gives, in order.
        device: Where its outputs are put.
    """

    def __init__(self, stage: Stage, device: torch.device) -> None:
        self.stage = stage
        self.inputs = tuple(stage.inputs)
        self.outputs = tuple(stage.outputs)
        self.device = device

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the stage."""
        results = self.stage(*values)
        return tuple(self._tensor(value, name) for value, name in zip(results, self.outputs, strict=True))

    def _tensor(self, value: Any, name: str) -> Any:
        if value is None or isinstance(value, (bool, int, float)):
            return value
        tensor: Tensor = as_tensor(value, name)
        return tensor.to(self.device)


def read_stage(folder: Path, plan: Plan, index: int, device: torch.device) -> RunnableStage:
    """Read one stage of a written folder.

    Args:
        folder: The folder, its hashes checked.
        plan: Its plan.
        index: Of the stage.
        device: Where its parameters are put, and where it runs.

    Raises:
        BackendError: naming stage and file.
    """
    planned = plan.stages[index]
    backend = find_backend(planned.backend).on([planned])
    files = [artifact.file for artifact in plan.artifacts[index]]
    with backend.threads(torch.get_num_threads()):  # a runtime with threads of its own takes every core otherwise
        stage = backend.read(folder, [files], [planned])[0]
    made: Any = backend.as_module(stage, device)
    runnable: RunnableStage = made
    return runnable if isinstance(made, nn.Module) else WrappedStage(made, device)


def read_tied(folder: Path, plan: Plan) -> Tied:
    """Return the trained parameters that several stages of a written folder hold; reads no weights.

    Raises:
        BackendError: naming stage and file.
    """
    return tied_in_folder(folder, [[artifact.file for artifact in files] for files in plan.artifacts])
