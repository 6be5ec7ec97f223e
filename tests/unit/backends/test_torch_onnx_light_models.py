"""The nine real models inside the ``onnx`` package, in three torch stages, give what ONNX Runtime gives."""

from pathlib import Path

import pytest
import torch
from light_models import NAMES, randomized
from staged_onnx import by_rounding, cut_evenly, largest_difference, run_whole

from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.backends.torch.from_onnx import constants_of, convert_model
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.runtime.in_process import run_stages

BACKEND = TorchBackend()
QUICK = ("squeezenet",)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_a_light_model_in_three_stages_in_memory_and_written(name: str, tmp_path: Path) -> None:
    model = randomized(name, seed=0)
    graph = import_onnx(model)
    partition = cut_evenly(graph, 3)
    inputs = BACKEND.example_inputs(graph, seed=1)
    whole = run_whole(model, inputs)
    near = by_rounding(model, inputs, whole)
    stages = BACKEND.build(graph, partition)
    weights = {item.name for item in model.graph.initializer}
    assert {key for stage in stages for key in stage.state_dict()} <= weights
    files = BACKEND.write(graph, stages, partition.stages, tmp_path)
    for made in (stages, BACKEND.read(tmp_path, files, partition.stages)):
        with torch.no_grad():
            values = run_stages(partition.stages, made, inputs, graph.outputs)
        assert largest_difference([values[n].numpy() for n in graph.outputs], whole) < near


def test_gradients_of_a_real_model_in_three_stages_are_those_of_the_whole() -> None:
    graph = import_onnx(randomized("squeezenet", seed=2))
    partition = cut_evenly(graph, 3)
    inputs = BACKEND.example_inputs(graph, seed=3)
    whole = convert_model(graph.source.model, constants_of(graph), outputs=graph.outputs)
    stages = BACKEND.build(graph, partition)
    logits = graph.outputs[-1]
    whole(*inputs.values())[-1].square().mean().backward()
    run_stages(partition.stages, stages, inputs, graph.outputs)[logits].square().mean().backward()
    staged = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
    assert len(staged) == 52
    for name, parameter in whole.named_parameters():
        assert parameter.grad is not None
        scale = parameter.grad.abs().max()
        assert scale > 0
        assert (staged[name].grad - parameter.grad).abs().max() <= 1e-6 * scale
