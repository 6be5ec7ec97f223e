"""Real models as stages of jax: what they give, and that they train as the whole model does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import numpy as jnp
from light_models import NAMES, randomized
from staged_jax import BACKEND, by_storage, chained, run
from staged_onnx import cut_evenly, largest_difference, run_whole
from torch_models import REAL, cut_into, llama, resnet50, t5, whisper

from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.torch_fx import import_torch

MODELS = {**REAL, "resnet50": resnet50, "llama": llama, "t5": t5, "whisper": whisper}
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # 244, 575 and 349 MB of weights

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript"),
]


@pytest.mark.slow  # other models, compiled whole and in stages
@pytest.mark.parametrize("name", NAMES)
def test_three_stages_give_the_logits_onnx_runtime_gives(name: str, tmp_path: Path) -> None:
    model = randomized(name, seed=3)
    graph = import_onnx(model)
    inputs = BACKEND.example_inputs(graph, seed=1)
    whole = run_whole(model, inputs)
    assert whole[-1].std() > 0.1  # the logits differ, so that equality says something
    partition = cut_evenly(graph, 3)
    stages = BACKEND.build(graph, partition)
    assert largest_difference(run(graph, partition, stages, inputs), whole) < 2e-4
    if name not in LARGE:
        files = BACKEND.write(graph, stages, partition.stages, tmp_path)
        read_back = BACKEND.read(tmp_path, files, partition.stages)
        assert largest_difference(run(graph, partition, read_back, inputs), whole) < 2e-4


@pytest.mark.slow  # other models, compiled whole and in stages
@pytest.mark.parametrize("name", MODELS)
def test_three_stages_of_a_torch_model_give_its_outputs(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    graph = import_torch(model.eval(), args, kwargs)
    inputs = BACKEND.example_inputs(graph, seed=1)
    with torch.no_grad():
        whole = [value.numpy() for value in BACKEND.reference(graph)(inputs)]
    partition = cut_into(graph, 3)
    stages = BACKEND.build(graph, partition)
    assert largest_difference(run(graph, partition, stages, inputs), whole) < 1e-5
    files = BACKEND.write(graph, stages, partition.stages, tmp_path)
    read_back = BACKEND.read(tmp_path, files, partition.stages)
    assert largest_difference(run(graph, partition, read_back, inputs), whole) < 1e-5


@pytest.mark.slow  # other models, compiled whole and in stages
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_a_torch_model_of_any_batch_runs_at_another(name: str) -> None:
    """Its size goes from stage to stage as a number that shapes are made of."""
    model, args, kwargs = REAL[name]()
    batch = {key: {0: torch.export.Dim("batch")} for key in kwargs}
    graph = import_torch(model.eval(), args, kwargs, dynamic_shapes=batch)
    partition = cut_into(graph, 3)
    stages = BACKEND.build(graph, partition)
    assert any(stage.known_inputs for stage in stages)
    for size in (2, 3):
        given = BACKEND.example_inputs(graph, seed=1)
        inputs = {key: torch.cat([value, value])[:size] for key, value in given.items()}
        with torch.no_grad():
            whole = [value.numpy() for value in BACKEND.reference(graph)(inputs)]
        assert largest_difference(run(graph, partition, stages, inputs), whole) < 1e-5


def loss_of(outputs: Sequence[Any]) -> Any:
    return sum((value**2).mean() for value in outputs)


@pytest.mark.slow  # other models, compiled whole and in stages
@pytest.mark.parametrize("name", ["ctrdnn", "gpt2", "resnet"])
def test_gradients_and_weights_after_five_steps_are_pytorchs(name: str) -> None:
    """GPT-2 ties its embedding to its head: the gradients of the two names are added up."""
    model, args, kwargs = REAL[name]()
    graph = import_torch(model.eval(), args, kwargs)
    inputs = BACKEND.example_inputs(graph, seed=1)
    partition = cut_into(graph, 3)
    stages = BACKEND.build(graph, partition)
    forward = chained(graph, partition, stages, {key: jnp.asarray(value) for key, value in inputs.items()})
    step = jax.jit(jax.value_and_grad(lambda weights: loss_of(forward(weights))))
    weights = [stage.trained for stage in stages]
    reference = BACKEND.reference(graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(5):
        value, gradients = step(weights)
        optimizer.zero_grad()
        expected = loss_of(reference(inputs))
        expected.backward()
        assert float(value) == pytest.approx(expected.item(), rel=1e-5)
        summed = by_storage(graph, gradients)
        theirs = {graph.parameters[n].storage: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert summed.keys() == theirs.keys()
        largest = max(float(gradient.abs().max()) for gradient in theirs.values())
        for storage, gradient in theirs.items():
            assert np.abs(summed[storage] - gradient.numpy()).max() <= 5e-5 * largest  # PyTorch and XLA round otherwise
        weights = [
            {
                key: array - 0.05 * summed[graph.parameters[key].storage].astype(np.float32)
                for key, array in part.items()
            }
            for part in weights
        ]
        optimizer.step()
    ours = {key: np.asarray(array) for part in weights for key, array in part.items()}
    for key, parameter in model.named_parameters():
        if key in ours:
            np.testing.assert_allclose(ours[key], parameter.detach().numpy(), rtol=1e-5, atol=2e-6)
