"""Library models as they come: caches, experts and masks that no graph can hold are switched off, and told."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import heterps_compile
from heterps_compile.errors import InputError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.frontends.torch_library import traceable_settings

IDS = torch.randint(3, 90, (2, 6), generator=torch.Generator().manual_seed(0))


class MemoryCache:
    """What a library's forward keeps."""

    def __init__(self, kept):
        self.kept = kept


@dataclass
class Settings:
    use_cache: bool = True


class Decoder(nn.Module):
    def __init__(self, settings=None):
        super().__init__()
        self.config = settings or Settings()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, use_cache=None):
        keeps = self.config.use_cache if use_cache is None else use_cache
        made = self.layer(x)
        return {"hidden": made, "cache": MemoryCache(made) if keeps else None}


def cache_notes(graph):
    return [note for note in graph.source.notes if "cache" in note]


def test_a_model_with_a_cache_is_read_without_and_told():
    model = Decoder()
    graph = import_torch(model, (torch.ones(2, 4),))
    assert len(graph.outputs) == 1
    assert cache_notes(graph) == [
        "Decoder keeps and returns a cache of past keys and values where use_cache is not False: its stages compute "
        "without one, the same outputs, and return none"
    ]


def test_a_cache_that_is_asked_for_is_left_out_of_the_result():
    graph = import_torch(Decoder(), (torch.ones(2, 4),), {"use_cache": True})
    assert (len(graph.outputs), len(cache_notes(graph))) == (1, 1)


def test_a_model_that_keeps_no_cache_has_no_note():
    assert cache_notes(import_torch(Decoder(Settings(use_cache=False)), (torch.ones(2, 4),))) == []


def test_the_model_stays_as_it_is():
    model = Decoder()
    compiled = heterps_compile.compile(model, (torch.ones(2, 4),), method="greedy")
    assert (model.config.use_cache, "forward" in vars(model)) == (True, False)
    assert isinstance(model(torch.ones(2, 4))["cache"], MemoryCache)
    assert torch.equal(compiled.run(torch.ones(2, 4))["hidden"], model(torch.ones(2, 4))["hidden"])


def test_settings_and_a_forward_of_its_own_come_back_after_an_error():
    model = Decoder()
    own = vars(model)["forward"] = model.forward
    found = []
    with pytest.raises(ZeroDivisionError), traceable_settings(model):
        found.append((model.config.use_cache, 1 / (len(found))))
    assert (model.config.use_cache, vars(model)["forward"]) == (True, own)


class Encoder(Decoder):
    def forward(self, x):
        return {"hidden": self.layer(x)}


def test_a_model_that_keeps_no_cache_whatever_its_settings_has_no_note():
    assert cache_notes(import_torch(Encoder(), (torch.ones(2, 4),))) == []


def sized(**more):
    return {
        "vocab_size": 100, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, **more,
    }  # fmt: skip


def from_transformers(kind, **settings):
    import transformers  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    model = getattr(transformers, kind)
    return model(model.config_class(**settings)).eval()


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Gemma3ForCausalLM", sized(sliding_window=4, query_pre_attn_scalar=8)),
        ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 100}),
        ("MambaForCausalLM", {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4, "vocab_size": 100}),
    ],
)
def test_decoders_of_transformers_compile_without_a_flag(kind, settings):
    model = from_transformers(kind, **settings)
    compiled = heterps_compile.compile(model, (IDS,), method="greedy")
    np.testing.assert_allclose(
        compiled.run(IDS).logits.detach().numpy(), model(IDS).logits.detach().numpy(), rtol=1e-5, atol=1e-5
    )
    assert any("cache" in note for note in compiled.plan.notes)


def test_whisper_compiles_without_a_flag():
    model = from_transformers(
        "WhisperForConditionalGeneration", d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=100, num_mel_bins=8,
        pad_token_id=0, max_source_positions=10, max_target_positions=8, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    call = {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": IDS[:, :4]}
    compiled = heterps_compile.compile(model, example_kwargs=call, method="greedy")
    torch.testing.assert_close(compiled.run(**call).logits, model(**call).logits)


def test_a_mixture_of_experts_is_written(tmp_path):
    settings = sized(num_experts=4, moe_intermediate_size=16, num_experts_per_tok=2)
    model = from_transformers("Qwen3MoeForCausalLM", **settings)
    compiled = heterps_compile.compile(model, (IDS,), method="greedy")
    assert any("batched_mm" in note for note in compiled.plan.notes)
    compiled.save(tmp_path / "out")
    torch.testing.assert_close(heterps_compile.load(tmp_path / "out").run(IDS).logits, model(IDS).logits)
    assert model.config._experts_implementation == "grouped_mm"


def test_a_mask_of_nn_transformer_is_an_input_like_any():
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    x, mask = torch.randn(2, 4, 8), nn.Transformer.generate_square_subsequent_mask(4)
    compiled = heterps_compile.compile(model, (x, x), example_kwargs={"tgt_mask": mask}, method="greedy")
    other = torch.zeros(4, 4)
    for given in (mask, other):
        torch.testing.assert_close(compiled.run(x, x, tgt_mask=given), model(x, x, tgt_mask=given))
    assert not torch.equal(compiled.run(x, x, tgt_mask=mask), compiled.run(x, x, tgt_mask=other))


def test_the_kernel_of_an_encoder_for_evaluation_is_told():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    padding = torch.tensor([[False, False, True], [False, False, False]])
    graph = import_torch(encoder, (torch.randn(2, 3, 8),), {"src_key_padding_mask": padding})
    assert [note for note in graph.source.notes if "padded positions" in note] != []


class Difference(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, y):
        return self.layer(x) - y


def test_one_tensor_given_twice_is_two_inputs():
    model, x, y = Difference(), torch.randn(4, 4), torch.randn(4, 4)
    compiled = heterps_compile.compile(model, (x, x), method="greedy")
    torch.testing.assert_close(compiled.run(x, y), model(x, y))


def test_a_parameter_given_as_an_input_is_an_input():
    model, x = Difference(), torch.randn(4, 4)
    compiled = heterps_compile.compile(model, (x, model.layer.weight), method="greedy")
    torch.testing.assert_close(compiled.run(x, x), model(x, x))


class Capturing(nn.Module):
    """Puts hooks on its layers when it is first called, and remembers that it did, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.captures = False
        self.found = []

    def forward(self, x):
        if not self.captures:
            self.captures = True
            for layer in self.layers:
                layer.register_forward_hook(lambda _layer, _given, made: self.found.append(made))
        self.found.clear()
        for layer in self.layers:
            x = layer(x)
        return tuple(self.found)


def test_a_model_that_hooks_itself_when_first_called_is_left_as_it_was():
    model, x = Capturing(), torch.randn(2, 4)
    compiled = heterps_compile.compile(model, (x,), method="greedy")
    assert (model.captures, [len(layer._forward_hooks) for layer in model.layers]) == (False, [0, 0])
    assert len(model(x)) == 2
    torch.testing.assert_close(compiled.run(x), model(x))


def test_segformer_runs_as_before():
    model = from_transformers(
        "SegformerForSemanticSegmentation", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16],
        patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16,
    )  # fmt: skip
    call = {"pixel_values": torch.randn(1, 3, 32, 32)}
    compiled = heterps_compile.compile(model, example_kwargs=call, method="greedy")
    torch.testing.assert_close(compiled.run(**call).logits, model(**call).logits)


class HoldsCompiled(nn.Module):
    """A module with a part that torch.compile wraps, and one compiled in place."""

    def __init__(self):
        super().__init__()
        self.first = torch.compile(nn.Linear(4, 4), backend="eager")
        self.last = nn.Linear(4, 2)
        self.last.compile(backend="eager")

    def forward(self, x):
        return self.last(self.first(x).relu())


def test_compiled_modules_are_read_without_their_compiler():
    model, x = HoldsCompiled().eval(), torch.ones(3, 4)
    compiled = heterps_compile.compile(torch.compile(model, backend="eager"), (x,))
    names = [name for stage in compiled.stages for name, _ in stage.named_parameters()]
    assert names == list(model.state_dict())
    assert compiled.plan.verification.max_rel == 0
    assert any("torch.compile" in note for note in compiled.plan.notes)
    assert not any("torch.compile" in note for note in heterps_compile.compile(model, (x,)).plan.notes)
    hooked = torch.compile(model, backend="eager")
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match=r"1 hook"):
        import_torch(hooked, (x,))
