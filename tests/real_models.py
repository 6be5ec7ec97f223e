"""Real models by name, small, with random weights: what every backend is held against.

Nine ONNX models that ship in the ``onnx`` package, seven of ``transformers``, the four examples, and fifteen of
``deepctr-torch``, which is imported only here.
"""

import sys
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import light_models
import torch
from torch import nn
from torch_models import bert, gpt2, llama, resnet50, t5, vit, whisper

from heterps_compile.examples import EXAMPLES


@dataclass(frozen=True)
class RealModel:
    """A model and a call of it; ``inputs`` and ``keywords`` stay empty for an ONNX model."""

    model: Any
    inputs: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] | None = None


def _of(build: Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]) -> RealModel:
    return RealModel(*build())


def _example(name: str) -> RealModel:
    return RealModel(*EXAMPLES[name](batch=8))


DEEPCTR = (
    "AFM", "AFN", "AutoInt", "CCPM", "DCN", "DCNMix", "DIFM", "DeepFM", "FiBiNET", "IFM", "NFM", "ONN", "PNN", "WDL",
    "xDeepFM",
)  # fmt: skip


def _deepctr(name: str) -> RealModel:
    # its only use there asks the network for newer versions whenever the package is imported
    sys.modules.setdefault("requests", types.ModuleType("requests"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a package that we only test on
        import deepctr_torch.models  # noqa: PLC0415 - seconds, and only here
        from deepctr_torch.inputs import DenseFeat, SparseFeat  # noqa: PLC0415

    torch.manual_seed(0)
    columns: list[Any] = [SparseFeat(f"c{i}", vocabulary_size=20, embedding_dim=4) for i in range(4)]
    if name not in {"AFM", "CCPM"}:  # which take no dense features
        columns += [DenseFeat(f"d{i}", 1) for i in range(2)]
    build = getattr(deepctr_torch.models, name)
    if name in {"PNN"}:
        model = build(columns, task="binary", device="cpu")
    else:
        model = build(columns, columns, task="binary", device="cpu")
    for parameter in model.parameters():  # as they come, weights of 1e-4 make every output one half
        nn.init.normal_(parameter, std=0.5 if parameter.dim() < 2 else parameter.shape[-1] ** -0.5)
    ids = torch.randint(0, 20, (6, 4)).float()
    dense = torch.rand(6, len(columns) - 4)
    return RealModel(model.eval(), (torch.cat([ids, dense], dim=1),))


def _light(name: str) -> RealModel:
    return RealModel(light_models.randomized(name, 0))


REAL_MODELS: Mapping[str, Callable[[], RealModel]] = {
    **{name: partial(_light, name) for name in light_models.NAMES},
    "BERT": partial(_of, bert),
    "GPT-2": partial(_of, gpt2),
    "Llama": partial(_of, llama),
    "T5": partial(_of, t5),
    "ViT": partial(_of, vit),
    "Whisper": partial(_of, whisper),
    "ResNet-50 (transformers)": partial(_of, resnet50),
    **{f"{name.upper()} (example)": partial(_example, name) for name in EXAMPLES},
    **{f"{name} (deepctr)": partial(_deepctr, name) for name in DEEPCTR},
}
