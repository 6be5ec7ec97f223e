"""Ordinary library models as their users call them, small, with random weights: `tools/library_table.py` tries each.

Nothing is switched off for our sake: caches, output classes and attention are as the library has them. Those that a
model's own package cannot build here are no part of the table.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from real_models import DEEPCTR, REAL_MODELS, RealModel

_TEXT = {"vocab_size": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_WIDE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_BERT = {**_TEXT, **_WIDE, "max_position_embeddings": 64}
_LLAMA = {**_TEXT, **_WIDE, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
_BART = {
    **_TEXT, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
}  # fmt: skip
_IMAGE = {**_WIDE, "image_size": 32, "patch_size": 8}
_T5 = {
    **_TEXT, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0,
}  # fmt: skip
_EXPERTS = {**_LLAMA, "num_experts_per_tok": 2}


def _ids(batch: int = 2, length: int = 8) -> torch.Tensor:
    return torch.randint(3, 100, (batch, length))


def _text() -> dict[str, Any]:
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, 6:] = 0
    return {"input_ids": _ids(), "attention_mask": mask}


def _both() -> dict[str, Any]:
    return {"input_ids": _ids(), "decoder_input_ids": _ids(length=5)}


def _pixels(size: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def _image_and_text() -> dict[str, Any]:
    return {**_text(), **_pixels()}


def _boxes() -> dict[str, Any]:
    return {**_text(), "bbox": torch.randint(0, 50, (2, 8, 4)).sort(-1).values[..., [0, 1, 2, 3]]}


def _wave() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 800)}


_AUDIO = {
    **_WIDE, "vocab_size": 32, "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_HIERARCHY = {"num_channels": 3, "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]}
_VISION_TEXT = {
    "text_config": {**_BERT, "projection_dim": 16},
    "vision_config": {**_IMAGE, "projection_dim": 16},
    "projection_dim": 16,
}

Row = tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]
# name, class of the model, configuration, call
TRANSFORMERS: tuple[Row, ...] = (
    ("BERT", "BertForSequenceClassification", _BERT, _text),
    ("BERT, masked words", "BertForMaskedLM", _BERT, _text),
    ("RoBERTa", "RobertaForMaskedLM", {**_BERT, "max_position_embeddings": 80}, _text),
    (
        "DistilBERT",
        "DistilBertForSequenceClassification",
        {**_TEXT, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
        _text,
    ),
    ("ALBERT", "AlbertForMaskedLM", {**_BERT, "embedding_size": 16}, _text),
    ("ELECTRA", "ElectraForPreTraining", {**_BERT, "embedding_size": 16}, _text),
    ("DeBERTa", "DebertaModel", {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, _text),
    (
        "DeBERTa v2",
        "DebertaV2ForSequenceClassification",
        {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        _text,
    ),
    ("MPNet", "MPNetForMaskedLM", _BERT, _text),
    ("MobileBERT", "MobileBertModel", {**_BERT, "intra_bottleneck_size": 32, "embedding_size": 32}, _text),
    ("ConvBERT", "ConvBertModel", {**_BERT, "embedding_size": 32}, _text),
    (
        "FNet",
        "FNetModel",
        {**_TEXT, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        lambda: {"input_ids": _ids()},
    ),
    ("CamemBERT", "CamembertForMaskedLM", {**_BERT, "max_position_embeddings": 80}, _text),
    ("XLM-RoBERTa", "XLMRobertaForTokenClassification", {**_BERT, "max_position_embeddings": 80}, _text),
    ("XLNet", "XLNetModel", {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, _text),
    ("Longformer", "LongformerModel", {**_BERT, "attention_window": 4, "max_position_embeddings": 80}, _text),
    ("BigBird", "BigBirdModel", {**_BERT, "attention_type": "original_full"}, _text),
    (
        "ModernBERT",
        "ModernBertForMaskedLM",
        {**_BERT, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2},
        _text,
    ),
    (
        "Funnel",
        "FunnelModel",
        {"vocab_size": 100, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64},
        _text,
    ),
    ("GPT-2", "GPT2LMHeadModel", {**_TEXT, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, _text),
    (
        "GPT-Neo",
        "GPTNeoForCausalLM",
        {
            **_TEXT,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 64,
        },
        _text,
    ),
    (
        "GPT-J",
        "GPTJForCausalLM",
        {**_TEXT, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
        _text,
    ),
    ("GPT-NeoX", "GPTNeoXForCausalLM", _BERT, _text),
    (
        "OPT",
        "OPTForCausalLM",
        {
            **_TEXT,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "word_embed_proj_dim": 32,
            "max_position_embeddings": 64,
        },
        _text,
    ),
    ("BLOOM", "BloomForCausalLM", {**_TEXT, "hidden_size": 32, "n_layer": 2, "n_head": 4}, _text),
    (
        "Falcon",
        "FalconForCausalLM",
        {**_TEXT, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        _text,
    ),
    ("Llama", "LlamaForCausalLM", _LLAMA, _text),
    ("Llama, classifier", "LlamaForSequenceClassification", _LLAMA, _text),
    ("Mistral", "MistralForCausalLM", {**_LLAMA, "sliding_window": 4}, _text),
    ("Gemma", "GemmaForCausalLM", _LLAMA, _text),
    ("Gemma 2", "Gemma2ForCausalLM", {**_LLAMA, "sliding_window": 4, "query_pre_attn_scalar": 8}, _text),
    ("Gemma 3", "Gemma3ForCausalLM", {**_LLAMA, "sliding_window": 4, "query_pre_attn_scalar": 8}, _text),
    ("Qwen2", "Qwen2ForCausalLM", _LLAMA, _text),
    ("Qwen3", "Qwen3ForCausalLM", _LLAMA, _text),
    ("Qwen3-MoE", "Qwen3MoeForCausalLM", {**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 16}, _text),
    ("Mixtral", "MixtralForCausalLM", {**_EXPERTS, "num_local_experts": 4}, _text),
    ("OLMo 2", "Olmo2ForCausalLM", _LLAMA, _text),
    ("Granite", "GraniteForCausalLM", _LLAMA, _text),
    ("Cohere", "CohereForCausalLM", _LLAMA, _text),
    ("StableLM", "StableLmForCausalLM", _LLAMA, _text),
    ("StarCoder 2", "Starcoder2ForCausalLM", _LLAMA, _text),
    ("Phi", "PhiForCausalLM", {**_BERT, "partial_rotary_factor": 0.5}, _text),
    ("Phi-3", "Phi3ForCausalLM", {**_LLAMA, "pad_token_id": 0}, _text),
    ("SmolLM 3", "SmolLM3ForCausalLM", _LLAMA, _text),
    (
        "Mamba",
        "MambaForCausalLM",
        {**_TEXT, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        lambda: {"input_ids": _ids()},
    ),
    (
        "Mamba 2",
        "Mamba2ForCausalLM",
        {
            **_TEXT,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 4,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 4,
        },
        lambda: {"input_ids": _ids()},
    ),
    ("T5", "T5ForConditionalGeneration", _T5, _both),
    ("T5, encoder", "T5EncoderModel", _T5, _text),
    ("mT5", "MT5ForConditionalGeneration", _T5, _both),
    (
        "LongT5",
        "LongT5ForConditionalGeneration",
        _T5,
        lambda: {**_both(), "attention_mask": torch.ones(2, 8, dtype=torch.long)},
    ),
    ("BART", "BartForConditionalGeneration", _BART, _both),
    ("mBART", "MBartForConditionalGeneration", _BART, _both),
    ("Pegasus", "PegasusForConditionalGeneration", _BART, _both),
    ("Marian", "MarianMTModel", _BART, _both),
    ("M2M-100", "M2M100ForConditionalGeneration", _BART, _both),
    ("Blenderbot", "BlenderbotForConditionalGeneration", _BART, _both),
    (
        "Whisper",
        "WhisperForConditionalGeneration",
        {**_BART, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 16},
        lambda: {"input_features": torch.randn(2, 16, 40), "decoder_input_ids": _ids(length=5)},
    ),
    ("Wav2Vec2", "Wav2Vec2ForCTC", _AUDIO, _wave),
    ("HuBERT", "HubertModel", _AUDIO, _wave),
    ("WavLM", "WavLMModel", _AUDIO, _wave),
    (
        "AST",
        "ASTForAudioClassification",
        {**_WIDE, "patch_size": 4, "max_length": 24, "num_mel_bins": 16, "frequency_stride": 4, "time_stride": 4},
        lambda: {"input_values": torch.randn(2, 24, 16)},
    ),
    ("ViT", "ViTForImageClassification", _IMAGE, _pixels),
    ("DeiT", "DeiTForImageClassification", _IMAGE, _pixels),
    ("BEiT", "BeitForImageClassification", _IMAGE, _pixels),
    ("DINOv2", "Dinov2Model", _IMAGE, _pixels),
    ("ViT-MSN", "ViTMSNModel", _IMAGE, _pixels),
    (
        "Swin",
        "SwinForImageClassification",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
        _pixels,
    ),
    (
        "Swin v2",
        "Swinv2Model",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
        _pixels,
    ),
    (
        "ConvNeXt",
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        _pixels,
    ),
    ("ConvNeXt v2", "ConvNextV2Model", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, _pixels),
    ("ResNet", "ResNetForImageClassification", _HIERARCHY, _pixels),
    ("RegNet", "RegNetForImageClassification", {**_HIERARCHY, "groups_width": 8}, _pixels),
    ("MobileNet v1", "MobileNetV1ForImageClassification", {"depth_multiplier": 0.25}, _pixels),
    ("MobileNet v2", "MobileNetV2ForImageClassification", {"depth_multiplier": 0.35}, _pixels),
    (
        "MobileViT",
        "MobileViTModel",
        {
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 24, 32, 40, 48],
            "num_attention_heads": 2,
            "image_size": 64,
        },
        lambda: _pixels(64),
    ),
    (
        "EfficientNet",
        "EfficientNetForImageClassification",
        {
            "width_coefficient": 0.25,
            "depth_coefficient": 0.3,
            "hidden_dim": 320,
            "image_size": 32,
            "initializer_range": 0.5,
        },
        _pixels,
    ),
    (
        "SegFormer",
        "SegformerForSemanticSegmentation",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        _pixels,
    ),
    ("PoolFormer", "PoolFormerModel", {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}, _pixels),
    (
        "PVT",
        "PvtModel",
        {
            "image_size": 64,
            "hidden_sizes": [8, 16, 16, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 4],
        },
        lambda: _pixels(64),
    ),
    ("YOLOS", "YolosForObjectDetection", {**_IMAGE, "image_size": [32, 32], "num_detection_tokens": 5}, _pixels),
    ("CLIP", "CLIPModel", _VISION_TEXT, _image_and_text),
    (
        "SigLIP",
        "SiglipModel",
        {"text_config": {**_BERT, "projection_size": 32}, "vision_config": _IMAGE},
        _image_and_text,
    ),
    (
        "BLIP",
        "BlipForImageTextRetrieval",
        {"text_config": {**_BERT, "encoder_hidden_size": 32}, "vision_config": _IMAGE, "image_text_hidden_size": 16},
        _image_and_text,
    ),
    ("ViLT", "ViltModel", {**_BERT, "image_size": 32, "patch_size": 8}, _image_and_text),
    ("LayoutLM", "LayoutLMForTokenClassification", {**_BERT, "max_2d_position_embeddings": 64}, _boxes),
    (
        "Time series transformer",
        "TimeSeriesTransformerModel",
        {
            "prediction_length": 4,
            "context_length": 8,
            "lags_sequence": [1, 2],
            "num_time_features": 2,
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_ffn_dim": 16,
            "decoder_ffn_dim": 16,
        },
        lambda: {
            "past_values": torch.rand(2, 10),
            "past_time_features": torch.rand(2, 10, 2),
            "past_observed_mask": torch.ones(2, 10),
            "future_values": torch.rand(2, 4),
            "future_time_features": torch.rand(2, 4, 2),
        },
    ),
    (
        "PatchTST",
        "PatchTSTForPrediction",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "ffn_dim": 16,
            "num_hidden_layers": 1,
            "prediction_length": 4,
        },
        lambda: {"past_values": torch.rand(2, 16, 2)},
    ),
    (
        "Decision transformer",
        "DecisionTransformerModel",
        {"state_dim": 5, "act_dim": 3, "hidden_size": 32, "n_layer": 2, "n_head": 4, "max_ep_len": 64},
        lambda: {
            "states": torch.randn(2, 4, 5),
            "actions": torch.randn(2, 4, 3),
            "rewards": torch.randn(2, 4, 1),
            "returns_to_go": torch.randn(2, 4, 1),
            "timesteps": torch.arange(4).repeat(2, 1),
            "attention_mask": torch.ones(2, 4, dtype=torch.long),
        },
    ),
    (
        "DETR",
        "DetrForObjectDetection",
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "num_queries": 5,
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "backbone_config": {"model_type": "resnet", **_HIERARCHY, "out_features": ["stage2"]},
        },
        lambda: _pixels(64),
    ),
    (
        "RT-DETR",
        "RTDetrForObjectDetection",
        {
            "d_model": 32,
            "encoder_hidden_dim": 32,
            "encoder_in_channels": [16, 32, 32],
            "feat_strides": [8, 16, 32],
            "num_queries": 10,
            "decoder_layers": 1,
            "encoder_layers": 1,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "decoder_attention_heads": 4,
            "encoder_attention_heads": 4,
            "decoder_in_channels": [32, 32, 32],
            "num_denoising": 0,
            "backbone_config": {
                "model_type": "rt_detr_resnet",
                "embedding_size": 8,
                "hidden_sizes": [8, 16, 32, 32],
                "depths": [1, 1, 1, 1],
                "layer_type": "basic",
                "out_features": ["stage2", "stage3", "stage4"],
            },
        },
        lambda: _pixels(64),
    ),
)


def _transformer(name: str, settings: Mapping[str, Any], call: Callable[[], dict[str, Any]]) -> RealModel:
    import transformers  # noqa: PLC0415 - seconds, and only here

    kind: Any = getattr(transformers, name)
    torch.manual_seed(0)
    config = kind.config_class(**settings)
    model, keywords = kind(config).eval(), call()
    _settle(model, keywords)
    return RealModel(model, (), keywords)


def _settle(model: nn.Module, keywords: Mapping[str, Any]) -> None:
    """Give batch norms the statistics of the call: with those of a new model, random weights shrink all values to 0."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train().momentum = 1.0
    with torch.no_grad():
        model(**keywords)
    for norm, momentum in zip(norms, before, strict=True):
        norm.eval().momentum = momentum


class _Recurrent(nn.Module):
    """An embedding, a recurrent layer and a head, as tutorials write it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(100, 16), layer, nn.Linear(32, 4)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, Any]:
        made, state = self.layer(self.table(ids))
        return self.head(made[:, -1]), state


def _recurrent(kind: str) -> RealModel:
    torch.manual_seed(0)
    layer: nn.Module = getattr(nn, kind)(16, 32, 2, batch_first=True)
    return RealModel(_Recurrent(layer).eval(), (_ids(),))


def _torch_transformer() -> RealModel:
    torch.manual_seed(0)
    model = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    return RealModel(model.eval(), (torch.randn(2, 8, 32), torch.randn(2, 5, 32)), {"tgt_mask": mask})


def _torch_encoder() -> RealModel:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    padding = torch.zeros(2, 8, dtype=torch.bool)
    padding[0, 6:] = True
    return RealModel(model.eval(), (torch.randn(2, 8, 32),), {"src_key_padding_mask": padding})


LIBRARY_MODELS: Mapping[str, Callable[[], RealModel]] = {
    **{name: partial(_transformer, kind, settings, call) for name, kind, settings, call in TRANSFORMERS},
    "nn.Transformer": _torch_transformer,
    "nn.TransformerEncoder": _torch_encoder,
    **{f"nn.{kind}": partial(_recurrent, kind) for kind in ("LSTM", "GRU", "RNN")},
    **{f"{name} (deepctr)": REAL_MODELS[f"{name} (deepctr)"] for name in DEEPCTR},
}
