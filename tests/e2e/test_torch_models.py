"""PyTorch models end to end: the stages give what the model itself returns, in memory and loaded from their folder."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import heterps_compile
from heterps_compile.examples import EXAMPLES
from heterps_compile.frontends.results import Mapped

MODELS = ("bert", "gpt2", "vit")


def transformer(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Build a small model of random weights from its config; nothing is downloaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns of its own deprecations on import
        import transformers as hf  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    ids = torch.randint(0, 500, (4, 16))
    if name == "bert":
        config = hf.BertConfig(
            vocab_size=500, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128
        )
        return hf.BertModel(config).eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if name == "gpt2":
        config = hf.GPT2Config(vocab_size=500, n_embd=64, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=1)
        return hf.GPT2LMHeadModel(config).eval(), {"input_ids": ids, "use_cache": False}
    config = hf.ViTConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8
    )
    return hf.ViTForImageClassification(config).eval(), {"pixel_values": torch.randn(4, 3, 32, 32)}


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(found, Mapped):  # what a folder gives in place of a library's class
        assert list(found) == list(expected)
    else:
        assert type(found) is type(expected)
    ours, theirs = (torch.utils._pytree.tree_leaves(tree) for tree in (found, expected))
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize("name", MODELS)
def test_a_transformer_in_three_stages_is_the_transformer(name: str, tmp_path: Path) -> None:
    model, inputs = transformer(name)
    compiled = heterps_compile.compile(model, example_kwargs=inputs, min_stages=3, method="exact")
    assert len(compiled.stages) >= 3
    with torch.no_grad():
        expected = model(**inputs)
        staged = compiled.run(**inputs)
        assert type(staged) is type(expected)
        assert_same(staged, expected)
        compiled.save(tmp_path / "out")
        assert_same(heterps_compile.load(tmp_path / "out").run(**inputs), expected)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_papers_models_compile_and_run(name: str, tmp_path: Path) -> None:
    model, inputs = EXAMPLES[name]()
    compiled = heterps_compile.compile(model, inputs, min_stages=2, method="exact")
    with torch.no_grad():
        expected = model(*inputs)
        assert_same(compiled.run(*inputs), expected)
        compiled.save(tmp_path / "out")
        assert_same(heterps_compile.load(tmp_path / "out").run(*inputs), expected)


class Skip(nn.Module):
    """A skip over two stages, tied weights, two inputs and two outputs, and BatchNorm buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 16)
        self.third = nn.Linear(16, 16)
        self.third.weight = self.first.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = self.norm(self.first(x))
        second = torch.relu(self.second(first)) + y
        third = self.third(second)
        return third + first, second


def test_a_traced_module_keeps_its_names_ties_and_buffers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Skip().eval()
    model.norm.running_mean.uniform_()  # type: ignore[union-attr]  # a BatchNorm1d that tracks has one
    inputs = (torch.randn(8, 16), torch.randn(8, 16))
    compiled = heterps_compile.compile(fx.symbolic_trace(model), inputs, min_stages=3, method="exact")

    assert len(compiled.stages) >= 3
    assert {name for stage in compiled.stages for name in stage.state_dict()} >= set(dict(model.named_parameters()))
    expected = model(*inputs)
    assert_same(compiled.run(*inputs), expected)
    compiled.save(tmp_path / "out")
    assert_same(heterps_compile.load(tmp_path / "out").run(*inputs), expected)


def test_an_exported_program_brings_its_own_inputs() -> None:
    torch.manual_seed(0)
    model, inputs = Skip().eval(), (torch.randn(8, 16), torch.randn(8, 16))
    program = torch.export.export(model, inputs)
    compiled = heterps_compile.compile(program, min_stages=2, method="exact")
    assert_same(compiled.run(*inputs), model(*inputs))


def test_training_mode_leaves_the_users_model_as_it_was() -> None:
    torch.manual_seed(0)
    model, inputs = Skip().train(), (torch.randn(8, 16), torch.randn(8, 16))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    compiled = heterps_compile.compile(model, inputs, mode="training", min_stages=2, method="exact")
    assert compiled.plan.verification is not None
    assert model.training
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
