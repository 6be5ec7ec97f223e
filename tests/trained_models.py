"""Models to train in one piece and in stages: small, with a batch that is free, a loss and an optimiser.

No dropout: what is random is tested by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import heterps_compile
from heterps_compile.examples.ctrdnn import ctrdnn

Columns = Mapping[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """A model and how it is trained.

    Attributes:
        build: Gives the module.
        columns: Gives seeded columns of so many samples: graph inputs and targets.
        inputs: Names of the columns that are inputs, in order; the names of the module's parameters.
        loss: Mean over a micro-batch, from what the module returns and the columns.
        optimizer: Of parameters.
        micro_batch: Samples in a micro-batch.
    """

    build: Callable[[], nn.Module]
    columns: Callable[[int], dict[str, Tensor]]
    inputs: tuple[str, ...]
    loss: Callable[[Any, Columns], Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    micro_batch: int = 2


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.003)


def _ctrdnn() -> nn.Module:
    return ctrdnn(batch=4, fields=4, rows=40, width=8, hidden=(32, 32, 16, 16))[0]


def _clicks(samples: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "sparse": torch.randint(0, 40, (samples, 4), generator=generator),
        "dense": torch.randn(samples, 13, generator=generator),
        "click": torch.randint(0, 2, (samples,), generator=generator).float(),
    }


def _click_loss(logits: Any, columns: Columns) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, columns["click"].to(logits.dtype))


class Logits(nn.Module):
    """A model of ``transformers`` without the structure it returns, so that ranks need not import that library."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs).logits
        return logits


def _gpt2(width: int, layers: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(2)
    config = GPT2Config(
        n_embd=width, n_layer=layers, n_head=2, vocab_size=80, n_positions=16, use_cache=False, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return Logits(GPT2LMHeadModel(config))


def _tokens(samples: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {"inputs": torch.randint(0, 80, (samples, 10), generator=generator)}


def _next_token_loss(outputs: Any, columns: Columns) -> Tensor:
    return functional.cross_entropy(outputs[:, :-1].flatten(0, 1), columns["inputs"][:, 1:].flatten())


def _resnet50(width: int) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(4)
    sizes = [width * 4, width * 8, width * 16, width * 32]
    return Logits(ResNetForImageClassification(ResNetConfig(embedding_size=width, hidden_sizes=sizes, num_labels=10)))


def _images(samples: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "inputs": torch.randn(samples, 3, 64, 64, generator=generator),
        "label": torch.randint(0, 10, (samples,), generator=generator),
    }


def _label_loss(outputs: Any, columns: Columns) -> Tensor:
    return functional.cross_entropy(outputs, columns["label"])


class SkipNet(nn.Module):
    """Skips over many layers, a value that many layers read, two outputs of which one is made early."""

    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.first = nn.Linear(6, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.head = nn.Linear(16, 3)
        self.early = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first = torch.tanh(self.first(x))
        early = self.early(first)
        hidden, skipped = first, first
        for place, layer in enumerate(self.layers):
            hidden = torch.tanh(layer(hidden))
            if place % 4 == 3:  # a skip over four layers, and one from the very first
                hidden, skipped = hidden + 0.5 * skipped + 0.25 * first, hidden
        return {"early": early, "logits": self.head(hidden)}


def _points(samples: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {
        "x": torch.randn(samples, 6, generator=generator),
        "label": torch.randint(0, 3, (samples,), generator=generator),
    }


class ConvNet(nn.Module):
    """Convolutions with batch norms, and a skip from the first to the last."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        torch.manual_seed(8)
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, 6, 3, padding=1) for channels in (2, 6, 6, 6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(4))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = hidden = torch.relu(self.norms[0](self.convolutions[0](x)))
        for convolution, norm in zip(self.convolutions[1:], self.norms[1:], strict=True):
            hidden = functional.dropout(torch.relu(norm(convolution(hidden))), self.dropout, self.training)
        logits: Tensor = self.head((hidden + first).mean((2, 3)))
        return logits


def _squares(samples: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(9)
    return {
        "x": torch.randn(samples, 2, 6, 6, generator=generator),
        "label": torch.randint(0, 3, (samples,), generator=generator),
    }


def _two_losses(outputs: Any, columns: Columns) -> Tensor:
    return functional.cross_entropy(outputs["logits"], columns["label"]) + outputs["early"].square().mean()


TRAINED: Mapping[str, Trained] = {
    "ctrdnn": Trained(_ctrdnn, _clicks, ("sparse", "dense"), _click_loss, adam),
    "gpt2": Trained(partial(_gpt2, 32, 3), _tokens, ("inputs",), _next_token_loss, sgd),
    "gpt2-wide": Trained(partial(_gpt2, 256, 4), _tokens, ("inputs",), _next_token_loss, sgd, micro_batch=16),
    "resnet50": Trained(partial(_resnet50, 64), _images, ("inputs",), _label_loss, sgd, micro_batch=4),
    "resnet50-thin": Trained(partial(_resnet50, 8), _images, ("inputs",), _label_loss, sgd, micro_batch=4),
    "skip": Trained(SkipNet, _points, ("x",), _two_losses, sgd),
    "convnet": Trained(ConvNet, _squares, ("x",), _label_loss, sgd, micro_batch=4),
    "dropping": Trained(partial(ConvNet, 0.5), _squares, ("x",), _label_loss, sgd, micro_batch=4),
}


def compile_trained(
    name: str,
    stages: int,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    backend: str | None = None,
    mix: Sequence[str] = (),
) -> None:
    """Compile a model to so many stages, for training, into a folder; ``mix`` says what each of them runs on."""
    trained = TRAINED[name]
    module = trained.build().to(dtype)
    columns = as_dtype(trained.columns(4), dtype)
    samples = torch.export.Dim("batch", min=2, max=4096)

    def compiled(backend: str | None, pins: Mapping[str, str]) -> Any:
        return heterps_compile.compile(
            module,
            (),
            example_kwargs={name: columns[name] for name in trained.inputs},
            dynamic_shapes={name: {0: samples} for name in trained.inputs},
            mode="training",
            reading="steady-state",  # cuts in the middle; for one batch alone a stage is best left empty
            method="greedy",
            backend=backend,
            pins=pins,
            min_throughput=1.0,
            min_stages=stages,
            max_stages=stages,
            verify=False,
        )

    pins: dict[str, str] = {}
    if mix:  # a device type for every backend, and the cuts of the model in torch
        types = dict(zip(sorted(set(mix)), ("cpu-core", "v100"), strict=False))
        backend = ",".join(f"{device}={one}" for one, device in types.items())
        for stage, one in zip(compiled(None, {}).plan.stages, mix, strict=True):
            pins |= dict.fromkeys(stage.layers, types[one])
    found = compiled(backend, pins)
    assert not mix or tuple(stage.backend for stage in found.plan.stages) == tuple(mix)
    found.save(folder, force=True)


def as_dtype(columns: Columns, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in columns.items()}
