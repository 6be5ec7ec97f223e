"""Stages as modules of PyTorch that train, whatever backend built them.

Left out: ONNX Runtime, which trains nothing; sending gradients between processes (``runtime/pipeline``).
"""

from collections.abc import Sequence
from typing import Any

from .contract import Backend
from .mixed import BorderStage


def alone(stages: Sequence[Any]) -> tuple[Any, ...]:
    """Return stages without what converts the values that enter them."""
    return tuple(stage.stage if isinstance(stage, BorderStage) else stage for stage in stages)


def trained_modules(backend: Backend, stages: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the ``nn.Module`` of every stage, on the CPU; None where a stage does not train.

    Args:
        backend: That built the stages, and knows their devices.
        stages: All of them, in order.
    """
    import torch  # noqa: PLC0415 - torch only for training

    modules = []
    for own, stage in zip(backend.of_stages(len(stages)), alone(stages), strict=True):
        module = own.as_module(stage, torch.device("cpu"))
        if not isinstance(module, torch.nn.Module):
            return None
        modules.append(module)
    return tuple(modules)
