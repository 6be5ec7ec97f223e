"""Models that PyTorch exported to ONNX run as torch stages and give ONNX Runtime's outputs, at any batch."""

import contextlib
import io
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from staged_onnx import cut_evenly, largest_difference, run_whole
from torch import Tensor, nn
from torch_models import Built, bert, gpt2, llama, vit

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


def first_of(build: Callable[[], Built], *shape: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model, _, _ = build()
    options = {"use_cache": False} if build in (gpt2, llama) else {}
    return First(model, **options), (torch.randn(shape) if len(shape) == 4 else torch.randint(0, 100, shape),)


MODELS = {build.__name__: partial(first_of, build, 2, 8) for build in (bert, gpt2, llama)}
MODELS |= {"vit": partial(first_of, vit, 2, 3, 32, 32), **EXAMPLES}


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
