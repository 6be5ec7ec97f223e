"""Which execution provider of ONNX Runtime runs a stage, by the kind of device it is planned for.

Left out: which device of that kind (the first that the provider finds).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from heterps_compile.backends.contract import StageDevice
from heterps_compile.frontends.onnx_session import CPU, available_providers

PROVIDERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cpu": (CPU,),
        "gpu": (
            "CUDAExecutionProvider",
            "ROCMExecutionProvider",
            "MIGraphXExecutionProvider",
            "DmlExecutionProvider",
            "CoreMLExecutionProvider",
        ),
        "npu": ("QNNExecutionProvider", "VitisAIExecutionProvider", "OpenVINOExecutionProvider"),
    }
)
"""Providers for each kind of device, the one to prefer first."""


def choose_providers(stages: Sequence[StageDevice]) -> tuple[dict[int, str], tuple[str, ...]]:
    """Return the provider of every stage by its index, and a note for each kind of device that has none installed."""
    installed = available_providers()
    chosen: dict[int, str] = {}
    stranded: dict[str, list[int]] = {}
    for stage in stages:
        fitting = [provider for provider in PROVIDERS.get(stage.kind, ()) if provider in installed]
        if not fitting:
            stranded.setdefault(stage.kind, []).append(stage.index)
        chosen[stage.index] = fitting[0] if fitting else CPU
    notes = tuple(
        f"{_stages(indices)} planned for {kind}s, and the ONNX Runtime installed here has no provider of one (it has "
        f"{', '.join(installed)}): here on the CPU instead"
        for kind, indices in stranded.items()
    )
    return chosen, notes


def _stages(indices: Sequence[int]) -> str:
    return f"stage {indices[0]} is" if len(indices) == 1 else f"stages {', '.join(map(str, indices))} are"
