"""Stages of torch, in memory and read from files, train as the unsplit model does: loss, every gradient, five steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_models import BACKEND, Built, cut_into, gpt2, run, skip_net, small_ctrdnn

from heterps_compile.backends.tied import tied_across
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph


def resnet_50() -> Built:
    """Return all 50 layers, narrower than they are sold."""
    from transformers import ResNetConfig, ResNetForImageClassification  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 24, 32, 48], depths=[3, 4, 6, 3])
    return ResNetForImageClassification(config), (), {"pixel_values": torch.randn(4, 3, 64, 64)}


def skip() -> Built:
    """Return a net with a skip over three stages, tied weights, BatchNorm and dropout."""
    module, inputs = skip_net(training=True)
    return module, inputs, {}


def loss_of(outputs: Sequence[Any]) -> Tensor:
    return sum((value**2).mean() for value in outputs if isinstance(value, Tensor))  # type: ignore[return-value]


def summed(stages: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return the gradient of every parameter, added up over the stages that hold it, under each of its names."""
    gradients = {
        name: tensor.grad.clone()
        for stage in stages
        for name, tensor in stage.state_dict(keep_vars=True).items()
        if tensor.grad is not None
    }
    for places in tied_across(stages).values():
        once = dict(reversed(places))
        total = sum(stages[index].state_dict(keep_vars=True)[name].grad for index, name in once.items())
        gradients.update({name: total for _, name in places})
    return gradients


def step_alone(graph: Graph, inputs: Mapping[str, Any], seed: int) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return loss_of(BACKEND.reference(graph)(inputs))


@pytest.mark.slow  # other models
@pytest.mark.parametrize("make", [small_ctrdnn, gpt2, skip, resnet_50])
def test_stages_read_from_files_train_as_the_unsplit_model(make: Any, tmp_path: Path) -> None:
    model, args, kwargs = make()
    graph = import_torch(model.train(), args, kwargs)
    partition = cut_into(graph, 4)
    files = BACKEND.write(graph, BACKEND.build(graph, partition), partition.stages, tmp_path)
    stages = BACKEND.read(tmp_path, files, partition.stages)
    inputs = BACKEND.example_inputs(graph, 1)
    for seed in range(5):
        for module in (model, *stages):
            module.zero_grad()
        whole = step_alone(graph, inputs, seed)
        whole.backward()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            values = run(graph, partition, stages, inputs)
        staged = loss_of([values[name] for name in graph.outputs if name in values])
        staged.backward()
        assert staged.item() == pytest.approx(whole.item(), rel=1e-6)
        gradients = summed(stages)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                off = (gradients[name] - parameter.grad).abs().max()
                assert off <= 1e-6 * parameter.grad.abs().max(), (seed, name)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(1e-3 * parameter.grad)
            for stage in stages:
                for name, parameter in stage.named_parameters():
                    parameter.sub_(1e-3 * gradients[name])
    own = model.state_dict()
    for stage in stages:
        for name, tensor in stage.state_dict().items():
            torch.testing.assert_close(tensor, own[name], rtol=1e-6, atol=1e-7)
