"""Which parameters of different stages are one tensor, told by stages in memory and by a folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from staged_onnx import cut_evenly, read
from torch import Tensor, nn
from torch_models import BACKEND, cut_into, gpt2

from heterps_compile.backends.jax.backend import JaxBackend
from heterps_compile.backends.tied import tied_across, tied_in_folder
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import cut_graph

HEAD_AND_EMBEDDING = {"lm_head.weight": ((0, "transformer.wte.weight"), (2, "lm_head.weight"))}


def language_model() -> Graph:
    model, args, kwargs = gpt2()
    return import_torch(model.eval(), args, kwargs)


@pytest.mark.parametrize("backend", [BACKEND, pytest.param(JaxBackend(), marks=pytest.mark.slow)], ids=["torch", "jax"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript")
def test_the_head_and_the_embedding_of_gpt_2_are_found_under_both_names(backend: Any, tmp_path: Path) -> None:
    graph = language_model()
    partition = cut_into(graph, 3)
    stages = backend.build(graph, partition)
    assert tied_across(stages) == HEAD_AND_EMBEDDING
    files = backend.write(graph, stages, partition.stages, tmp_path)
    read_back = backend.read(tmp_path, files, partition.stages)
    assert tied_across(read_back) == HEAD_AND_EMBEDDING
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()  # a folder is asked without reading a weight
    assert tied_in_folder(tmp_path, files) == HEAD_AND_EMBEDDING


def test_gradients_of_the_places_add_up_to_the_whole_models(tmp_path: Path) -> None:
    model, args, kwargs = gpt2()
    graph = import_torch(model.eval(), args, kwargs)
    partition = cut_into(graph, 3)
    files = BACKEND.write(graph, BACKEND.build(graph, partition), partition.stages, tmp_path)
    stages = BACKEND.read(tmp_path, files, partition.stages)
    values = dict(zip(graph.inputs, args, strict=True))
    for cut, stage in zip(partition.stages, stages, strict=True):
        values.update(zip(cut.outputs, stage(*(values[name] for name in cut.inputs)), strict=True))
    values[graph.outputs[0]].square().sum().backward()
    model(*args).logits.square().sum().backward()
    (places,) = tied_across(stages).values()
    summed = sum(stages[index].get_parameter(name).grad for index, name in places)
    assert (summed - model.lm_head.weight.grad).abs().max() <= 1e-6 * model.lm_head.weight.grad.abs().max()


class Thrice(nn.Module):
    """One matrix under three names, two of them in a row; a fourth matrix is alone."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.alone = (nn.Linear(4, 4, bias=False) for _ in range(4))
        self.b.weight = self.c.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.alone(self.b(self.a(x))))


def test_names_inside_one_stage_are_places_too(tmp_path: Path) -> None:
    graph = import_torch(torch.fx.symbolic_trace(Thrice()), (torch.ones(2, 4),))
    partition = cut_graph(graph, [range(2), range(2, len(graph.nodes))])
    stages = BACKEND.build(graph, partition)
    expected = {"a.weight": ((0, "a.weight"), (0, "b.weight"), (1, "c.weight"))}
    assert tied_across(stages) == expected
    assert tied_in_folder(tmp_path, BACKEND.write(graph, stages, partition.stages, tmp_path)) == expected


def test_what_one_stage_holds_alone_is_not_tied(tmp_path: Path) -> None:
    graph = import_torch(torch.fx.symbolic_trace(Thrice()), (torch.ones(2, 4),))
    partition = cut_graph(graph, [range(len(graph.nodes))])
    assert tied_across(BACKEND.build(graph, partition)) == {}


NODES = "{ a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, w) }"


@pytest.mark.parametrize("backend", [BACKEND, JaxBackend()], ids=["torch", "jax"])
def test_an_initializer_two_stages_read_is_found_in_an_onnx_model(backend: Any, tmp_path: Path) -> None:
    weights = ", ".join(f"{value / 10}" for value in range(16))
    graph = read(f"g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w = {{{weights}}}> {NODES}")
    partition = cut_evenly(graph, 3)
    stages = backend.build(graph, partition)
    expected = {"w": ((0, "w"), (2, "w"))}
    assert tied_across(stages) == expected
    assert tied_in_folder(tmp_path, backend.write(graph, stages, partition.stages, tmp_path)) == expected
