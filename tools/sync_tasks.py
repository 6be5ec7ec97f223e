"""Two trainings on which rules of synchronisation are compared: a day of clicks, and a small transformer.

The day is that of docs/training-day.md, with its million of samples, model and optimiser. Data are drawn from a law
with a seed, so that nothing is read. Weights and gradients are flat tensors, into which a model's parameters point: a
replica is a flat tensor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]
FIELDS, ROWS, NUMBERS = 10, 500, 4
DAY_ROWS, DAY_SAMPLES, DAY_BATCH, DAY_HELD_BACK = 5000, 1_000_000, 1000, 100_000
TOKENS, CONTEXT = 16, 16


class ClickModel(nn.Module):
    """The model of docs/training-day.md, with fewer rows unless they are asked for."""

    def __init__(self, rows: int = ROWS) -> None:
        super().__init__()
        self.rows = nn.Embedding(FIELDS * rows, 8)
        self.first = nn.Linear(8 * FIELDS + NUMBERS, 64)
        self.second = nn.Linear(64, 32)
        self.last = nn.Linear(32, 1)
        self.register_buffer("offset", torch.arange(FIELDS) * rows)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        rows = self.rows(ids + self.offset).flatten(1)
        hidden = self.first(torch.cat([rows, numbers], 1)).relu()
        return self.last(self.second(hidden).relu()).squeeze(1)


class Day:
    """The clicks of that page, to the bit: a million to train on, and a hundred thousand that are held back."""

    def __init__(self, samples: int = DAY_SAMPLES, held_back: int = DAY_HELD_BACK) -> None:
        self._chance = np.random.default_rng(7)
        self._effect = self._chance.normal(0, 0.45, (FIELDS, DAY_ROWS)).astype(np.float32)
        self._slope = self._chance.normal(0, 0.5, NUMBERS).astype(np.float32)
        self.train, self.held_back = self._clicks(samples), self._clicks(held_back)

    def _clicks(self, samples: int) -> Batch:
        chance = self._chance
        ids = (DAY_ROWS * chance.power(0.4, (samples, FIELDS))).astype(np.int64)
        numbers = chance.normal(size=(samples, NUMBERS)).astype(np.float32)
        logit = self._effect[np.arange(FIELDS), ids].sum(1) + numbers @ self._slope - 1.2
        label = (chance.random(samples) < 1 / (1 + np.exp(-logit))).astype(np.float32)
        return torch.from_numpy(ids), torch.from_numpy(numbers), torch.from_numpy(label)

    def draw(self, samples: int, step: int) -> Batch:
        """Return the samples of a step in their order, the day again and again."""
        first = step * samples % len(self.train[0])
        return tuple(part[first : first + samples] for part in self.train)


class Clicks:
    """The law of that page with fewer rows: ten fields of ids, four numbers. A block has slopes of its own."""

    def __init__(self, blocks: int = 1) -> None:
        chance = torch.Generator().manual_seed(7)
        self.effect = 0.45 * torch.randn(FIELDS, ROWS, generator=chance)
        self.slope = torch.randn(blocks, NUMBERS, generator=chance) * (0.5 if blocks == 1 else 1.0)

    def draw(self, samples: int, seed: int, block: int = 0) -> Batch:
        chance = torch.Generator().manual_seed(seed)
        ids = (ROWS * torch.rand(samples, FIELDS, generator=chance) ** 2.5).long()
        numbers = torch.randn(samples, NUMBERS, generator=chance)
        logit = self.effect[torch.arange(FIELDS), ids].sum(1) + numbers @ self.slope[block] - 1.2
        return ids, numbers, (torch.rand(samples, generator=chance) < logit.sigmoid()).float()


def click_loss(model: nn.Module, batch: Batch) -> Tensor:
    *inputs, label = batch
    return nn.functional.binary_cross_entropy_with_logits(model(*inputs), label)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        heads = self.qkv(self.before(x)).view(samples, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(samples, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    def __init__(self, width: int = 32, layers: int = 1) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.last = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        return self.last(self.blocks(x))


class Language:
    """Each token hangs on the two before it, by a random table."""

    def __init__(self) -> None:
        chance = torch.Generator().manual_seed(3)
        self.table = (2.0 * torch.randn(TOKENS, TOKENS, TOKENS, generator=chance)).softmax(-1)

    def draw(self, samples: int, seed: int) -> Batch:
        chance = torch.Generator().manual_seed(seed)
        found = [torch.randint(TOKENS, (samples,), generator=chance) for _ in range(2)]
        for _ in range(CONTEXT - 1):
            found.append(torch.multinomial(self.table[found[-2], found[-1]], 1, generator=chance).squeeze(1))
        text = torch.stack(found, 1)
        return text[:, :-1], text[:, 1:]


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    before, after = batch
    # the first token cannot be told from one
    return nn.functional.cross_entropy(model(before)[:, 1:].flatten(0, 1), after[:, 1:].flatten())


@dataclass(frozen=True, slots=True)
class Task:
    """A training.

    Attributes:
        name: In words.
        make: A model with drawn weights.
        draw: From a number of samples and a step to a batch.
        held_back: The samples that losses are told of.
        loss: Of a model on a batch.
        samples: Of a replica in a step.
        steps: How many.
        rate: Of Adam.
    """

    name: str
    make: Callable[[], nn.Module]
    draw: Callable[[int, int], Batch]
    held_back: Batch
    loss: Callable[[nn.Module, Batch], Tensor]
    samples: int
    steps: int
    rate: float


def tasks(share: float) -> tuple[Task, Task]:
    """Return both trainings, with a share of their steps."""
    return day(share), language(share)


def day(share: float = 1.0) -> Task:
    """Return the training of the day."""
    clicks, steps = Day(), round(DAY_SAMPLES / DAY_BATCH * share)
    return Task("clicks", lambda: ClickModel(DAY_ROWS), clicks.draw, clicks.held_back, click_loss, 250, steps, 2e-2)


def language(share: float = 1.0) -> Task:
    """Return the training of the transformer."""
    drawn = cache(Language().draw)
    held_back = drawn(4096, 1_000_000)
    return Task("transformer", Transformer, drawn, held_back, token_loss, 16, round(500 * share), 1e-2)


class FlatModel:
    """A model whose parameters and gradients are stretches of two flat tensors.

    Attributes:
        sizes: Of every parameter.
        start: The drawn weights.
    """

    def __init__(self, make: Callable[[], nn.Module], loss: Callable[[nn.Module, Batch], Tensor]) -> None:
        torch.manual_seed(0)
        self.module, self._loss = make(), loss
        parameters = list(self.module.parameters())
        self.sizes = [parameter.numel() for parameter in parameters]
        self.start = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self._weights, self._gradients = self.start.clone(), torch.zeros_like(self.start)
        parts = zip(self._weights.split(self.sizes), self._gradients.split(self.sizes), strict=True)
        for parameter, (weights, gradient) in zip(parameters, parts, strict=True):
            parameter.data = weights.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)

    def gradient(self, weights: Tensor, batch: Batch) -> Tensor:
        """Return a copy of the gradient of the mean loss."""
        self._weights.copy_(weights)
        self._gradients.zero_()
        self._loss(self.module, batch).backward()
        return self._gradients.clone()

    @torch.no_grad()
    def loss(self, weights: Tensor, batch: Batch) -> float:
        self._weights.copy_(weights)
        return float(self._loss(self.module, batch))

    @torch.no_grad()
    def outputs(self, weights: Tensor, batch: Batch) -> Tensor:
        self._weights.copy_(weights)
        return self.module(*batch[:-1])


class Adam:
    """Adam of a flat tensor, as torch has it."""

    def __init__(self, weights: Tensor, rate: float) -> None:
        self.weights = weights.clone().requires_grad_()
        self._adam = torch.optim.Adam([self.weights], lr=rate)

    @property
    def now(self) -> Tensor:
        return self.weights.detach()

    def step(self, gradient: Tensor) -> None:
        self.weights.grad = gradient
        self._adam.step()

    def put(self, weights: Tensor) -> None:
        self.weights.data = weights.clone()
