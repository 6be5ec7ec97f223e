"""Real models as stages of jax: what they give, and that they train as the whole model does."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import numpy as jnp
from light_models import NAMES, randomized
from staged_jax import BACKEND, by_storage, chained, run, run_staged
from staged_onnx import cut_evenly, largest_difference, run_whole
from torch_models import REAL, Built, cut_into, resnet50

from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition


def llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - seconds, and only here

    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=100, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), (), {"input_ids": torch.randint(0, 100, (2, 8))}


def t5() -> Built:
    from transformers import T5Config, T5Model  # noqa: PLC0415 - seconds, and only here

    config = T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    ids = torch.randint(0, 100, (2, 8))
    return T5Model(config), (), {"input_ids": ids, "decoder_input_ids": ids[:, :6]}


def whisper() -> Built:
    from transformers import WhisperConfig, WhisperModel  # noqa: PLC0415 - seconds, and only here

    config = WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=100, num_mel_bins=8, max_source_positions=16,
        max_target_positions=16, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    return WhisperModel(config), (), {
        "input_features": torch.randn(2, 8, 32), "decoder_input_ids": torch.randint(0, 100, (2, 6))
    }  # fmt: skip


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


@pytest.mark.slow  # other models, compiled whole and in stages
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


@pytest.mark.slow  # other models, compiled whole and in stages
@pytest.mark.parametrize("name", ["ctrdnn", "gpt2", "resnet", "squeezenet"])
def test_three_stages_train_as_the_unsplit_conversion_does(name: str) -> None:
    """Loss and every gradient over five steps, and the weights after them."""
    if name in NAMES:
        graph, cut = import_onnx(randomized(name, seed=3)), cut_evenly
    else:
        model, args, kwargs = REAL[name]()
        graph, cut = import_torch(model.eval(), args, kwargs), cut_into
    inputs = {key: jnp.asarray(value) for key, value in BACKEND.example_inputs(graph, seed=1).items()}
    (whole_losses, whole_gradients, whole), (losses, gradients, staged) = (
        train(graph, cut(graph, count), inputs) for count in (1, 3)
    )
    assert losses == pytest.approx(whole_losses, rel=1e-6)
    assert len(losses) == 5
    for ours, theirs in ((gradients, whole_gradients), (staged, whole)):
        assert ours.keys() == theirs.keys()
        largest = max(np.abs(array).max() for array in theirs.values())
        for key, array in theirs.items():
            assert np.abs(ours[key] - array).max() <= 1e-6 * largest


def train(graph: Graph, partition: Partition, inputs: Mapping[str, Any]) -> tuple[list[float], Any, Any]:
    """Train for five steps; give the losses, the first gradients and the last weights, one of each array."""
    stages = BACKEND.build(graph, partition)
    forward = chained(graph, partition, stages, inputs)
    step = jax.jit(jax.value_and_grad(lambda weights: loss_of(forward(weights))))
    weights, losses, first = [stage.trained for stage in stages], [], None
    for _ in range(5):
        loss, parts = step(weights)
        summed = by_storage(graph, parts)
        first = first or summed
        losses.append(float(loss))
        weights = [
            {
                key: array - 0.01 * summed[graph.parameters[key].storage].astype(np.float32)
                for key, array in part.items()
            }
            for part in weights
        ]
    once = {graph.parameters[key].storage: np.asarray(array) for part in weights for key, array in part.items()}
    return losses, first, once
