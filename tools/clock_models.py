"""The models of the benchmark against the clock: built at any batch, their batch free, with a loss to train by."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from heterps_compile.api import read_model
from heterps_compile.examples import EXAMPLES
from heterps_compile.ir.graph import Graph

Built = tuple[nn.Module, dict[str, Tensor]]
"""A model and inputs for it, by the names of its arguments."""


def ctrdnn() -> Built:
    model, (sparse, dense) = EXAMPLES["ctrdnn"](batch=4, rows=2000, hidden=(1024, 512, 256))
    return model, {"sparse": sparse, "dense": dense}


def matchnet() -> Built:
    sizes: dict[str, Any] = {"users": 5000, "items": 5000, "hidden": (512, 512, 256)}
    model, (users, items) = EXAMPLES["matchnet"](batch=4, **sizes)
    return model, {"user_ids": users, "item_ids": items}


def mlp() -> Built:
    sizes = (256, 768, 768, 768, 768, 64)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers), {"input": torch.randn(4, sizes[0])}


class Block(nn.Module):
    """A residual block, as in ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(self.first(x)))


def resnet() -> Built:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        *(Block(32) for _ in range(3)),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        *(Block(64) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    return model, {"input": torch.randn(4, 3, 16, 16)}


class First(nn.Module):
    """Gives the first of what a model gives, as a plain tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids)[0]


def bert() -> Built:
    from transformers import BertConfig, BertModel  # noqa: PLC0415 - seconds, and only here

    config = BertConfig(
        hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, vocab_size=1000
    )
    return First(BertModel(config)), {"ids": torch.randint(0, 1000, (4, 32))}


def gpt2() -> Built:
    from transformers import GPT2Config, GPT2Model  # noqa: PLC0415 - seconds, and only here

    config = GPT2Config(
        n_embd=128,
        n_layer=4,
        n_head=4,
        vocab_size=1000,
        n_positions=64,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return First(GPT2Model(config)), {"ids": torch.randint(0, 1000, (4, 32))}


class Wire(nn.Module):
    """Two layers that do next to nothing, with a value of some width between them: what running a pipeline costs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(16, width), nn.Linear(width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.second(self.first(ids))


def narrow() -> Built:
    return Wire(16), {"ids": torch.randint(0, 16, (4,))}


def wide() -> Built:
    return Wire(1 << 14), {"ids": torch.randint(0, 16, (4,))}


def busy() -> Built:
    """Layers that keep both of two processes at work, so that they feel one another."""
    layers = [part for _ in range(8) for part in (nn.Linear(512, 512), nn.ReLU())]
    return nn.Sequential(*layers), {"input": torch.randn(4, 512)}


MODELS: Mapping[str, Callable[[], Built]] = {
    "ctrdnn": ctrdnn,
    "matchnet": matchnet,
    "mlp": mlp,
    "resnet": resnet,
    "bert": bert,
    "gpt2": gpt2,
    "narrow": narrow,
    "wide": wide,
    "busy": busy,
}


def read(name: str, *, training: bool, batch: int | None = None) -> Graph:
    """Read a model, its weights the same every time, its batch free."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = MODELS[name]()
    free = {argument: {0: torch.export.Dim("batch", min=1, max=1 << 20)} for argument in inputs}
    graph: Graph = read_model(model.train(training), (), inputs, batch=batch, shapes={}, dynamic_shapes=free)
    return graph


def loss(outputs: Any, _batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean square of whatever a model returns."""
    tensors = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
    tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return torch.stack([tensor.square().mean() for tensor in tensors if isinstance(tensor, Tensor)]).sum()
