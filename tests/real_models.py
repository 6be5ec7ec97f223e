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
from torch_models import bert, gpt2, resnet50, vit

from heterps_compile.examples import EXAMPLES


@dataclass(frozen=True)
class RealModel:
    """A model and a call of it; ``inputs`` and ``keywords`` stay empty for an ONNX model."""

    model: Any
    inputs: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] | None = None


def _llama() -> RealModel:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100, use_cache=False,
    )  # fmt: skip
    return RealModel(LlamaForCausalLM(config), (torch.randint(0, 100, (2, 8)),))


def _t5() -> RealModel:
    from transformers import T5Config, T5ForConditionalGeneration  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    ids = torch.randint(1, 100, (2, 8))
    return RealModel(T5ForConditionalGeneration(config), (), {"input_ids": ids, "decoder_input_ids": ids[:, :5]})


def _whisper() -> RealModel:
    from transformers import WhisperConfig, WhisperForConditionalGeneration  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=100, num_mel_bins=16, max_source_positions=20,
        max_target_positions=16, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    keywords = {"input_features": torch.randn(2, 16, 40), "decoder_input_ids": torch.randint(3, 100, (2, 5))}
    return RealModel(WhisperForConditionalGeneration(config), (), keywords)


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
    "Llama": _llama,
    "T5": _t5,
    "ViT": partial(_of, vit),
    "Whisper": _whisper,
    "ResNet-50 (transformers)": partial(_of, resnet50),
    **{f"{name.upper()} (example)": partial(_example, name) for name in EXAMPLES},
    **{f"{name} (deepctr)": partial(_deepctr, name) for name in DEEPCTR},
}
