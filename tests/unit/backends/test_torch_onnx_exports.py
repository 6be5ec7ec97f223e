"""Models that PyTorch exported to ONNX run as torch stages and give ONNX Runtime's outputs, at any batch."""

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from staged_onnx import cut_evenly, largest_difference, run_whole
from torch import Tensor, nn

from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.examples import EXAMPLES
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.runtime.in_process import run_stages

pytest.importorskip("onnxscript", reason="torch.onnx.export(dynamo=True) needs it")
pytestmark = pytest.mark.slow  # other models, exported anew

BACKEND = TorchBackend()


class First(nn.Module):
    """A transformer of token ids (or images) that returns its hidden states alone."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.model(x, **self.options)[0]
        return hidden


def export(module: nn.Module, args: tuple[Tensor, ...]) -> onnx.ModelProto:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # the exporter's own
        shapes = tuple({0: torch.export.Dim("batch", min=1, max=4096)} for _ in args)
        program = torch.onnx.export(module.eval(), args, dynamo=True, dynamic_shapes=shapes, verbose=False)
    assert program is not None
    return program.model_proto


def bert() -> tuple[nn.Module, tuple[Tensor, ...]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    return First(transformers.BertModel(config)), (torch.randint(0, 100, (2, 8)),)


def gpt2() -> tuple[nn.Module, tuple[Tensor, ...]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100, bos_token_id=0, eos_token_id=0)
    return First(transformers.GPT2Model(config), use_cache=False), (torch.randint(0, 100, (2, 8)),)


def llama() -> tuple[nn.Module, tuple[Tensor, ...]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=100,
    )  # fmt: skip
    return First(transformers.LlamaModel(config), use_cache=False), (torch.randint(0, 100, (2, 8)),)


def vit() -> tuple[nn.Module, tuple[Tensor, ...]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    return First(transformers.ViTModel(config)), (torch.randn(2, 3, 32, 32),)


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama, "vit": vit, **EXAMPLES}


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_in_three_stages_in_memory_and_written(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = export(*MODELS[name]())
    graph = import_onnx(model, batch=2)
    partition = cut_evenly(graph, 3)
    stages = BACKEND.build(graph, partition)
    files = BACKEND.write(graph, stages, partition.stages, tmp_path)
    read = BACKEND.read(tmp_path, files, partition.stages)
    for batch in (2, 5):
        inputs = BACKEND.example_inputs(import_onnx(model, batch=batch), seed=batch)
        whole = run_whole(model, inputs)
        for made in (stages, read):
            with torch.no_grad():
                values = run_stages(partition.stages, made, inputs, graph.outputs)
            assert largest_difference([values[n].numpy() for n in graph.outputs], whole) < 1e-4
