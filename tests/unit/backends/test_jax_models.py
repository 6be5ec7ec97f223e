"""Real models as stages of jax: what they give, and that they train as the whole model does."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from light_models import NAMES, randomized
from staged_onnx import cut_evenly, largest_difference, run_whole
from torch_models import REAL, cut_into, resnet50

jax = pytest.importorskip("jax")
pytest.importorskip("onnxscript", reason="torch.onnx.export(dynamo=True) needs it")
from jax import numpy as jnp
from staged_jax import BACKEND, by_storage, chained, run, run_staged

from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph

LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # 244, 575 and 349 MB of weights

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript"),
]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REAL, "resnet50"])
def test_three_stages_of_a_torch_model_give_its_outputs(name: str, tmp_path: Path) -> None:
    model, args, kwargs = REAL[name]() if name in REAL else resnet50()
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


def exported(name: str, path: Path, dynamic: Mapping[str, Any]) -> tuple[Graph, list[Any], Mapping[str, Any]]:
    """Export a model to an ONNX file with dynamic dimensions; give its graph, its outputs, and its inputs."""
    model, args, kwargs = REAL[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(
            model.eval(), args, kwargs=kwargs, dynamo=True, dynamic_shapes=dynamic or None, verbose=False
        ).save(path)
    bindings = {"batch": 2, "seq": 8} if dynamic else {}
    graph = import_onnx(path, batch=bindings.pop("batch", None), shapes=bindings)
    inputs = BACKEND.example_inputs(graph, seed=1)
    given = {key: torch.from_numpy(array) for key, array in inputs.items()}
    with torch.no_grad():
        returned = model(**given) if kwargs else model(*given.values())
    results = returned.to_tuple() if hasattr(returned, "to_tuple") else (returned,)
    return graph, [value.numpy() for value in results], inputs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        ("ctrdnn", {}),
        ("bert", {key: {0: "batch", 1: "seq"} for key in ("input_ids", "attention_mask")}),
        ("vit", {}),
    ],
)
def test_three_stages_of_an_exported_model_give_its_outputs(
    name: str, dynamic: Mapping[str, Any], tmp_path: Path
) -> None:
    graph, whole, inputs = exported(name, tmp_path / "model.onnx", dynamic)
    for count in (1, 3):
        assert largest_difference(run_staged(graph, cut_evenly(graph, count), inputs), whole) < 1e-5


def loss_of(outputs: Sequence[Any]) -> Any:
    return sum((value**2).mean() for value in outputs)


@pytest.mark.slow
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
            assert np.abs(summed[storage] - gradient.numpy()).max() <= 2e-6 * largest
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


@pytest.mark.slow
def test_gradients_of_three_stages_are_those_of_the_unsplit_conversion() -> None:
    graph = import_onnx(randomized("squeezenet", seed=3))
    inputs = BACKEND.example_inputs(graph, seed=1)
    found = []
    for count in (1, 3):
        partition = cut_evenly(graph, count)
        stages = BACKEND.build(graph, partition)
        forward = chained(graph, partition, stages, inputs)
        gradients = jax.jit(jax.grad(lambda weights, forward=forward: loss_of(forward(weights))))
        found.append(by_storage(graph, gradients([stage.trained for stage in stages])))
    whole, staged = found
    assert whole.keys() == staged.keys()
    assert len(whole) == 52
    for name, gradient in whole.items():
        assert np.abs(staged[name] - gradient).max() <= 1e-6 * np.abs(gradient).max()
