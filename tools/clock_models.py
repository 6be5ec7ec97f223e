"""The models of the benchmarks against the clock: built at any batch, their batch free, with a loss to train by."""

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


class Mobile(nn.Module):
    """Inverted residuals, as in MobileNetV2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = self._conv(3, 32, 3, stride=2)
        widths = ((32, 16, 1), (16, 24, 6), (24, 24, 6), (24, 40, 6), (40, 40, 6))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *self._conv(inside, inside * times, 1),
                *self._conv(inside * times, inside * times, 3, groups=inside * times),
                nn.Conv2d(inside * times, outside, 1),
                nn.BatchNorm2d(outside),
            )
            for inside, outside, times in widths
        )
        self.head = nn.Linear(40, 100)

    @staticmethod
    def _conv(inside: int, outside: int, size: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
        conv = nn.Conv2d(inside, outside, size, stride, padding=size // 2, groups=groups, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outside), nn.ReLU6())

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for block in self.blocks:
            made = block(x)
            x = made + x if made.shape[1] == x.shape[1] else made
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Tagger(nn.Module):
    """A recurrent tagger of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(5000, 128), nn.LSTM(128, 192, batch_first=True)
        self.head = nn.Linear(192, 64)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.words(ids))[0])
        return out


class Mixer(nn.Module):
    """Blocks of an MLP-Mixer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 192, 8, 8)
        self.tokens = nn.ModuleList(nn.Sequential(nn.Linear(36, 72), nn.GELU(), nn.Linear(72, 36)) for _ in range(3))
        self.mixes = nn.ModuleList(nn.Sequential(nn.Linear(192, 768), nn.GELU(), nn.Linear(768, 192)) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(192) for _ in range(6))

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        for i, (token, mix) in enumerate(zip(self.tokens, self.mixes, strict=True)):
            x = x + token(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + mix(self.norms[2 * i + 1](x))
        out: Tensor = x.mean(1)
        return out


class Dense(nn.Module):
    """Convolutions whose results are put side by side, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(32 + 16 * i), nn.ReLU(), nn.Conv2d(32 + 16 * i, 16, 3, padding=1))
            for i in range(5)
        )
        self.head = nn.Linear(112, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for block in self.blocks:
            x = torch.cat([x, block(x)], 1)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def mobile() -> Built:
    return Mobile(), {"image": torch.randn(4, 3, 64, 64)}


def tagger() -> Built:
    return Tagger(), {"ids": torch.randint(0, 5000, (4, 16))}


def mixer() -> Built:
    return Mixer(), {"image": torch.randn(4, 3, 48, 48)}


def dense() -> Built:
    return Dense(), {"image": torch.randn(4, 3, 24, 24)}


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
    "mobile": mobile,
    "tagger": tagger,
    "mixer": mixer,
    "dense": dense,
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
